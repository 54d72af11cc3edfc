"""Which events are counted at the same time: groups that the processor takes, in passes.

A processor has a few counters (4 to 8 a hardware thread are common). A group of events is counted as a whole or not at
all, so a group must not have more events than there are counters. How many there are is found by opening groups of
growing size: the kernel refuses one that can never be counted, and one that is never counted although it was opened
(the kernel's watchdog holds a counter, say) shows it by its time running.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass

from threadcast.collector.counters.availability import CounterStatus, availability
from threadcast.collector.counters.core_pmus import CorePmu, read_core_pmus
from threadcast.collector.counters.events import EVENTS, Event
from threadcast.collector.counters.perf_event import KERNEL, Kernel, OpenGroup

PROBE_S = 0.02
"""Seconds for which a group must have been given no counters to be one that never gets any: events that take turns
change places at every tick of the kernel's clock, 1 to 10 ms."""

Group = tuple[Event, ...]
"""Events that are counted at the same time."""


@dataclass(frozen=True, slots=True)
class CountingPlan:
    """What can be counted here, and how.

    `groups` are hardware events by what the processor counts at the same time; `software` are the events that the
    kernel counts, as many as are wanted. `pmus` are the kinds of cores, empty where all are alike. `statuses` says of
    each event whether it can be counted, and if not, why.
    """

    groups: tuple[Group, ...]
    software: Group
    pmus: tuple[CorePmu, ...]
    statuses: Mapping[str, CounterStatus]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the events that can be counted."""
        return tuple(name for name, status in self.statuses.items() if status.available)

    @property
    def unavailable(self) -> dict[str, str]:
        """Why the others cannot be counted, by name."""
        return {name: status.reason for name, status in self.statuses.items() if status.reason is not None}


def plan_counting(
    events: Iterable[Event] = EVENTS, *, pmus: Sequence[CorePmu] | None = None, kernel: Kernel = KERNEL
) -> CountingPlan:
    """Try what this machine can count; `pmus` None reads the kinds of the cores that this process may use."""
    listed = tuple(events)
    if pmus is None:
        pmus = read_core_pmus(cpus=os.sched_getaffinity(0))
    statuses = dict(availability(listed, pmus=pmus, kernel=kernel))
    usable = [event for event in listed if statuses[event.name].available]
    groups = form_groups(
        [event for event in usable if event.kind == "hardware"], lambda group: _are_counted(group, pmus, kernel)
    )
    for (event,) in [group for group in groups if len(group) == 1]:
        if not _are_counted((event,), pmus, kernel):
            reason = "never gets a counter; end what else counts (perf, the kernel's nmi_watchdog)"
            statuses[event.name] = CounterStatus(event.name, event.kind, False, reason)
    return CountingPlan(
        tuple(group for group in groups if statuses[group[0].name].available),
        tuple(event for event in usable if event.kind == "software"), tuple(pmus), statuses,
    )  # fmt: skip


def form_groups(events: Iterable[Event], are_counted: Callable[[Group], bool]) -> tuple[Group, ...]:
    """The events, in order, in groups that grow while `are_counted` says that such a group is counted."""
    groups: list[Group] = []
    for event in events:
        if groups and are_counted((*groups[-1], event)):
            groups[-1] = (*groups[-1], event)
        else:
            groups.append((event,))
    return tuple(groups)


def _are_counted(group: Group, pmus: Sequence[CorePmu], kernel: Kernel) -> bool:
    """Whether cores of every kind count these events at the same time."""
    for pmu in pmus or (None,):
        with ThreadPoolExecutor(1) as thread:
            if pmu is not None:
                thread.submit(os.sched_setaffinity, 0, pmu.cpus & os.sched_getaffinity(0)).result()
            if not thread.submit(is_counted, [event.on(pmu) for event in group], kernel=kernel).result():
                return False
    return True


def is_counted(group: Sequence[Event], *, kernel: Kernel = KERNEL, clock: Callable[[], float] = time.monotonic) -> bool:
    """Whether the core of the calling thread counts these events at the same time."""
    try:
        opened = OpenGroup(group, 0, kernel=kernel)
    except OSError:
        return False
    with closing(opened):
        end_s = clock() + PROBE_S
        opened.enable()
        while not (counted := any(reading.running_ns for reading in opened.read().values())) and clock() < end_s:
            pass
        return counted


def passes_of(plan: CountingPlan) -> tuple[tuple[Group, ...], ...]:
    """Return what is counted at the same time, in turn: a group of hardware events, and all software events."""
    whole = [(group, plan.software) for group in plan.groups or ((),)]
    return tuple(tuple(filter(None, groups)) for groups in whole if any(groups))
