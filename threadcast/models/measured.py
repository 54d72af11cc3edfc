"""Measurements arranged by op and case, and whether they can be learned from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from threadcast.core import Case, Machine, Measurement, Op
from threadcast.core.errors import ModelError
from threadcast.core.measurement import LONGEST_S, SHORTEST_S
from threadcast.store.holding import what_holds

LABEL = "label"
"""The attribute that only names an op."""

MOST_WORK = 1e24
"""Most flops or bytes that an op can have: those of `LONGEST_S` at 1e15 a second."""


@dataclass(frozen=True, slots=True)
class MeasuredOp:
    """The measurements of one op on one machine, one for each case."""

    op: Op
    machine: Machine
    by_case: Mapping[Case, Measurement]

    def without_stale(self) -> MeasuredOp:
        """The op with those cases only that were measured since the machine changed."""
        return replace(self, by_case={case: m for case, m in self.by_case.items() if not m.stale})

    @property
    def defect(self) -> str | None:
        """Why nothing can be learned from this op, as text; None where something can."""
        if (work := max(self.op.flops, self.op.bytes_moved)) > MOST_WORK:
            return f"{work!r} flops or bytes: ops have at most {MOST_WORK:g}"
        return next(filter(None, map(defect_of, self.by_case.values())), None)


def defect_of(measurement: Measurement) -> str | None:
    """The sample whose time no op can have, as text; None where there is no such sample."""
    for sample in measurement.samples:
        if not SHORTEST_S <= sample.seconds <= LONGEST_S:
            return (
                f"a sample of {sample.seconds!r} s at {measurement.case}: "
                f"ops take from {SHORTEST_S:g} to {LONGEST_S:g} s; measure again"
            )
    return None


def by_case(measurements: Iterable[Measurement]) -> dict[Case, Measurement]:
    """One measurement of an op for each case, in order of first appearance: what holds now (`store.holding`)."""
    return what_holds(list(measurements))


def group(measurements: Iterable[Measurement]) -> tuple[MeasuredOp, ...]:
    """Measurements by op and machine, in order of first appearance; those with a cold cache are left out."""
    grouped: dict[tuple[str, str], list[Measurement]] = {}
    for measurement in measurements:
        if measurement.conditions.get("cache") != "cold":
            grouped.setdefault((measurement.op.key, measurement.machine.fingerprint), []).append(measurement)
    return tuple(MeasuredOp(listed[0].op, listed[0].machine, by_case(listed)) for listed in grouped.values())


def rows_by_machine(entries: Sequence[MeasuredOp]) -> dict[str, list[int]]:
    """The positions of the entries of each machine, by its fingerprint, in order of first appearance."""
    found: dict[str, list[int]] = {}
    for row, entry in enumerate(entries):
        found.setdefault(entry.machine.fingerprint, []).append(row)
    return found


def by_machine(entries: Sequence[MeasuredOp]) -> dict[str, list[MeasuredOp]]:
    """The entries of each machine, by its fingerprint, in order of first appearance."""
    return {machine: [entries[row] for row in rows] for machine, rows in rows_by_machine(entries).items()}


def usable(entries: Sequence[MeasuredOp]) -> tuple[tuple[MeasuredOp, ...], dict[str, str]]:
    """The entries that can be learned from, and by op key the reason why each of the others cannot.

    ModelError where nothing can be learned from the whole: no usable op, a single op, or the same time everywhere.
    """
    found = [(entry, entry.defect) for entry in entries]
    refused = {entry.op.key: defect for entry, defect in found if defect}
    sound = tuple(entry for entry, defect in found if not defect)
    if not sound:
        why = f": {next(iter(refused.values()))}" if refused else ""
        raise ModelError(f"none of {len(entries)} ops has usable measurements{why}; measure with `threadcast profile`")
    if len({entry.op.key for entry in sound}) < 2:
        raise ModelError(f"only op {sound[0].op.key} has usable measurements; learning takes several different ops")
    times = {m.seconds for entry in sound for m in entry.by_case.values()}
    if len(times) == 1:
        raise ModelError(
            f"all {len(sound)} ops take {times.pop()!r} s in every case: that is no measurement; "
            "check the seconds column or the clock"
        )
    return sound, refused


def by_content(entries: Iterable[MeasuredOp]) -> list[str]:
    """The keys of the ops, each once, in an order that is as good as random.

    Kinds and labels of ops without tensors may come from the name of a file: their order depends on what else describes
    them, and then on their times.
    """
    times: dict[str, list[tuple[Case, float]]] = {}
    ops = {}
    for entry in entries:
        ops[entry.op.key] = entry.op
        times.setdefault(entry.op.key, []).extend((case, m.seconds) for case, m in entry.by_case.items())

    def content(op: Op) -> tuple[bool, str, list[tuple[Case, float]]]:
        if op.inputs or op.outputs:
            return False, op.key, []
        attributes = {name: value for name, value in op.attributes.items() if name != LABEL}
        unnamed = Op("-", attributes={**attributes, "cost": [op.flops, op.bytes_moved]})
        return True, unnamed.key, sorted(times[op.key])

    return [op.key for op in sorted(ops.values(), key=content)]
