"""Counts the events of a team's threads around runs of an op, as many events at a time as the processor takes."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Self

from threadcast.collector.counters.availability import refusal
from threadcast.collector.counters.core_pmus import CorePmu
from threadcast.collector.counters.counts import Reading, join_kinds_of_core, team_count
from threadcast.collector.counters.descriptors import room_for_descriptors
from threadcast.collector.counters.passes import CountingPlan, Group, passes_of, plan_counting
from threadcast.collector.counters.perf_event import KERNEL, Kernel, OpenGroup
from threadcast.core.errors import MeasurementError
from threadcast.threads.affinity import thread_ids


class ThreadCounters:
    """Counts events of some threads: `with ThreadCounters() as counters: counters.start(); run(); counters.stop()`.

    Each `start` begins the next of `passes` passes, in turn, and counts the events of that pass only: where events need
    more counters than the processor has, `passes` runs are needed to count them all. `first` is the pass that comes
    first. `plan` is what `plan_counting` returned (None: it is called here). `threads` are kernel thread ids (None: all
    threads that this process has when the block is entered); threads that they start later are counted too. Why an
    event cannot be counted is in `unavailable`, by name: each needs an open file in each thread, and none is counted
    where the process may not have so many. All files are closed when the block is left.
    """

    def __init__(
        self, plan: CountingPlan | None = None, *, threads: Sequence[int] | None = None, first: int = 0,
        kernel: Kernel = KERNEL,
    ) -> None:  # fmt: skip
        self._plan = plan_counting(kernel=kernel) if plan is None else plan
        self._threads, self._turn, self._kernel = threads, first, kernel
        self._ids: list[int] = []
        self._opened: list[list[tuple[int, OpenGroup]]] = []
        """By pass, the open groups and their threads."""
        self._counting: list[tuple[int, OpenGroup]] | None = None
        self._exit = contextlib.ExitStack()
        self.unavailable = self._plan.unavailable

    def __enter__(self) -> Self:
        self._ids = list(thread_ids() if self._threads is None else self._threads)
        passes, threads = passes_of(self._plan), list(self._ids)
        needed = sum(len(group) for groups in passes for group in groups) * len(threads) * max(1, len(self._plan.pmus))
        with contextlib.ExitStack() as stack:
            free = stack.enter_context(room_for_descriptors(needed))
            stack.callback(self._close)
            if free < needed:
                self._give_up(self._plan.names, OSError(errno.EMFILE, os.strerror(errno.EMFILE)))
                passes = ()
            for groups in passes:
                self._open(groups, threads)
            self._exit = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._exit.close()

    @property
    def passes(self) -> int:
        """How many runs are needed to count every event."""
        return max(1, len(self._opened))

    def start(self) -> None:
        """Begin to count the events of the next pass."""
        if not self._opened:
            return
        if self._counting is not None:  # an op that raised an exception
            self.stop()
        self._counting = self._opened[self._turn % len(self._opened)]
        self._turn += 1
        for _, group in reversed(self._counting):  # the first thread's last: it is this one in a team
            group.enable()

    def stop(self) -> dict[str, float | None]:
        """End counting and return the counts since `start` by event name, None for every event of another pass, and for
        those that were not counted all the time in all threads.

        MeasurementError before `start`.
        """
        counts: dict[str, float | None] = dict.fromkeys(self._plan.statuses)
        opened, self._counting = self._counting, None
        if not self._opened:
            return counts
        if opened is None:
            raise MeasurementError("counters were stopped before they were started; call start() first")
        for _, group in opened:
            group.disable()
        found: dict[str, dict[int, list[Reading]]] = {}
        for thread, group in opened:
            # the kernel reads no group that a new thread inherited while it was being opened
            with contextlib.suppress(ChildProcessError):
                for name, reading in group.read().items():
                    found.setdefault(name, {}).setdefault(thread, []).append(reading)
        for name, by_thread in found.items():
            readings = [join_kinds_of_core(by_thread[thread]) if thread in by_thread else None for thread in self._ids]
            counts[name] = team_count(readings)
        return counts

    def _open(self, groups: Sequence[Group], threads: Sequence[int]) -> None:
        opened: list[tuple[int, OpenGroup]] = []
        self._opened.append(opened)
        for group in groups:
            of_group: list[tuple[int, OpenGroup]] = []
            try:
                for thread in threads:
                    of_group += self._open_in(thread, group)
            except OSError as error:
                _close_all(of_group)
                self._give_up((event.name for event in group), error)
            except BaseException:
                _close_all(of_group)
                raise
            else:
                opened += of_group
        opened.sort(key=lambda pair: threads.index(pair[0]))

    def _open_in(self, thread: int, group: Group) -> list[tuple[int, OpenGroup]]:
        """The group in one thread, for each kind of core that it may run on; empty for a thread that has ended."""
        opened: list[tuple[int, OpenGroup]] = []
        try:
            for pmu in self._kinds(thread, group):
                events = [event.on(pmu) for event in group]
                opened.append((thread, OpenGroup(events, thread, kernel=self._kernel)))
        except ProcessLookupError:
            _close_all(opened)
            self._ids = [other for other in self._ids if other != thread]
            return []
        except BaseException:
            _close_all(opened)
            raise
        return opened

    def _kinds(self, thread: int, group: Group) -> Sequence[CorePmu | None]:
        if group[0].kind == "software" or not self._plan.pmus:
            return (None,)
        allowed = os.sched_getaffinity(thread)
        return [pmu for pmu in self._plan.pmus if pmu.cpus & allowed]

    def _give_up(self, names: Iterable[str], error: OSError) -> None:
        self.unavailable |= dict.fromkeys(names, refusal(error))

    def _close(self) -> None:
        for opened in self._opened:
            _close_all(opened)
        self._opened = []


def _close_all(opened: Iterable[tuple[int, OpenGroup]]) -> None:
    for _, group in opened:
        group.close()
