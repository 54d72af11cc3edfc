"""A kernel with a simulated processor: few counters, kinds of cores. Every event happens once a nanosecond."""

from __future__ import annotations

import errno
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from threadcast.collector.counters.events import Event
from threadcast.collector.counters.perf_event import GroupReading, Kernel


@dataclass
class _Opened:
    event: Event
    thread: int
    leader: int
    enabled: bool = False
    enabled_ns: int = 0
    running_ns: int = 0
    value: int = 0


@dataclass
class FakeKernel(Kernel):
    """Counts for threads that `run` says have run.

    `counters`: how many hardware events the processor counts at once, and the kernel refuses larger groups; `taken` of
    them are held by something else, which the kernel does not know when a group is opened. `starved`: threads whose
    hardware events get no counter. `kind_of`: by thread the type of the PMU of the core on which it runs. `most_open`:
    how many events may be open. `faster` multiplies a thread's events.
    """

    counters: int = 4
    taken: int = 0
    starved: Collection[int] = ()
    kind_of: Mapping[int, int] = field(default_factory=dict)
    unknown: Collection[int] = ()
    most_open: int = 1 << 20
    faster: Mapping[int, int] = field(default_factory=dict)
    ended: Collection[int] = ()
    opened: dict[int, _Opened] = field(default_factory=dict)
    peak: int = 0
    log: list[tuple[str, int]] = field(default_factory=list)

    def open(self, event: Event, thread: int, *, leader: int | None) -> int:
        if thread in self.ended:
            raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH))
        if event.config >> 32 in self.unknown and event.kind == "hardware":
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT))
        if len(self.opened) >= self.most_open:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        group = [own.event for own in self.opened.values() if own.leader == leader]
        if sum(own.kind == "hardware" for own in (*group, event)) > self.counters:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        number = max(self.opened, default=0) + 1
        self.opened[number] = _Opened(event, thread, number if leader is None else leader)
        self.peak = max(self.peak, len(self.opened))
        return number

    def identify(self, descriptor: int) -> int:
        return 1000 + descriptor

    def enable(self, leader: int) -> None:
        self.log.append(("enable", self.opened[leader].thread))
        self.opened[leader].enabled = True

    def disable(self, leader: int) -> None:
        self.log.append(("disable", self.opened[leader].thread))
        self.opened[leader].enabled = False

    def read(self, leader: int) -> GroupReading:
        self._count(0, 10)  # a thread that reads its own events runs
        first = self.opened[leader]
        members = {self.identify(d): own.value for d, own in self.opened.items() if own.leader == leader}
        return GroupReading(first.enabled_ns, first.running_ns, dict(reversed(members.items())))

    def close(self, descriptor: int) -> None:
        del self.opened[descriptor]

    def run(self, thread: int, nanoseconds: int, *, share: float = 1.0) -> None:
        """A thread runs; its events have counters for `share` of the time."""
        self._count(thread, nanoseconds, share)

    def _count(self, thread: int, nanoseconds: int, share: float = 1.0) -> None:
        for number, leading in self.opened.items():
            if number != leading.leader or not leading.enabled or leading.thread != thread:
                continue
            members = [own for own in self.opened.values() if own.leader == number]
            counted = round(nanoseconds * share) if self._has_counters(leading, members) else 0
            leading.enabled_ns += nanoseconds
            leading.running_ns += counted
            for own in members:
                own.value += counted * self.faster.get(thread, 1)

    def _has_counters(self, leading: _Opened, members: list[_Opened]) -> bool:
        wanted = [own.event for own in members if own.event.kind == "hardware"]
        if not wanted:
            return True
        kind = leading.event.config >> 32
        fits = len(wanted) <= self.counters - self.taken and leading.thread not in self.starved
        return fits and (not kind or kind == self.kind_of.get(leading.thread, kind))
