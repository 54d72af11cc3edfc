"""What stands in the arguments of a recorded call: references to slots, numbers, and sizes that vary; and their JSON.

JSON makes an op's identity hold all that its work depends on, and lets it run from it: {"t": i} is the op's input
number i, a tensor; {"number": i} the number that this input holds as its one element. Scalars, strings, None and lists
are themselves. A torch dtype, device, layout or memory format is {"dtype": "float32"} and so on. A float that JSON
lacks is {"float": "inf"}, a complex number {"complex": "1j"}.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import torch

from threadcast.core.errors import CaptureError, FormatError

if TYPE_CHECKING:
    import sympy

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


def filled(template: Any, slots: Sequence[Any] | Mapping[int, Any]) -> Any:
    """`template` with the values in these slots in place of each `Ref` and `AsNumber`."""
    if isinstance(template, Ref):
        return template.value(slots)
    if isinstance(template, AsNumber):
        return template.ref.value(slots).item()
    if isinstance(template, list):
        return [filled(part, slots) for part in template]
    if type(template) is tuple:
        return tuple([filled(part, slots) for part in template])
    if isinstance(template, dict):
        return {key: filled(part, slots) for key, part in template.items()}
    return template


Dynamic = Mapping[int, tuple[int, ...]]
"""The sizes that may vary: for the number of an argument's leaf the dimensions of that tensor; an empty tuple for an
integer."""
Place = tuple[int, int | None]
"""Where the value of a symbol is: the number of a leaf, and the dimension of that tensor; None for an integer."""

LEAST = 2
"""The least size that a dimension that varies may have: PyTorch treats 0 and 1 as cases of their own."""


class Size(int):
    """An integer that follows from the sizes of the arguments by `expression`; its value is that of the example."""

    expression: sympy.Expr

    def __new__(cls, value: int, expression: sympy.Expr) -> Size:
        size = super().__new__(cls, value)
        size.expression = expression
        return size

    def __repr__(self) -> str:
        return f"{int(self)} by {self.expression}"

    def __reduce__(self) -> tuple[Any, ...]:
        return int, (int(self),)


@dataclass(frozen=True, slots=True, eq=False)
class ArgumentSizes:
    """How the numbers of a graph follow from the sizes of its arguments.

    `places` say where the sizes are. `values` and `fits` take them in this order: `values` returns the numbers, `fits`
    whether the graph is right for these sizes.
    """

    places: tuple[Place, ...]
    example: tuple[int, ...]
    """The sizes of the example."""
    values: Callable[..., tuple[int, ...]]
    fits: Callable[..., bool]
    repeated: Mapping[int, int] = field(default_factory=dict)
    """For each leaf that is the tensor of an earlier leaf once more, the number of that one, which has the places."""

    dims: Mapping[int, frozenset[int | None]] = field(init=False)
    """The dimensions that vary of each leaf that has some; {None} for an integer."""

    def __post_init__(self) -> None:
        dims: dict[int, frozenset[int | None]] = {}
        for leaf, dim in self.places:
            dims[leaf] = dims.get(leaf, frozenset()) | {dim}
        for leaf, first in self.repeated.items():
            dims[leaf] = dims.get(first, frozenset())
        object.__setattr__(self, "dims", dims)

    def of(self, leaves: Sequence[Any]) -> list[int]:
        """Return the sizes in these leaves of the arguments."""
        return sizes_at(self.places, leaves)


def sizes_at(places: Sequence[Place], leaves: Sequence[Any]) -> list[int]:
    """Return the sizes at these places of the leaves of the arguments."""
    return [leaves[leaf] if dim is None else leaves[leaf].shape[dim] for leaf, dim in places]


_NAMED = {"dtype": torch.dtype, "layout": torch.layout, "memory_format": torch.memory_format}


def encode(value: Any, positions: dict[Any, int]) -> Any:
    """An argument as a JSON value; CaptureError for a type that cannot be recorded.

    `positions` maps the object that represents a tensor to its number among the op's inputs.
    """
    if isinstance(value, Size):
        return int(value)
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
