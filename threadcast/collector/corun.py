"""Measures how much ops slow each other down on disjoint cores: few pairs of ops, and forecasts for the other classes.

Which pair is measured next, and what the measured ones say of the others, `collector.corun_forecast` decides.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from itertools import product
from statistics import median
from typing import Protocol

import numpy as np

from threadcast.collector.calibration import Calibration
from threadcast.collector.corun_forecast import CoRunForecast, bandwidth_bound
from threadcast.collector.counters.op_counters import OpCounters
from threadcast.collector.lone import LoneOps, Measure
from threadcast.collector.timing import Goal
from threadcast.core import Case, Machine, Op
from threadcast.core.corun import Classes, CoRunTable, Keys, Slowdown
from threadcast.core.errors import MeasurementError
from threadcast.core.op_class import ClassLimits, OpClass

EACH = 2
"""Ops that represent a class: four pairs for each pair of classes, 36 in all, in some 20 s at the default budget."""

MOST_PAIRS = 12
"""Pairs of ops that are measured at most."""

NARROW = 0.15
"""Half-width of the widest 90 % interval, relative to its median, at which no further pair is measured."""

ROUNDS = 3
"""How many times an op is timed alone and beside the other in turn: clock rates and other load drift."""


class Background(Protocol):
    """Runs an op on other cores while one is timed; `collector.corun_partner.Partner` is the real one."""

    def prepare(self, op: Op) -> None:
        """Choose the op that `running` repeats."""

    def running(self) -> AbstractContextManager[None]:
        """A context manager that has the prepared op run again and again inside its block."""
        ...


@dataclass(frozen=True, slots=True)
class CoRunReport:
    """Slow-downs (factors) by class in `table`, by measured pair of op keys in `pairs`, and why pairs failed.

    In each pair the first op is slowed down by the second.
    """

    table: CoRunTable
    pairs: Mapping[Keys, float]
    failed: Mapping[Keys, str]


def limits_of(calibration: Calibration, machine: Machine) -> ClassLimits:
    """The limits that separate op classes, from the calibration of `machine`."""
    share = calibration.all_bytes_per_s / len(machine)
    return ClassLimits(calibration.core_flops_per_s, share, calibration.fork_join_s[1])


def prior_of(calibration: Calibration, machine: Machine) -> Callable[[Mapping[OpClass, Sequence[str]]], CoRunForecast]:
    """What is expected of ops, given by their keys, on the halves of `machine` before any pair is measured."""
    cores = len(halves(machine)[0])
    bound = bandwidth_bound(calibration.core_bytes_per_s, calibration.all_bytes_per_s, cores=cores)
    return partial(CoRunForecast.of, cores=cores, bandwidth_bound=bound)


def work_shares(ops: Iterable[Op], limits: ClassLimits) -> dict[OpClass, float]:
    """The part of a step's work, by its least time on one core, that is of each op class; empty where there is none."""
    work_s: dict[OpClass, float] = defaultdict(float)
    for op in ops:
        work_s[limits.class_of(op)] += limits.work_s(op) + (not op.is_view) * limits.call_s
    total_s = sum(work_s.values())
    return {of: seconds / total_s for of, seconds in work_s.items() if seconds}


def representatives(ops: Iterable[Op], limits: ClassLimits, *, each: int = EACH) -> dict[OpClass, tuple[Op, ...]]:
    """Up to `each` distinct ops for every op class that occurs among `ops`, the ops of a step.

    They are the ops with the most work in the step, of different kinds where there are several. Views are left out.
    """
    count: Counter[str] = Counter()
    weight: dict[Op, float] = {}
    for op in ops:
        if not op.is_view:
            count[op.key] += 1
            weight[op] = count[op.key] * limits.work_s(op)
    classes: dict[OpClass, list[Op]] = defaultdict(list)
    for op in sorted(weight, key=lambda op: (-weight[op], op.key)):
        classes[limits.class_of(op)].append(op)
    return {of: _different(found, each) for of, found in sorted(classes.items())}


def _different(ops: Sequence[Op], each: int) -> tuple[Op, ...]:
    """The first op of every kind, then the others, up to `each`."""
    firsts = list({op.kind: op for op in reversed(ops)}.values())[::-1]
    return tuple(sorted(ops, key=lambda op: op not in firsts)[:each])


def halves(machine: Machine) -> tuple[Machine, Machine]:
    """Two parts of `machine` with equally many neighbouring cores; MeasurementError where it has only one core."""
    order = [core for group in machine.groups for core in group]
    size = len(order) // 2
    if not size:
        raise MeasurementError(f"{machine.name} has one core to use: no two ops run at the same time on it")
    return machine.limited_to(order[:size]), machine.limited_to(order[size : 2 * size])


def measure_corun(
    ops: Sequence[Op],
    machine: Machine,
    limits: ClassLimits,
    *,
    mean_s: float = 0.15,
    each: int = EACH,
    most: int | None = MOST_PAIRS,
    narrow: float = NARROW,
    prior: Callable[[Mapping[OpClass, Sequence[str]]], CoRunForecast] = CoRunForecast.of,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
    lone: Callable[[Machine], AbstractContextManager[Measure]] | None = None,
    partner: Callable[[Machine], AbstractContextManager[Background]] | None = None,
) -> CoRunReport:
    """Measure how much the classes of a step's `ops` slow each other down on the two halves of `machine`.

    Up to `each` ops represent a class. An op is timed on one half, alone and beside another on the other half, for
    about `mean_s` seconds each: the pair whose result narrows the forecasts of pairs of classes most, weighted by the
    work of both classes, until each 90 % interval is `narrow` (relative half-width; 0: never) or `most` pairs are
    measured (None: all). Pairs of classes of which no pair was measured get forecasts, which start from `prior` of the
    ops' keys. `on_progress` is called with the number of pairs that are done and the most that there will be. A pair
    that fails is left out of the slow-downs.
    """
    first, second = halves(machine)
    chosen = representatives(ops, limits, each=each)
    by_key = {op.key: (of, op) for of, found in chosen.items() for op in found}
    shares = work_shares(ops, limits)
    forecast = prior({of: [op.key for op in found] for of, found in chosen.items()})
    left = set(product(by_key, by_key))
    total = len(left) if most is None else min(most, len(left))
    goal = Goal(budget_s=mean_s / ROUNDS)
    slowed: dict[Classes, list[float]] = defaultdict(list)
    pairs: dict[Keys, float] = {}
    failed: dict[Keys, str] = {}
    with (lone or _alone)(first) as measure, (partner or _partner)(second) as background:
        prepared: Op | None = None
        for done in range(1, total + 1):
            if narrow and forecast.width(chosen) <= narrow:
                break
            pair = forecast.next_pair(left, shares)
            left.remove(pair)
            (of, op), (other_class, other) = (by_key[key] for key in pair)
            try:
                if prepared is not other:
                    prepared = None  # a partner that cannot prepare an op has none
                    background.prepare(other)
                    prepared = other
                pairs[pair] = by = _slowdown(op, measure, background, goal)
                slowed[of, other_class].append(by)
                forecast = forecast.with_measured(pair, by)
            except Exception as error:  # noqa: BLE001 - a kernel may raise anything; one pair must not end it all
                failed[pair] = f"{type(error).__name__}: {error}"
            on_progress(done, total)
    slowdowns = {classes: _summary(factors) for classes, factors in slowed.items()}
    table = CoRunTable(machine, len(first), limits, slowdowns, forecasts=forecast.by_class())
    return CoRunReport(table, pairs, failed)


def _slowdown(op: Op, measure: Measure, background: Background, goal: Goal) -> float:
    """The median over rounds of the op's time beside the other, divided by its time alone."""
    ratios = []
    for _ in range(ROUNDS):
        alone_s = measure(op, goal).seconds
        with background.running():
            ratios.append(measure(op, goal).seconds / alone_s)
    return median(ratios)


def _summary(factors: Sequence[float]) -> Slowdown:
    low, middle, high = np.quantile(factors, [0.25, 0.5, 0.75]).tolist()
    return Slowdown(middle, low, high, len(factors))


def _alone(machine: Machine) -> AbstractContextManager[Measure]:
    return LoneOps(machine, counters=OpCounters()).at(Case(len(machine)))


def _partner(machine: Machine) -> AbstractContextManager[Background]:
    from threadcast.collector.corun_partner import Partner

    return Partner(machine)
