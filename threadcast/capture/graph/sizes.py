"""Numbers in a graph that follow from the sizes of its arguments, so that one graph serves arguments of many sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import sympy

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
