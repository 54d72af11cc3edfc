"""What a machine of a fleet does: says what it is, and measures parts. Runs in a Dask worker."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import threadcast
from threadcast.collector.busy import LoadWatch
from threadcast.collector.campaign import Campaign
from threadcast.collector.lone import LoneOps
from threadcast.collector.proposers import Proposer
from threadcast.core import Machine, Measurement, OpGraph
from threadcast.core.errors import MeasurementError
from threadcast.core.measurement_documents import measurement_document
from threadcast.core.topology import read_machine, whole_cores
from threadcast.fleet.parts import Part
from threadcast.store.machine_changes import MachineChanges
from threadcast.threads.memory import keep_freed_memory

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True)
class Description:
    """A machine as a worker sees it: `boot` is equal on workers that run on one machine, `cpus` are those of the
    cores that are used here: all hardware threads, also those that only others may use."""

    version: str
    machine: Machine
    host: str
    boot: str
    cpus: frozenset[int]

    def shares_cpus_with(self, other: Description) -> bool:
        """Whether both would measure on the same CPUs, so that neither would measure alone."""
        return self.boot == other.boot and not self.cpus.isdisjoint(other.cpus)


@dataclass(frozen=True, slots=True)
class Manner:
    """How ops are measured, as the settings `profile.*` say."""

    enough: float
    check: int
    max_age_days: float | None
    mean_s: float
    tolerance: float
    alone: bool = True
    """Whether no other worker measures on the same CPUs; else it is not looked at whether others use them."""
    cores: int | None = None


@dataclass(frozen=True, slots=True)
class PartReport:
    """How a part ended: cases measured and reused, and by op key why ops failed."""

    measured: int
    reused: int
    failed: Mapping[str, str]


def describe(cores: int | None) -> Description:
    """The machine that this process runs on, of which at most `cores` cores are used."""
    machine = read_machine(cores=cores)
    boot = BOOT_ID.read_text().strip() if BOOT_ID.exists() else os.uname().nodename
    cpus = whole_cores(cpu for core in machine.cores for cpu in core.cpus)
    return Description(threadcast.__version__, machine, os.uname().nodename, boot, cpus)


def measure_part(
    part: Part,
    known: Collection[Measurement],
    changes: MachineChanges,
    proposer: Proposer,
    manner: Manner,
    tell: Callable[[int, Mapping[str, Any]], None],
) -> PartReport:
    """Measure the ops of a part on this machine, as `threadcast profile` measures those of a network.

    `known` are the stored measurements of these ops on machines of this kind, `changes` those of the kind. Each
    measurement is told as soon as it is made: `tell(number, document)`. Raises MeasurementError where this is a machine
    of another kind.
    """
    machine = read_machine(cores=manner.cores)
    if machine.fingerprint != part.kind:
        raise MeasurementError(f"this machine has become another one: {machine.fingerprint}, it was {part.kind}")
    keep_freed_memory(one_heap=True)
    store = _Told(known, changes, tell)
    campaign = Campaign(
        LoneOps(machine), proposer, store, enough=manner.enough, check=manner.check,
        max_age_days=manner.max_age_days, mean_s=manner.mean_s, tolerance=manner.tolerance,
        watch=LoadWatch.of(machine) if manner.alone else None,
    )  # fmt: skip
    ops = tuple(op for op, runs in zip(part.ops, part.runs, strict=True) for _ in range(runs))
    report = campaign.run(OpGraph(tuple(map(str, range(len(ops)))), ops))
    return PartReport(report.measured, report.reused, dict(report.failed))


class _Told:
    """A campaign's store that knows what it was given, and tells of what is added."""

    def __init__(
        self, known: Collection[Measurement], changes: MachineChanges, tell: Callable[[int, Mapping[str, Any]], None]
    ) -> None:
        self._known, self._changes, self._tell = known, changes, tell
        self._count = 0

    def measurements(
        self, *, machine: str | None = None, keys: Collection[str] | None = None
    ) -> list[Measurement]:  # fmt: skip
        return [
            m
            for m in self._known
            if (machine is None or m.machine.fingerprint == machine) and (keys is None or m.op.key in keys)
        ]

    def changes(self, machine: str) -> MachineChanges:
        return self._changes

    def add(self, measurements: Iterable[Measurement]) -> int:
        added = 0
        for measurement in measurements:
            self._tell(self._count, measurement_document(measurement))
            self._count += 1
            added += 1
        return added
