"""Says why threads wait, and what to set: stopped by a quota, pinned on top of each other, or too many."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from threadcast.core.sysfs import format_cpus
from threadcast.malleable.usage import MachineUse, ProcessUse

STOPPED, WAITS, MANY = 0.05, 0.1, 1.2
"""Share of periods in which a quota stops a process, share of time for which threads wait, and runnable threads a core,
from which on that is a cause: fewer are within what a pause of something else makes."""
_WORKS = 0.5
"""Runnable threads from which on a process counts as one that computes."""


class Cause(NamedTuple):
    """One cause: its kind ("quota", "pinned", "threads", "others"), and a line that says what to set."""

    kind: str
    text: str


def causes(use: MachineUse) -> list[Cause]:
    """Return why threads of this user's processes wait for CPUs, the surest cause first; none where they do not."""
    working = [one for one in use.processes if one.runnable >= _WORKS]
    return [*_quotas(working), *_pinned(use, working), *_threads(use, working)]


def _quotas(working: Sequence[ProcessUse]) -> Iterator[Cause]:
    for one in working:
        if one.throttled >= STOPPED and one.quota is not None:
            count = max(math.floor(one.quota), 1)
            yield Cause(
                "quota",
                f"{one.name} ({one.process}): a quota of {one.quota:g} CPUs stops it in {one.throttled:.0%} of all "
                f"periods: set {one.variable}={count}, {_exec([one])}, or raise the quota",
            )


def _pinned(use: MachineUse, working: Sequence[ProcessUse]) -> Iterator[Cause]:
    """Those whose threads have too few CPUs among them, while others are idle."""
    for cpus in sorted({one.cpus for one in working if one.cpus < use.cpus}, key=sorted):
        here = [one for one in working if one.cpus <= cpus]
        idle = len(use.idle - cpus)
        if idle and sum(one.runnable for one in here) > MANY * len(cpus) and _wait(here):
            yield Cause(
                "pinned",
                f"{_many(here)} on CPU{'s' * (len(cpus) > 1)} {format_cpus(cpus)}, while {idle} CPUs are idle: start "
                f"{_them(here)} without taskset, OMP_PROC_BIND and GOMP_CPU_AFFINITY, or {_exec(here)}",
            )


def _threads(use: MachineUse, working: Sequence[ProcessUse]) -> Iterator[Cause]:
    here = [one for one in working if one.throttled < STOPPED and one.cpus >= use.cpus]
    if not here or not _wait(here):
        return
    others = max((use.used or 0.0) - sum(one.used for one in use.processes), 0.0)
    wide = [one for one in here if one.busy > 1]
    if sum(one.runnable for one in here) <= MANY * use.cores:
        if others >= _WORKS:
            left = max(math.floor(use.cores - others), 1)
            text = f"others' processes use {others:.1f} of {use.cores} cores: wait, or use {left} (`threadcast exec`)"
            yield Cause("others", text)
        return
    each = max(use.cores // len(here), 1)
    knobs = sorted({f"{one.variable}={each}" for one in wide if one.busy > each})
    few = [f"run at most {use.cores} at a time"] if len(here) > use.cores else []
    todo = ", ".join([*(["set " + " and ".join(knobs)] if knobs else []), *few])
    todo = f"{todo}, or {_exec(here)}" if todo else _exec(here)
    yield Cause("threads", f"{_many(here)} on {use.cores} core{'s' * (use.cores > 1)}: {todo}")


def _wait(here: Sequence[ProcessUse]) -> bool:
    runnable = sum(one.runnable for one in here)
    return sum(one.runnable - one.used for one in here) >= WAITS * runnable


def _many(here: Sequence[ProcessUse]) -> str:
    counts = {max(one.busy, 1) for one in here}
    processes = f"{len(here)} process{'es' * (len(here) > 1)}"
    if len(counts) > 1:
        return f"{processes} with {sum(max(one.busy, 1) for one in here)} threads in all"
    (count,) = counts
    return f"{processes} x {count} thread{'s' * (count > 1)}"


def _exec(here: Sequence[ProcessUse]) -> str:
    return f"run {_them(here)} with `threadcast exec`" + " beside `threadcast arbiter`" * (len(here) > 1)


def _them(here: Sequence[ProcessUse]) -> str:
    return "them" if len(here) > 1 else "it"
