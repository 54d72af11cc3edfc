"""Tells which calls a backend computes as PyTorch does: those with numbers of the kind that it was checked with."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor

from threadcast.runtime.backends.integer_ranges import Range, range_of
from threadcast.runtime.backends.least_and_most import ends


class NumberGuard:
    """Looks at the numbers of a call's arguments, or of its results; `example` are those of the checked call.

    NaN is never allowed: ReLU makes 0 of it in oneDNN and OpenVINO, `sign`, `argmax`, `topk` and attention treat it in
    other ways. Infinities are, in tensors that have them in the example, such as masks. `integers` are the ranges of
    integers, where there is one for a tensor.
    """

    def __init__(self, example: Sequence[Tensor], integers: Sequence[Range | None] = ()) -> None:
        self._integers = [(at, one) for at, one in enumerate(integers) if one is not None and example[at].numel()]
        self._floats = [
            (at, not all(map(math.isfinite, ends(value))))
            for at, value in enumerate(example)
            if value.numel() and (value.is_floating_point() or value.is_complex())
        ]
        """Positions of other numbers, each with whether the example has infinities there."""

    def allows(self, tensors: Sequence[Tensor]) -> bool:
        """Return whether these tensors have such numbers. It reads each number once."""
        for at, integers in self._integers:
            if not range_of(tensors[at]).within(*integers):
                return False
        return all(
            all(math.isfinite(one) or (infinite and not math.isnan(one)) for one in ends(tensors[at]))
            for at, infinite in self._floats
        )
