"""Counting through `perf_event_open(2)`, called by ctypes.

Every event is opened once for each thread id: an event of the whole process, even an inherited one, misses the pools
of threads that exist already. Events are also inherited, so that threads which a counted thread starts later are
counted too. Events that the processor cannot count all at once take turns; each count is multiplied by time enabled
over time running.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import platform
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Literal, NamedTuple, Self

from threadcast.collector.counters.events import EVENTS, Event
from threadcast.core.errors import MeasurementError
from threadcast.threads.affinity import thread_ids

_SYSCALLS = {"x86_64": 298, "aarch64": 241, "riscv64": 241, "ppc64le": 319, "s390x": 331}
"""Number of `perf_event_open` by `platform.machine()`."""

_ATTRIBUTE_BYTES = 112  # PERF_ATTR_SIZE_VER5, of Linux 4.1
_READ_FORMAT = 0b11  # total time enabled and total time running, behind the value
_INHERIT, _EXCLUDE_KERNEL, _EXCLUDE_HYPERVISOR = 1 << 1, 1 << 5, 1 << 6
_CLOSE_ON_EXEC = 8
_PARANOID = "proc/sys/kernel/perf_event_paranoid"

Opener = Callable[[Event, int], int]
"""A function that opens an event for a thread id and returns the file descriptor; OSError says why it cannot."""


@dataclass(frozen=True, slots=True)
class CounterStatus:
    """Whether an event can be counted here. If not, `reason` says why and what to do about it; else it is None."""

    name: str
    kind: Literal["hardware", "software"]
    available: bool
    reason: str | None = None


class Reading(NamedTuple):
    """The kernel's count of one event in one thread.

    `enabled_ns` is the time in nanoseconds since it was opened, `running_ns` the part of it in which it was counted.
    """

    value: int
    enabled_ns: int
    running_ns: int


def open_event(event: Event, thread: int) -> int:
    """The file descriptor of a counter that counts from now on; thread 0 is the calling one. OSError where the kernel
    refuses."""
    number = _SYSCALLS.get(platform.machine())
    if platform.system() != "Linux" or number is None:
        raise OSError(errno.ENOSYS, f"no perf_event_open for {platform.system()} on {platform.machine()}")
    if event.kind == "hardware":
        return _call(number, event, thread, _EXCLUDE_KERNEL | _EXCLUDE_HYPERVISOR)
    try:
        return _call(number, event, thread, _EXCLUDE_HYPERVISOR)
    except PermissionError:
        if event.in_kernel:
            raise
        return _call(number, event, thread, _EXCLUDE_KERNEL | _EXCLUDE_HYPERVISOR)


def _call(number: int, event: Event, thread: int, flags: int) -> int:
    attribute = ctypes.create_string_buffer(_ATTRIBUTE_BYTES)
    # type, size, config, sample period, sample type, read format, flags; the rest stays zero
    struct.pack_into(
        "=IIQQQQQ", attribute, 0, event.type, _ATTRIBUTE_BYTES, event.config, 0, 0, _READ_FORMAT, flags | _INHERIT
    )
    library = ctypes.CDLL(None, use_errno=True)
    every_cpu, no_group = ctypes.c_int(-1), ctypes.c_int(-1)
    descriptor = library.syscall(
        ctypes.c_long(number), attribute, ctypes.c_int(thread), every_cpu, no_group, ctypes.c_ulong(_CLOSE_ON_EXEC)
    )
    if descriptor < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return int(descriptor)


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


def availability(events: Iterable[Event] = EVENTS, *, opener: Opener = open_event) -> Mapping[str, CounterStatus]:
    """Try every event on the calling thread and say, by name, which can be counted and why the others cannot."""
    found = {}
    for event in events:
        try:
            os.close(opener(event, 0))
        except OSError as error:
            found[event.name] = CounterStatus(event.name, event.kind, False, refusal(error))
        else:
            found[event.name] = CounterStatus(event.name, event.kind, True)
    return found


class CounterGroup:
    """Counts events of some threads: `with CounterGroup() as group: group.start(); work(); counts = group.read()`.

    `threads` are kernel thread ids (None: all threads that this process has when the block is entered). Threads that
    they start later are counted too. An event that cannot be opened for every one of them is read as None, and
    `unavailable` has the reason by event name. All file descriptors are closed when the block is left.
    """

    def __init__(
        self, events: Sequence[Event] = EVENTS, *, threads: Sequence[int] | None = None, opener: Opener = open_event
    ) -> None:
        self._events = tuple(events)
        self._threads = threads
        self._opener = opener
        self._descriptors: dict[str, tuple[int, ...]] = {}
        self._before: dict[str, list[Reading]] = {}
        self.unavailable: dict[str, str] = {}

    def __enter__(self) -> Self:
        threads = thread_ids() if self._threads is None else tuple(self._threads)
        try:
            for event in self._events:
                self._open(event, threads)
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def start(self) -> None:
        """Begin to count; `read` returns counts from here on."""
        self._before = {name: _read_all(opened) for name, opened in self._descriptors.items()}

    def read(self) -> dict[str, float | None]:
        """Counts since `start` by event name, summed over the threads; None for an event that was not counted.

        MeasurementError before the first `start`.
        """
        if not self._before and self._descriptors:
            raise MeasurementError("counters were read before they were started; call start() first")
        counts: dict[str, float | None] = {event.name: None for event in self._events}
        for name, opened in self._descriptors.items():
            counts[name] = scaled_sum(self._before[name], _read_all(opened))
        return counts

    def stop(self) -> dict[str, float | None]:
        """Return what `read` returns, and end counting until the next `start`."""
        counts = self.read()
        self._before = {}
        return counts

    def _open(self, event: Event, threads: Iterable[int]) -> None:
        opened: list[int] = []
        try:
            for thread in threads:
                with contextlib.suppress(ProcessLookupError):  # the thread has ended meanwhile
                    opened.append(self._opener(event, thread))
        except OSError as error:
            _close_all(opened)
            self.unavailable[event.name] = refusal(error)
        except BaseException:
            _close_all(opened)
            raise
        else:
            self._descriptors[event.name] = tuple(opened)

    def _close(self) -> None:
        for opened in self._descriptors.values():
            _close_all(opened)
        self._descriptors, self._before = {}, {}


def list_unavailable(reasons: Mapping[str, str]) -> str:
    """One line of text with the reasons by event name; events with the same reason are listed together."""
    names: dict[str, list[str]] = {}
    for name, reason in reasons.items():
        names.setdefault(reason, []).append(name)
    return "; ".join(f"{', '.join(named)}: {reason}" for reason, named in names.items())


def scaled_sum(before: Iterable[Reading], after: Iterable[Reading]) -> float | None:
    """The number of events between two readings of some threads, scaled to the whole time of counting.

    A thread that did not run adds 0. None where a thread ran while its counter never had its turn: its count is
    unknown.
    """
    total = 0.0
    for early, late in zip(before, after, strict=True):
        value, enabled, running = (now - then for now, then in zip(late, early))
        if running == 0 and enabled > 0:
            return None
        if running:
            total += value * enabled / running
    return total


def _read_all(descriptors: Iterable[int]) -> list[Reading]:
    return [Reading(*struct.unpack("=QQQ", os.read(descriptor, 24))) for descriptor in descriptors]


def _close_all(descriptors: Iterable[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
