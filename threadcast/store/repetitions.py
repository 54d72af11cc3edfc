"""Finds columns that tell repetitions of an op apart: as features, they would make an op of each repetition."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from threadcast.core import Case
from threadcast.store.cells import Feature

FEWEST_OPS, COMPLETE = 3, 0.9
"""Fewest ops that tell, and the share of them that must have all of the column's values. Conventions."""

SAME_WITHIN = 0.05
"""By how much log times may differ with the column, beyond what single times scatter, if it does not describe ops. A
convention: a number of threads, a size or a layout moves most times by more, the state of a machine by less."""

_QUARTILE = 1.15
"""The upper quartile of the sizes of normal errors, in standard deviations."""

Times = Mapping[tuple[str, str, Case], Sequence[float]]
"""Seconds by machine, op and case."""


class Columns(NamedTuple):
    """The columns that describe ops, and each op's kind and values in them, by its label."""

    names: tuple[str, ...]
    of_ops: Mapping[str, tuple[str, tuple[Feature, ...]]]


def repeating(columns: Columns, times: Times) -> str | None:
    """The first column that alone tells apart rows that agree in all else, has the same values for every op that is
    left without it, and on which times do not depend; None where there is none.

    Of numbers, the first one may stand for slower runs, before caches were warm.
    """
    logs = {key: statistics.median(map(math.log, seconds)) for key, seconds in times.items() if min(seconds) > 0}
    for at, name in enumerate(columns.names):
        ops: dict[tuple[str, tuple[Feature, ...]], dict[Feature, str]] = {}
        for label, (kind, values) in columns.of_ops.items():
            ops.setdefault((kind, values[:at] + values[at + 1 :]), {})[values[at]] = label
        every = set().union(*ops.values())
        complete = sum(len(of_op) == len(every) for of_op in ops.values())
        if len(every) < 2 or len(ops) < FEWEST_OPS or complete < COMPLETE * len(ops):
            continue
        value_of = {label: (op, value) for op, of_op in ops.items() for value, label in of_op.items()}
        blocks: dict[tuple[object, ...], dict[Feature, float]] = {}
        for (machine, label, case), log in logs.items():
            op, value = value_of[label]
            blocks.setdefault((op, machine, case), {})[value] = log
        numbers = sorted(value for value in every if isinstance(value, int | float) and not isinstance(value, bool))
        warm: set[Feature] = set(numbers[1:]) if len(numbers) == len(every) > 2 else every
        if any(_spread(blocks, some) <= SAME_WITHIN for some in (every, warm)):
            return name
    return None


def _spread(blocks: Mapping[tuple[object, ...], Mapping[Feature, float]], some: set[Feature]) -> float:
    """How far the mean log times of single ops differ between `some` values, beyond what their scatter explains; of
    the larger ones among them, in standard deviations."""
    off: dict[tuple[object, Feature], list[float]] = {}
    for (op, *_), logs in blocks.items():
        known = {value: log for value, log in logs.items() if value in some}
        middle = statistics.fmean(known.values()) if known else 0.0
        for value, log in known.items() if len(known) > 1 else ():
            off.setdefault((op, value), []).append(log - middle)
    if not off:
        return math.inf
    means = {key: statistics.fmean(values) for key, values in off.items()}
    cases = statistics.median(map(len, off.values()))
    within = _typical([value - means[key] for key, values in off.items() if len(values) > 1 for value in values])
    chance = within**2 / (cases - 1) if cases > 1 else 0.0
    return math.sqrt(max(_typical(list(means.values())) ** 2 - chance, 0.0))


def _typical(errors: Sequence[float]) -> float:
    """The standard deviation of normal errors whose upper quartile of sizes is that of these; 0 without any."""
    if not errors:
        return 0.0
    sizes = sorted(map(abs, errors))
    return sizes[min(3 * len(sizes) // 4, len(sizes) - 1)] / _QUARTILE
