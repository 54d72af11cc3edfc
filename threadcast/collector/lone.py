"""Measures an op alone: on tensors of its own, in a pinned team, with events counted around every batch."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime
from typing import Any

from threadcast.collector.cache_room import eviction_bytes
from threadcast.collector.counters.availability import list_unavailable
from threadcast.collector.counters.cachegrind import add_counts
from threadcast.collector.counters.op_counters import OpCounters, perf_counters
from threadcast.collector.counters.thread_counters import ThreadCounters
from threadcast.collector.timing import Goal, Timing, time_callable
from threadcast.core import Case, Machine, Measurement, Op
from threadcast.core.errors import MeasurementError
from threadcast.threads.affinity import ThreadTeam
from threadcast.threads.memory import memory_regime

Measure = Callable[[Op, Goal], Measurement]


class LoneOps:
    """Measures single ops on `machine`, whose cores must be those of this computer.

    Every run finds its code in the caches and none of its data, as in a step (`rotation`). `counters` says what is
    counted (None: the perf events that this machine can count); `seed` is the seed of the tensors' values. Two
    measurements are comparable only if their `conditions` are equal.
    """

    def __init__(self, machine: Machine, *, counters: OpCounters | None = None, seed: int = 0) -> None:
        import torch

        self.machine = machine
        self._seed = seed
        self.counters = perf_counters() if counters is None else counters
        self.conditions: Mapping[str, Any] = {"cache": "rotated", "memory": memory_regime(), "torch": torch.__version__}

    @contextmanager
    def at(self, case: Case) -> Iterator[Measure]:
        """A function to measure ops in `case`: `with lone.at(case) as measure: measure(op, goal)`.

        The team of threads lives as long as the block. The function raises what preparing or running the op raises.
        """
        cores = self.machine.place(case)
        bytes_between = eviction_bytes(self.machine, cores)
        stopping = threading.Event()
        plan = self.counters.plan
        with (
            ThreadTeam(self.machine.cpus(cores)) as team,
            ThreadCounters(plan, threads=team.threads) if plan else nullcontext() as counting,
        ):

            def measure(op: Op, goal: Goal) -> Measurement:
                return team.run(lambda: measure_in_leader(op, goal))

            def measure_in_leader(op: Op, goal: Goal) -> Measurement:
                from threadcast.capture.graph.program import below_autograd
                from threadcast.collector.operators import prepare
                from threadcast.collector.rotation import RotatedOp

                def before_batch() -> None:
                    if stopping.is_set():
                        raise MeasurementError(f"timing of {op.key} was broken off")
                    timed.reset()
                    team.place()

                with below_autograd():
                    timed = RotatedOp(prepare(op, seed=self._seed), bytes_between)
                    timing = time_callable(timed.run, goal=goal, counters=counting, reset=before_batch)
                conditions = {
                    **self.conditions,
                    "converged": timing.converged,
                    "runs_a_batch": timing.runs_a_batch,
                    "time": datetime.now(UTC).isoformat(timespec="seconds"),
                }
                if counting and (unread := _taken(timing) | counting.unavailable):
                    conditions["unread_counters"] = list_unavailable(unread)
                measured = Measurement(op, self.machine, case, timing.samples, conditions)
                return add_counts(measured, self.counters.simulated.get(op.key, {}))

            try:
                yield measure
            finally:
                stopping.set()  # an interrupted caller must not wait for the end of a long timing, only of its batch,
                team.run(lambda: None)  # and counters must stay open until then


def _taken(timing: Timing) -> dict[str, str]:
    """Why counters are missing that no sample has, though they can be counted."""
    names = [name for name in timing.samples[0].counters if all(one.counters[name] is None for one in timing.samples)]
    return dict.fromkeys(names, "something else had the processor's counters meanwhile")
