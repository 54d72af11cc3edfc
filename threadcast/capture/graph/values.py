"""References to numbered slots, which stand in a call's arguments in place of values."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple


class Ref(NamedTuple):
    """A value: the content of slot `slot`, or its member `item` where an operator returned several results."""

    slot: int
    item: int | None = None

    def value(self, slots: Sequence[Any]) -> Any:
        """The referenced value in these slots."""
        held = slots[self.slot]
        return held if self.item is None else held[self.item]


class AsNumber(NamedTuple):
    """The number that a tensor of one element holds when the operator is called, where a call takes a Python number."""

    ref: Ref


def find_refs(template: Any) -> Iterator[Ref]:
    """Every `Ref` in nested lists, tuples and dictionaries."""
    if isinstance(template, Ref):
        yield template
    elif isinstance(template, list | tuple):
        for part in template:
            yield from find_refs(part)
    elif isinstance(template, dict):
        for part in template.values():
            yield from find_refs(part)


def map_refs(change: Callable[[Ref], Ref], template: Any) -> Any:
    """`template` with `change` applied to every `Ref` in nested lists, tuples and dictionaries."""
    if isinstance(template, Ref):
        return change(template)
    if isinstance(template, AsNumber):
        return AsNumber(change(template.ref))
    if isinstance(template, list):
        return [map_refs(change, part) for part in template]
    if type(template) is tuple:  # not torch.Size, which stays one
        return tuple(map_refs(change, part) for part in template)
    if isinstance(template, dict):
        return {key: map_refs(change, part) for key, part in template.items()}
    return template
