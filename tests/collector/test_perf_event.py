"""The real kernel: software events in groups, events of one CPU, and the processor's few debug registers."""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

import pytest

from threadcast.collector.counters import EVENTS, Event, ThreadCounters, availability, plan_counting
from threadcast.collector.counters.core_pmus import CorePmu
from threadcast.collector.counters.events import HARDWARE, SOFTWARE
from threadcast.collector.counters.passes import CountingPlan, form_groups, is_counted
from threadcast.collector.counters.perf_event import Kernel, OpenGroup, perf_event_open
from threadcast.core.errors import MeasurementError

BY_NAME = {event.name: event for event in EVENTS}
PAGE_FAULTS, TASK_CLOCK = BY_NAME["page_faults"], BY_NAME["task_clock_ns"]
SOFTWARE_EVENTS = tuple(event for event in EVENTS if event.kind == "software" and availability()[event.name].available)
CPUS = sorted(os.sched_getaffinity(0))
needs_two_cpus = pytest.mark.skipif(len(CPUS) < 2, reason="needs two CPUs")
PAGES = 256
DEBUG_REGISTERS = 4  # of x86-64


def touch_pages() -> None:
    with mmap.mmap(-1, PAGES * mmap.PAGESIZE) as memory:
        for page in range(PAGES):
            memory[page * mmap.PAGESIZE] = 1


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def plan_of(*events: Event) -> CountingPlan:
    return plan_counting(events)


@contextmanager
def commanded_thread(command: Callable[[], None]) -> Iterator[tuple[int, Callable[[], None]]]:
    """A thread that exists already and runs `command` when told; gives its id and a call that waits for it."""
    go, done, stop = threading.Event(), threading.Event(), threading.Event()

    def serve() -> None:
        while True:
            go.wait()
            go.clear()
            if stop.is_set():
                return
            command()
            done.set()

    thread = threading.Thread(target=serve)
    thread.start()

    def call() -> None:
        done.clear()
        go.set()
        done.wait()

    try:
        yield thread.native_id or 0, call
    finally:
        stop.set()
        go.set()
        thread.join()


def faults(counters: ThreadCounters) -> float:
    count = counters.stop()["page_faults"]
    assert count is not None
    return count


def test_a_group_is_counted_only_while_it_is_enabled():
    with closing(OpenGroup(SOFTWARE_EVENTS, 0)) as group:
        touch_pages()
        group.enable()
        group.disable()
        assert group.read()["page_faults"].value < PAGES
        group.enable()
        touch_pages()
        group.disable()
        touch_pages()
        found = group.read()
    assert list(found) == [event.name for event in SOFTWARE_EVENTS]
    assert PAGES <= found["page_faults"].value < 2 * PAGES
    (times,) = {(reading.enabled_ns, reading.running_ns) for reading in found.values()}
    assert times[0] == times[1] > 0
    assert found["task_clock_ns"].value == pytest.approx(times[0], rel=0.1)


def test_the_events_of_a_group_are_told_apart_by_their_ids():
    with closing(OpenGroup(tuple(reversed(SOFTWARE_EVENTS)), 0)) as group:
        group.enable()
        touch_pages()
        group.disable()
        found = group.read()
    assert found["page_faults"].value < 10 * PAGES < found["task_clock_ns"].value


def test_threads_that_exist_already_and_those_made_while_counting_are_counted():
    with commanded_thread(touch_pages) as (_, work), ThreadCounters(plan_of(PAGE_FAULTS)) as counters:
        counters.start()
        work()
        thread = threading.Thread(target=touch_pages)
        thread.start()
        thread.join()
        assert faults(counters) >= 2 * PAGES


def test_only_the_threads_asked_for_are_counted():
    with (
        commanded_thread(touch_pages) as (thread, work),
        ThreadCounters(plan_of(PAGE_FAULTS), threads=[thread]) as counters,
    ):
        counters.start()
        touch_pages()
        assert faults(counters) < PAGES
        counters.start()
        work()
        assert faults(counters) >= PAGES


def test_stopping_before_starting_is_an_error():
    with ThreadCounters(plan_of(PAGE_FAULTS)) as counters:
        with pytest.raises(MeasurementError, match="start"):
            counters.stop()
        counters.start()
        counters.stop()
        with pytest.raises(MeasurementError, match="start"):
            counters.stop()


def test_every_event_is_read_or_has_a_reason():
    files, statuses = open_files(), availability()
    assert open_files() == files
    assert all(status.available == (status.reason is None) for status in statuses.values())
    with ThreadCounters() as counters:
        found = dict.fromkeys(BY_NAME)
        for _ in range(counters.passes):
            counters.start()
            touch_pages()
            found |= {name: count for name, count in counters.stop().items() if count is not None}
    assert list(found) == list(BY_NAME)
    for event in EVENTS:
        assert (found[event.name] is None) == (event.name in counters.unavailable)
        if event.kind == "software":
            assert found[event.name] is not None


def test_files_are_closed_when_opening_breaks_off():
    class Interrupted(Kernel):
        left = 3

        def open(self, event: Event, thread: int, *, leader: int | None) -> int:
            if not self.left:
                raise KeyboardInterrupt
            self.left -= 1
            return super().open(event, thread, leader=leader)

    files, plan = open_files(), plan_of(PAGE_FAULTS, TASK_CLOCK)
    threads = [threading.get_native_id()] * 2
    with pytest.raises(KeyboardInterrupt), ThreadCounters(plan, threads=threads, kernel=Interrupted()):
        pass
    assert open_files() == files


def open_on(cpu: int, config: int, thread: int, leader: int | None) -> int:
    """A software event that is counted only while the thread runs on `cpu`, as those of one kind of core are."""
    attribute = ctypes.create_string_buffer(112)
    flags = (leader is None) | 1 << 5 | 1 << 6
    struct.pack_into("=IIQQQQQ", attribute, 0, SOFTWARE, 112, config, 0, 0, 0b1111, flags)
    return perf_event_open(attribute, thread, leader, cpu=cpu)


class TwoKindsOfCore(Kernel):
    """Two CPUs as two kinds of core with a PMU each; software events in place of the hardware events asked for."""

    def open(self, event: Event, thread: int, *, leader: int | None) -> int:
        return open_on(KINDS[event.config >> 32], event.config & 0xFFFFFFFF, thread, leader)


KINDS = {7: CPUS[0], 8: CPUS[-1]}
"""CPU by type of its PMU."""


@needs_two_cpus
def test_a_thread_that_changes_between_kinds_of_core_is_counted_on_each():
    def work() -> None:
        for cpu in KINDS.values():
            os.sched_setaffinity(0, {cpu})
            touch_pages()
        os.sched_setaffinity(0, CPUS)

    events = [Event("page_faults", HARDWARE, PAGE_FAULTS.config), Event("task_clock_ns", HARDWARE, TASK_CLOCK.config)]
    pmus = [CorePmu(f"cpu_kind_{number}", number, frozenset({cpu})) for number, cpu in KINDS.items()]
    files, kernel = open_files(), TwoKindsOfCore()
    plan = plan_counting(events, pmus=pmus, kernel=kernel)
    assert plan.groups == (tuple(events),)
    with (
        commanded_thread(work) as (thread, call),
        ThreadCounters(plan, threads=[thread], kernel=kernel) as counters,
    ):
        counters.start()
        call()
        counts = counters.stop()
    assert 2 * PAGES <= counts["page_faults"] < 3 * PAGES
    assert open_files() == files


class Breakpoints(Kernel):
    """Counts writes to memory of its own in place of the events asked for, by the processor's debug registers.

    Like performance counters they are few, and the kernel refuses a group with more events than there are.
    """

    def __init__(self) -> None:
        self.words = (ctypes.c_uint64 * 16)()

    def open(self, event: Event, thread: int, *, leader: int | None) -> int:
        attribute = ctypes.create_string_buffer(112)
        flags = (leader is None) | 1 << 5 | 1 << 6
        struct.pack_into("=IIQQQQQ", attribute, 0, 5, 112, 0, 0, 0, 0b1111, flags)
        struct.pack_into("=QQ", attribute, 56, ctypes.addressof(self.words) + 8 * event.config, 8)
        struct.pack_into("=I", attribute, 52, 2)  # writes
        return perf_event_open(attribute, thread, leader)


def has_debug_registers() -> bool:
    writes = [Event(str(i), 0, i) for i in range(DEBUG_REGISTERS)]
    return is_counted(writes, kernel=Breakpoints())


needs_debug_registers = pytest.mark.skipif(not has_debug_registers(), reason="needs x86-64's debug registers")
WRITES = [Event(f"writes_{i}", 0, i) for i in range(10)]


@needs_debug_registers
def test_groups_grow_until_the_kernel_refuses():
    files, kernel = open_files(), Breakpoints()
    groups = form_groups(WRITES, lambda group: is_counted(group, kernel=kernel))
    assert [len(group) for group in groups] == [DEBUG_REGISTERS, DEBUG_REGISTERS, 2]
    assert open_files() == files


@pytest.mark.needs_pmu
@pytest.mark.skipif(not availability()["instructions"].available, reason="no hardware counters here")
def test_every_hardware_event_is_counted_in_some_pass_without_being_scaled():
    with ThreadCounters(threads=[0]) as counters:
        found = {}
        for _ in range(counters.passes):
            counters.start()
            sum(range(10**6))
            found |= {name: count for name, count in counters.stop().items() if count is not None}
    assert found["instructions"] > 10**6
