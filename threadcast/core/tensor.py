"""The shape, element type and memory layout of one tensor."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from threadcast.core.errors import FormatError, InvalidInput

DTYPE_BYTES = {
    "float64": 8, "float32": 4, "float16": 2, "bfloat16": 2,
    "int64": 8, "int32": 4, "int16": 2, "int8": 1, "uint8": 1, "bool": 1,
    "complex64": 8, "complex128": 16,
}  # fmt: skip

_INTEGERS = frozenset({int})  # and no bool

MAX_ELEMENTS = 2**63 - 1
"""Frameworks count elements in 64 signed bits."""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """The properties of a tensor that an op's cost depends on.

    `strides` are in elements; None means contiguous, so that there is only one way to write a contiguous tensor.
    """

    shape: tuple[int, ...]
    dtype: str = "float32"
    strides: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if not _are_sizes(self.shape):
            raise InvalidInput(f"shape={self.shape!r}: every side must be an integer of at least 0")
        if max((*self.shape, math.prod(self.shape))) > MAX_ELEMENTS:
            raise InvalidInput(f"shape={str(self.shape)[:60]} has more elements than the {MAX_ELEMENTS} of any tensor")
        if self.dtype not in DTYPE_BYTES:
            raise InvalidInput(f"dtype={self.dtype!r} is unknown; known: {', '.join(DTYPE_BYTES)}")
        if self.strides is not None:
            if not _are_sizes(self.strides):
                raise InvalidInput(f"strides={self.strides!r}: every stride must be an integer of at least 0")
            if len(self.strides) != len(self.shape):
                raise InvalidInput(f"strides={self.strides!r} must be as many as the sides of shape={self.shape!r}")
            if self.strides == contiguous_strides(self.shape):
                object.__setattr__(self, "strides", None)

    @property
    def numel(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def size_bytes(self) -> int:
        """Bytes of the distinct elements (a dimension with stride 0 counts once)."""
        if self.strides is None:
            return self.numel * DTYPE_BYTES[self.dtype]
        distinct = math.prod(n for n, stride in zip(self.shape, self.strides) if stride != 0)
        return (distinct if self.numel else 0) * DTYPE_BYTES[self.dtype]

    @property
    def laid_out(self) -> tuple[int, ...]:
        """Strides in elements, given for contiguous tensors too."""
        return contiguous_strides(self.shape) if self.strides is None else self.strides

    def to_json(self) -> list[Any]:
        """`[shape, dtype, strides]`, shortened from the right where the rest is the default."""
        if self.strides is not None:
            return [list(self.shape), self.dtype, list(self.strides)]
        return [list(self.shape)] if self.dtype == "float32" else [list(self.shape), self.dtype]

    @classmethod
    def from_json(cls, document: Any, *, pointer: str = "") -> TensorSpec:
        """Read `[shape, dtype?, strides?]`; a bare shape `[n, ...]` is float32 and contiguous.

        Raises FormatError with `pointer` when the document is neither.
        """
        if not isinstance(document, list):
            raise FormatError(f"a tensor must be [shape, dtype?, strides?], got {document!r}", pointer=pointer)
        bare = set(map(type, document)) <= _INTEGERS
        shape, *rest = [document] if bare else document
        try:
            dtype = rest[0] if rest else "float32"
            strides = tuple(rest[1]) if len(rest) > 1 and rest[1] is not None else None
            if len(rest) > 2 or not isinstance(shape, list) or not isinstance(dtype, str):
                raise InvalidInput(f"a tensor must be [shape, dtype?, strides?], got {document!r}")
            return cls(tuple(shape), dtype, strides)
        except (InvalidInput, TypeError) as error:
            raise FormatError(str(error), pointer=pointer) from error


def _are_sizes(values: Sequence[Any]) -> bool:
    return set(map(type, values)) <= _INTEGERS and min(values, default=0) >= 0


def contiguous_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides, in elements, of a row-major tensor of this shape."""
    strides, step = [], 1
    for side in reversed(shape):
        strides.append(step)
        step *= max(side, 1)
    return tuple(reversed(strides))
