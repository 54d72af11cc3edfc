"""Which events can be counted here, and for each of the others why not and what to do about it."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from threadcast.collector.counters.core_pmus import CorePmu
from threadcast.collector.counters.events import EVENTS, Event
from threadcast.collector.counters.perf_event import KERNEL, Kernel

_PARANOID = "proc/sys/kernel/perf_event_paranoid"


@dataclass(frozen=True, slots=True)
class CounterStatus:
    """Whether an event can be counted here. If not, `reason` says why and what to do about it; else it is None."""

    name: str
    kind: Literal["hardware", "software"]
    available: bool
    reason: str | None = None


def availability(
    events: Iterable[Event] = EVENTS, *, pmus: Sequence[CorePmu] = (), kernel: Kernel = KERNEL
) -> Mapping[str, CounterStatus]:
    """Try every event on the calling thread and say, by name, which can be counted and why the others cannot.

    On a hybrid machine (`pmus`) an event must be countable on every kind of core.
    """
    found = {}
    for event in events:
        reason = None
        for pmu in pmus if pmus and event.kind == "hardware" else (None,):
            try:
                kernel.close(kernel.open(event.on(pmu), 0, leader=None))
            except OSError as error:
                reason = refusal(error) + (f" ({pmu.name})" if pmu else "")
                break
        found[event.name] = CounterStatus(event.name, event.kind, reason is None, reason)
    return found


def refusal(error: OSError, *, root: Path = Path("/")) -> str:
    """Why the kernel would not open an event, and what to do about it."""
    if error.errno in (errno.EACCES, errno.EPERM):
        with contextlib.suppress(OSError):
            level = (root / _PARANOID).read_text().strip()
            return (
                f"not permitted (perf_event_paranoid={level}); lower it with `sysctl kernel.perf_event_paranoid=1`, "
                f"or in a container allow perf_event_open and CAP_PERFMON"
            )
        return "not permitted; in a container allow perf_event_open and CAP_PERFMON"
    if error.errno in (errno.ENOENT, errno.EOPNOTSUPP, errno.ENODEV, errno.EINVAL):
        return "this machine does not count it (no performance counters, as in most virtual machines, or no such event)"
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return "too many open files: one is needed for every event and thread; raise `ulimit -n`"
    if error.errno == errno.ENOSYS:
        return "this system has no perf_event_open"
    return error.strerror or str(error)


def list_unavailable(reasons: Mapping[str, str]) -> str:
    """One line of text with the reasons by event name; events with the same reason are listed together."""
    names: dict[str, list[str]] = {}
    for name, reason in reasons.items():
        names.setdefault(reason, []).append(name)
    return "; ".join(f"{', '.join(named)}: {reason}" for reason, named in names.items())
