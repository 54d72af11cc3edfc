"""Measures how much ops slow each other down on disjoint cores: each pair of op classes by a few pairs of ops."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import product
from statistics import median
from typing import Protocol

import numpy as np

from threadcast.collector.busy import LIMIT, Load, measure_load, refuse_busy
from threadcast.collector.calibration import Calibration
from threadcast.collector.counters.op_counters import OpCounters
from threadcast.collector.lone import LoneOps, Measure
from threadcast.collector.timing import Goal
from threadcast.core import Case, Machine, Op
from threadcast.core.corun import Classes, CoRunTable, Slowdown
from threadcast.core.errors import MeasurementError
from threadcast.core.op_class import ClassLimits, OpClass

EACH = 2
"""Ops that represent a class: four pairs for each pair of classes, 36 in all, in some 20 s at the default budget."""

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
    """Slow-downs (factors) by class in `table`, by pair of op keys in `pairs`, and why pairs failed.

    In each pair the first op is slowed down by the second.
    """

    table: CoRunTable
    pairs: Mapping[tuple[str, str], float]
    failed: Mapping[tuple[str, str], str]


def limits_of(calibration: Calibration, machine: Machine) -> ClassLimits:
    """The limits that separate op classes, from the calibration of `machine`."""
    share = calibration.all_bytes_per_s / len(machine)
    return ClassLimits(calibration.core_flops_per_s, share, calibration.fork_join_s[1])


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
    ops: Iterable[Op],
    machine: Machine,
    limits: ClassLimits,
    *,
    mean_s: float = 0.15,
    each: int = EACH,
    busy_limit: float | None = LIMIT,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
    measure_load: Callable[[Sequence[int]], Load] = measure_load,
    lone: Callable[[Machine], AbstractContextManager[Measure]] | None = None,
    partner: Callable[[Machine], AbstractContextManager[Background]] | None = None,
) -> CoRunReport:
    """Measure how much the classes of a step's `ops` slow each other down on the two halves of `machine`.

    Up to `each` ops represent a class. Each of these ops is timed on one half, alone and beside each of them on the
    other half, for about `mean_s` seconds each. With `busy_limit` None a busy machine is not refused. `on_progress` is
    called with the number of pairs that are done and the number of all pairs. Raises BusyMachine before anything is
    measured; a pair that fails is left out of the slow-downs.
    """
    first, second = halves(machine)
    if busy_limit is not None:
        refuse_busy(measure_load(machine.cpus(core.id for core in machine.cores)), limit=busy_limit)
    chosen = [(of, op) for of, found in representatives(ops, limits, each=each).items() for op in found]
    goal = Goal(budget_s=mean_s / ROUNDS)
    slowed: dict[Classes, list[float]] = defaultdict(list)
    pairs: dict[tuple[str, str], float] = {}
    failed: dict[tuple[str, str], str] = {}
    with (lone or _alone)(first) as measure, (partner or _partner)(second) as background:
        prepared: Op | None = None
        for done, ((other_class, other), (of, op)) in enumerate(product(chosen, chosen), 1):
            try:
                if prepared is not other:
                    background.prepare(other)
                    prepared = other
                pairs[op.key, other.key] = by = _slowdown(op, measure, background, goal)
                slowed[of, other_class].append(by)
            except Exception as error:  # noqa: BLE001 - a kernel may raise anything; one pair must not end it all
                failed[op.key, other.key] = f"{type(error).__name__}: {error}"
            on_progress(done, len(chosen) ** 2)
    slowdowns = {classes: _summary(factors) for classes, factors in slowed.items()}
    return CoRunReport(CoRunTable(machine, len(first), limits, slowdowns), pairs, failed)


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
