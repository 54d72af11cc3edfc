"""Whether a plan's step differs from eager's by chance: a wrong kernel's numbers do in each step, others do not."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

from torch import Tensor

from threadcast.runtime.check.differences import (
    Difference,
    excess,
    largest_roundings,
    most_beyond,
    value_difference,
)
from threadcast.runtime.check.running_means import scales_of_means
from threadcast.runtime.check.sensitivity import EXACT, Sensitivity

_AGREE, _STEPS = 2, 8
"""Each number that differs must agree in so many of so many further steps. Conventions: where signs before a ReLU
change in every second step, a number that depends on all of them agrees less often in 9 of 256 cases."""
_FAR = 2
"""Most further steps in which numbers differ by too much for chance in one step: several signs may change at once, as
in one of three steps of DenseNet. More of the steps must not."""

Ask = Callable[[Sequence[str]], Mapping[str, Sensitivity]]
"""Finds how sensitive eager's values of these names are."""


class Pair(NamedTuple):
    """A step run by eager and by a plan from the same numbers: the values before it and after both, by name."""

    before: Mapping[str, Any]
    eager: Mapping[str, Any]
    plan: Mapping[str, Any]


def is_chance(first: Pair, others: Iterable[Pair], known: Mapping[str, Sensitivity], ask: Ask) -> bool:
    """Return whether every number that differs in the first step agrees in some of the other ones.

    `known` is the sensitivity of all values of which something differs in the first step but for it, `ask` finds that
    of others. In the other steps all numbers are changed by some roundings, so that other numbers are near a jump.
    There must be one in which all values that differ in the first step agree, and few in which numbers differ by too
    much for chance (`_FAR`); a difference of types, of sizes, of integers or of what is not finite is none. No more
    steps are looked at than it takes.
    """
    known, agreed_once, far = dict(known), False, 0
    found = _differences(first, first.eager.keys() & known.keys(), known, ask)
    if not found or not all(difference.may_be_chance for difference in found.values()):
        return False
    scales = scales_of_means(first.eager)
    asked = {name: _Agreements(_excess(first, name, scales), first.eager[name], known[name]) for name in found}
    for count, step in enumerate(islice(others, _STEPS), 1):
        if step.eager.keys() != step.plan.keys():
            return False
        found, scales = _differences(step, step.eager, known, ask), scales_of_means(step.eager)
        too_much = [difference for difference in found.values() if not difference.may_be_chance]
        far += bool(too_much)
        if far > _FAR or any(math.isinf(difference.largest) for difference in too_much):
            return False
        agreed_once = agreed_once or not asked.keys() & found.keys()
        for name, agreements in asked.items():
            if step.eager[name].shape == first.eager[name].shape:
                agreements.add(_excess(step, name, scales), step.eager[name])
        if agreed_once and 2 * far < count and all(agreements.are_enough() for agreements in asked.values()):
            return True
        del step, found  # as large as the model and its optimizer, and the next ones are, too
    return False


def _differences(step: Pair, names: Iterable[str], known: dict[str, Sensitivity], ask: Ask) -> dict[str, Difference]:
    """How the values `names` differ, of those that do; the sensitivity of what may not be chance becomes known."""
    scales = scales_of_means(step.eager)

    def differences(names: Iterable[str]) -> dict[str, Difference]:
        names = list(names)
        of = {name: known[name] for name in names if name in known}
        roundings = largest_roundings(step.eager, step.before, of)
        found = {
            name: value_difference(
                name, step.eager[name], step.plan[name], before=step.before.get(name),
                sensitivity=known.get(name, EXACT), scale=scales.get(name), jumps=True,
                rounding=roundings.get(name, 0.0),
            )
            for name in names
        }  # fmt: skip
        return {name: difference for name, difference in found.items() if difference is not None}

    found = differences(names)
    unknown = [name for name, one in found.items() if not one.may_be_chance and name not in known]
    if unknown:
        known.update(ask(unknown))
        found = {name: one for name, one in found.items() if name not in unknown} | differences(unknown)
    return found


def _excess(step: Pair, name: str, scales: Mapping[str, Tensor]) -> Tensor:
    return excess(step.eager[name], step.plan[name], before=step.before.get(name), scale=scales.get(name))


class _Agreements:
    """In how many further steps each number of a value agreed that differs in the first step."""

    def __init__(self, excess: Tensor, eager: Tensor, sensitivity: Sensitivity) -> None:
        """`excess` is that of the first step. Infinities of eager's have been judged by their number."""
        self._sensitivity = sensitivity
        rest = ~eager.to_dense().isfinite()
        self._within = _AGREE * (rest | (excess <= sensitivity.allowed)).byte()
        """Of each number the steps in which it agreed."""
        self._plain = _AGREE * (rest | (excess <= 0)).byte()
        """The same by what any value may differ; some of the numbers may do so by more."""

    def add(self, excess: Tensor, eager: Tensor) -> None:
        """Count one step more. What is infinite or NaN in eager's tells nothing."""
        told = eager.to_dense().isfinite()
        self._within += told & (excess <= self._sensitivity.allowed)
        self._plain += told & (excess <= 0)

    def are_enough(self) -> bool:
        """Whether each number agreed in enough steps."""
        if bool((self._within < _AGREE).any()):
            return False
        return int((self._plain < _AGREE).sum()) <= most_beyond(self._sensitivity)
