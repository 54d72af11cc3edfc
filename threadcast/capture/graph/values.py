"""What stands in the arguments of a recorded call: references to slots and numbers; and their JSON.

JSON makes an op's identity hold all that its work depends on, and lets it run from it: {"t": i} is the op's input
number i, a tensor; {"number": i} the number that this input holds as its one element. Scalars, strings, None and lists
are themselves. A torch dtype, device, layout or memory format is {"dtype": "float32"} and so on. A float that JSON
lacks is {"float": "inf"}, a complex number {"complex": "1j"}.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import torch

from threadcast.core.errors import CaptureError, FormatError

T = TypeVar("T")


class Ref(NamedTuple):
    """A value: the content of slot `slot`, or its member `item` where an operator returned several results."""

    slot: int
    item: int | None = None

    def value(self, slots: Sequence[Any] | Mapping[int, Any]) -> Any:
        """The referenced value in these slots."""
        held = slots[self.slot]
        return held if self.item is None else held[self.item]


class AsNumber(NamedTuple):
    """The number that a tensor of one element holds when the operator is called, where a call takes a Python number."""

    ref: Ref


def find(kind: type[T], template: Any) -> Iterator[T]:
    """Everything of this kind in nested lists, tuples and dictionaries."""
    if isinstance(template, kind):
        yield template
    elif isinstance(template, list | tuple):
        for part in template:
            yield from find(kind, part)
    elif isinstance(template, dict):
        for part in template.values():
            yield from find(kind, part)


def find_refs(template: Any) -> Iterator[Ref]:
    """Every `Ref` in nested lists, tuples and dictionaries."""
    return find(Ref, template)


def map_refs(change: Callable[[Ref], Any], template: Any) -> Any:
    """`template` with `change` applied to every `Ref` in nested lists, tuples and dictionaries."""
    return _mapped(lambda one: AsNumber(change(one.ref)) if isinstance(one, AsNumber) else change(one), template)


def filled(template: Any, slots: Sequence[Any] | Mapping[int, Any]) -> Any:
    """`template` with the values in these slots in place of each `Ref` and `AsNumber`."""
    return _mapped(lambda one: one.ref.value(slots).item() if isinstance(one, AsNumber) else one.value(slots), template)


def _mapped(change: Callable[[Any], Any], template: Any) -> Any:
    if isinstance(template, Ref | AsNumber):
        return change(template)
    if isinstance(template, list):
        return [_mapped(change, part) for part in template]
    if type(template) is tuple:  # not torch.Size, which stays one
        return tuple([_mapped(change, part) for part in template])
    if isinstance(template, dict):
        return {key: _mapped(change, part) for key, part in template.items()}
    return template


_NAMED = {"dtype": torch.dtype, "layout": torch.layout, "memory_format": torch.memory_format}


def encode(value: Any, positions: dict[Any, int]) -> Any:
    """An argument as a JSON value; CaptureError for a type that cannot be recorded.

    `positions` maps the object that represents a tensor to its number among the op's inputs.
    """
    if isinstance(value, bool | int | str) or value is None:
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"float": str(value)}
    if isinstance(value, complex):
        return {"complex": repr(value)}
    if isinstance(value, AsNumber):
        return {"number": positions[value.ref]}
    if value.__hash__ is not None and value in positions:
        return {"t": positions[value]}
    if isinstance(value, list | tuple):
        return [encode(part, positions) for part in value]
    if isinstance(value, torch.device):
        return {"device": str(value)}
    for name, kind in _NAMED.items():
        if isinstance(value, kind):
            return {name: str(value).removeprefix("torch.")}
    raise CaptureError(f"an operator argument of type {type(value).__name__} cannot be recorded: {value!r}")


def decode(document: Any, tensors: list[Any]) -> Any:
    """Read what `encode` wrote, with `tensors[i]` for {"t": i}; FormatError on anything else."""
    if isinstance(document, list):
        return [decode(part, tensors) for part in document]
    if not isinstance(document, dict):
        return document
    name, value = next(iter(document.items())) if len(document) == 1 else ("", None)
    if name == "t" and isinstance(value, int) and 0 <= value < len(tensors):
        return tensors[value]
    if name == "number" and isinstance(value, int) and 0 <= value < len(tensors):
        given = tensors[value]
        return AsNumber(given) if isinstance(given, Ref) else given.item()
    if name == "float" and isinstance(value, str):
        return float(value)
    if name == "complex" and isinstance(value, str):
        return complex(value)
    if name == "device" and isinstance(value, str):
        return torch.device(value)
    if name in _NAMED and isinstance(found := getattr(torch, str(value), None), _NAMED[name]):
        return found
    raise FormatError(f"{document!r} is no operator argument")
