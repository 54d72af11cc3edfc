"""Curves of the operations of all built-in networks, alone at every thread count: the recording of `many_cores.py`.

An op is prepared once and timed at several thread counts in turn, each by a pinned team of its own. The counts asked
for come first, over all ops in an order drawn at random, so that an early end leaves an even part of all networks; then
the others. Measurements are appended as they are made, a line each; `long_form` makes a table of them that `threadcast
compare` reads.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from many_cores_results import Results, Turns, by_value

from threadcast import networks
from threadcast.capture.graph.program import below_autograd
from threadcast.capture.workloads import capture_workload, default_mode
from threadcast.collector.cold_cache import eviction_bytes
from threadcast.collector.operators import prepare
from threadcast.collector.rotation import RotatedOp
from threadcast.collector.timing import Goal, time_callable
from threadcast.core import Case, Machine, Measurement, Op, Sample
from threadcast.core.errors import ThreadcastError
from threadcast.store.long_form import write_long_form
from threadcast.threads.affinity import ThreadTeam
from threadcast.threads.memory import keep_freed_memory, memory_regime

PART = "recording"
GOAL = Goal(tolerance=0.05, budget_s=0.01)
"""For one op at one thread count: a fifth of what the sets in `data/recorded` have, as there are many more."""
MOST_ROTATED_BYTES = 128 * 2**20
"""Most bytes that are used between two runs on the same data. Caches that the system says are larger (480 MB on a
virtual machine that has part of one) would have ops prepared for longer than they are timed."""
FIRST_S = 2.0


def all_ops() -> Iterator[tuple[str, Op]]:
    """Every distinct op of the built-in networks at size small, with the name of the first network that has it."""
    seen: set[str] = set()
    for name in networks.names():
        work = networks.load(name, "small")
        for key, op in capture_workload(work, default_mode(work)).graph.distinct_ops().items():
            if key not in seen:
                seen.add(key)
                yield name, op


def passes(counts: Sequence[int], cores: int) -> list[tuple[int, ...]]:
    """Thread counts of each pass over all ops: those asked for, then the others, half as many passes as there are."""
    order = by_value(counts, cores)
    others = order[len(counts) :]
    return [tuple(counts), *(others[at : at + 2] for at in range(0, len(others), 2))]


class Recording:
    """Lines of one op's samples at one thread count, and one line for each op, each on the disk when `add` returns."""

    def __init__(self, path: Path) -> None:
        self._results = Results(path)

    def known(self) -> set[tuple[str, int]]:
        """Op keys and thread counts that have samples, or failed."""
        return {(line["key"], count) for line in self._results.read() for count in line.get("threads", ())}

    def add(self, op: Op, by_threads: Mapping[int, Sequence[float]], conditions: Mapping[str, Any]) -> None:
        """Append samples of one op."""
        self._results.add(
            PART, op.key, op=op.to_json(), threads=list(by_threads), conditions=dict(conditions),
            samples=[[float(f"{second:.6g}") for second in seconds] for seconds in by_threads.values()],
        )  # fmt: skip

    def add_failed(self, op: Op, counts: Sequence[int], problem: str) -> None:
        """Append that an op could not be run."""
        self._results.add(PART, op.key, threads=list(counts), problem=problem, samples=[])

    def measurements(self, machine: Machine) -> list[Measurement]:
        """All that was measured."""
        found = []
        for line in self._results.read():
            if "problem" in line:
                continue
            op = Op.from_json(line["op"])
            for threads, seconds in zip(line["threads"], line["samples"], strict=True):
                samples = tuple(Sample(second) for second in seconds)
                found.append(Measurement(op, machine, Case(threads), samples, line["conditions"]))
        return found


def run(recording: Recording, machine: Machine, counts: Sequence[int], end_s: float) -> None:
    """Pass after pass over all ops until the time is up."""
    keep_freed_memory()
    conditions = {"cache": "rotated", "memory": memory_regime(), "torch": torch.__version__}
    ops = list(all_ops())
    random.Random(0).shuffle(ops)
    turns, known = Turns(end_s, FIRST_S), recording.known()
    for of_pass in passes(counts, len(machine)):
        rotated = min(eviction_bytes(machine, machine.place(Case(max(of_pass)))), MOST_ROTATED_BYTES)
        for network, op in ops:
            missing = [n for n in of_pass if (op.key, n) not in known]
            if not missing:
                continue
            if not turns.next():
                return
            try:
                found = timed(op, machine, missing, rotated)
            except (ThreadcastError, RuntimeError) as error:
                recording.add_failed(op, missing, str(error).splitlines()[0][:200])
                continue
            now = datetime.now(UTC).isoformat(timespec="seconds")
            recording.add(op, found, {**conditions, "rotated_bytes": rotated, "network": network, "time": now})


def timed(op: Op, machine: Machine, counts: Sequence[int], rotated_bytes: int) -> dict[int, list[float]]:
    """Seconds of each batch of one op, by thread count; only one team lives at a time (`threads.openmp` says why)."""
    prepared: list[RotatedOp] = []
    found = {}
    for threads in sorted(counts, reverse=True):
        with ThreadTeam(machine.cpus(machine.place(Case(threads)))) as team:

            def before_batch(team: ThreadTeam = team) -> None:
                prepared[0].reset()
                team.place()

            def in_leader(before: Callable[[], None] = before_batch) -> list[float]:
                with below_autograd():
                    if not prepared:
                        prepared.append(RotatedOp(prepare(op), rotated_bytes))
                    timing = time_callable(prepared[0].run, goal=GOAL, reset=before)
                return [sample.seconds for sample in timing.samples]

            found[threads] = team.run(in_leader)
    return found


def long_form(recording: Recording, machine: Machine, path: Path) -> int:
    """Write all measurements as a long-form table; returns how many there are."""
    found = recording.measurements(machine)
    if found:
        write_long_form(found, path)
    return len(found)
