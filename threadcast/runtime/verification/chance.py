"""Whether a plan's step differs from eager's by chance: a wrong kernel's numbers do in each step, others do not."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any, NamedTuple

import torch
from torch import Tensor

from threadcast.runtime.verification.differences import excess, is_beyond, value_difference
from threadcast.runtime.verification.running_means import scales_of_means
from threadcast.runtime.verification.sensitivity import Sensitivity

_AGREE, _STEPS = 2, 8
"""Each number that differs must agree in so many of so many other steps. Conventions: where signs before a ReLU change
in every second step, a number that depends on all of them agrees less often in 9 of 256 cases."""


class Pair(NamedTuple):
    """A step run by eager and by a plan from the same numbers: the values before it and after both, by name."""

    before: Mapping[str, Any]
    eager: Mapping[str, Any]
    plan: Mapping[str, Any]


def is_chance(first: Pair, others: Iterable[Pair], sensitivity: Mapping[str, Sensitivity]) -> bool:
    """Return whether every number that differs in the first step agrees in some of the other ones.

    `sensitivity` is that of all values which differ beyond what any may, and `others` are steps of which all numbers
    are changed by some roundings: other numbers are near a jump there. A difference that is too large to be chance in
    one of them is none. Only the values that differ are looked at, and no further steps once all of them agree.
    """
    scales = scales_of_means(first.eager)
    lasting = {name: _Lasting(_excess(first, name, scales), known) for name, known in sensitivity.items()}
    lasting = {name: value for name, value in lasting.items() if value.differs}
    for step in islice(others, _STEPS):
        scales = scales_of_means(step.eager)
        for name, value in list(lasting.items()):
            found = value_difference(
                name, step.eager[name], step.plan[name], before=step.before.get(name), sensitivity=sensitivity[name],
                scale=scales.get(name), jumps=True,
            )  # fmt: skip
            if found is not None and not found.may_be_chance:
                return False
            told = step.eager[name].to_dense().isfinite()
            value.see(_excess(step, name, scales).where(told, math.inf))
            if not value.lasts:
                del lasting[name]
        if not lasting:
            return True
    return False


def _excess(step: Pair, name: str, scales: Mapping[str, Tensor]) -> Tensor:
    return excess(step.eager[name], step.plan[name], before=step.before.get(name), scale=scales.get(name))


class _Lasting:
    """How far the numbers of a value are beyond the limits in the first step, and in those where they are nearest."""

    def __init__(self, first: Tensor, sensitivity: Sensitivity) -> None:
        self._first, self._sensitivity = first, sensitivity
        self._nearest: list[Tensor] = []
        """Of each number the smallest excess of all other steps, then the second smallest."""

    @property
    def differs(self) -> bool:
        """Whether the value differs in the first step."""
        return is_beyond(self._first, self._sensitivity)

    def see(self, excess: Tensor) -> None:
        """Look at one step more."""
        for at, known in enumerate(self._nearest):
            self._nearest[at], excess = torch.minimum(known, excess), torch.maximum(known, excess)
        self._nearest = [*self._nearest, excess][:_AGREE]

    @property
    def lasts(self) -> bool:
        """Whether numbers that differ in the first step have not agreed in enough others."""
        agrees = len(self._nearest) == _AGREE
        return not agrees or is_beyond(torch.minimum(self._first, self._nearest[-1]), self._sensitivity)
