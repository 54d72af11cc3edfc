"""What is counted while the ops of a network are measured: perf events around their runs, or counts of a simulation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from threadcast.collector.counters.availability import list_unavailable
from threadcast.collector.counters.cachegrind import NAMES, CacheSimulator
from threadcast.collector.counters.passes import CountingPlan, plan_counting
from threadcast.core import Machine, Measurement, Op
from threadcast.core.errors import CounterUnavailable, MeasurementError

CounterChoice = Literal["perf", "cachegrind", "none"]


@dataclass(frozen=True, slots=True)
class OpCounters:
    """What is counted: nothing, the events of `plan`, or `simulated` counts, by op key and name of a count.

    `required`: measurements in a store that lack these counters are not reused. `failed` says, by op key, why an op
    could not be simulated.
    """

    plan: CountingPlan | None = None
    simulated: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    failed: Mapping[str, str] = field(default_factory=dict)
    required: bool = False

    def lacking(self, measurement: Measurement) -> frozenset[str]:
        """The counters that a stored measurement would need to be reused, and has not."""
        if not self.required:
            return frozenset()
        names = (*(self.plan.names if self.plan else ()), *self.simulated.get(measurement.op.key, ()))
        return frozenset(name for name in names if measurement.counter(name) is None)


def perf_counters(*, required: bool = False) -> OpCounters:
    """The events that this machine can count.

    With `required`, CounterUnavailable where it can count none.
    """
    plan = plan_counting()
    if required and not plan.names:
        raise CounterUnavailable(
            f"no perf event can be counted here: {list_unavailable(plan.unavailable)}; count by a simulation "
            f"(cachegrind, slow) or not at all (none)"
        )
    return OpCounters(plan, required=required)


def cachegrind_counters(
    ops: Iterable[Op], machine: Machine, *, known: Iterable[Measurement] = (),
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> OpCounters:  # fmt: skip
    """Simulated counts of each op, those in `known` measurements of this machine with the same torch included.

    `on_progress` is called with the number of ops simulated and of those to be simulated. CounterUnavailable where this
    machine cannot simulate, even if all counts are known.
    """
    simulated, failed = _stored_counts(known, machine), dict[str, str]()
    with CacheSimulator(machine) as simulator:
        missing = [op for op in ops if op.key not in simulated]
        for done, op in enumerate(missing, 1):
            try:
                simulated[op.key] = simulator.counts(op)
            except MeasurementError as error:
                failed[op.key] = str(error)
            on_progress(done, len(missing))
    return OpCounters(simulated=simulated, failed=failed, required=True)


def _stored_counts(known: Iterable[Measurement], machine: Machine) -> dict[str, Mapping[str, float]]:
    import torch

    found: dict[str, Mapping[str, float]] = {}
    for measurement in known:
        if measurement.conditions.get("torch") != torch.__version__:  # its kernels may be others
            continue
        counts = {name: count for name in NAMES if (count := measurement.counter(name)) is not None}
        if measurement.machine.fingerprint == machine.fingerprint and len(counts) == len(NAMES):
            found[measurement.op.key] = counts
    return found
