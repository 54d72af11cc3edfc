"""Counting: real software events; hardware ones driven through pipes where the machine has no counters."""

from __future__ import annotations

import errno
import mmap
import os
import resource
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from threadcast.collector.counters import EVENTS, CounterGroup, Event, availability
from threadcast.collector.counters.perf_event import Reading, open_event, refusal, scaled_sum
from threadcast.core.errors import MeasurementError

BY_NAME = {event.name: event for event in EVENTS}
PAGE_FAULTS, TASK_CLOCK = BY_NAME["page_faults"], BY_NAME["task_clock_ns"]
PAGES = 256


def touch_pages() -> None:
    with mmap.mmap(-1, PAGES * mmap.PAGESIZE) as memory:
        for page in range(PAGES):
            memory[page * mmap.PAGESIZE] = 1


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


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


def readings(*values: Reading) -> int:
    """A file descriptor that gives these readings one after the other, as a counter does."""
    reader, writer = os.pipe()
    os.write(writer, b"".join(struct.pack("=QQQ", *value) for value in values))
    os.close(writer)
    return reader


def test_page_faults_are_counted():
    with CounterGroup([PAGE_FAULTS]) as group:
        group.start()
        touch_pages()
        assert (group.read()["page_faults"] or 0) >= PAGES


def test_counts_begin_at_start():
    with CounterGroup([PAGE_FAULTS]) as group:
        touch_pages()
        group.start()
        assert (group.stop()["page_faults"] or 0) < PAGES


def test_a_thread_that_exists_already_is_counted():
    with commanded_thread(touch_pages) as (_, work), CounterGroup([PAGE_FAULTS]) as group:
        group.start()
        work()
        assert (group.stop()["page_faults"] or 0) >= PAGES


def test_a_thread_made_while_counting_is_counted():
    with CounterGroup([PAGE_FAULTS]) as group:
        group.start()
        thread = threading.Thread(target=touch_pages)
        thread.start()
        thread.join()
        assert (group.stop()["page_faults"] or 0) >= PAGES


def test_only_the_threads_asked_for_are_counted():
    with commanded_thread(touch_pages) as (thread, work), CounterGroup([PAGE_FAULTS], threads=[thread]) as group:
        group.start()
        touch_pages()
        between = group.read()["page_faults"] or 0
        work()
        assert between < PAGES <= (group.stop()["page_faults"] or 0)


def test_a_sleeping_thread_adds_nothing_and_hides_nothing():
    with commanded_thread(lambda: None), CounterGroup([TASK_CLOCK, PAGE_FAULTS]) as group:
        group.start()
        touch_pages()
        counts = group.stop()
    assert (counts["task_clock_ns"] or 0) > 0
    assert (counts["page_faults"] or 0) >= PAGES


def test_reading_before_starting_is_an_error():
    with CounterGroup([PAGE_FAULTS]) as group, pytest.raises(MeasurementError, match="start"):
        group.read()
    with CounterGroup([PAGE_FAULTS]) as group:
        group.start()
        group.stop()
        with pytest.raises(MeasurementError, match="start"):
            group.stop()


def test_every_event_is_read_or_has_a_reason():
    with CounterGroup() as group:
        group.start()
        touch_pages()
        counts = group.stop()
    assert list(counts) == [event.name for event in EVENTS]
    for event in EVENTS:
        if event.kind == "software":
            assert counts[event.name] is not None
        assert event.name not in group.unavailable or counts[event.name] is None


def test_availability_names_every_event_with_its_kind_and_reason():
    files = open_files()
    statuses = availability()
    assert open_files() == files
    assert set(statuses) == set(BY_NAME)
    for name, status in statuses.items():
        assert status.kind == BY_NAME[name].kind
        assert status.available == (status.reason is None)
    assert statuses["page_faults"].available


def test_file_descriptors_are_closed_also_after_an_error():
    def fail() -> None:
        with CounterGroup() as group:
            group.start()
            raise KeyError

    files = open_files()
    with pytest.raises(KeyError):
        fail()
    assert open_files() == files


def test_file_descriptors_are_closed_when_opening_breaks_off():
    opened = 0

    def interrupted(event: Event, thread: int) -> int:
        nonlocal opened
        opened += 1
        if opened == 3:
            raise KeyboardInterrupt
        return open_event(event, thread)

    files = open_files()
    with pytest.raises(KeyboardInterrupt), CounterGroup([PAGE_FAULTS, TASK_CLOCK], threads=[0, 0], opener=interrupted):
        pass
    assert open_files() == files


def test_too_few_file_descriptors_cost_the_counter_and_name_the_limit():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = open_files()
    highest = max(map(int, os.listdir("/proc/self/fd")))
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 3, hard))
        group = CounterGroup([PAGE_FAULTS], threads=[0] * (highest + 8))
        with group:
            group.start()
            assert group.read() == {"page_faults": None}
            assert "ulimit -n" in group.unavailable["page_faults"]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert open_files() == files


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (errno.EACCES, "perf_event_paranoid=4"),
        (errno.EPERM, "CAP_PERFMON"),
        (errno.ENOENT, "does not count"),
        (errno.EOPNOTSUPP, "does not count"),
        (errno.EMFILE, "ulimit -n"),
        (errno.ENOSYS, "no perf_event_open"),
        (errno.EIO, os.strerror(errno.EIO)),
    ],
)
def test_a_refused_counter_is_none_with_the_reason(code, words, tmp_path):
    (tmp_path / "proc/sys/kernel").mkdir(parents=True)
    (tmp_path / "proc/sys/kernel/perf_event_paranoid").write_text("4\n")
    error = OSError(code, os.strerror(code))
    assert words in refusal(error, root=tmp_path)

    def refuse(event: Event, thread: int) -> int:
        raise error

    assert not availability([PAGE_FAULTS], opener=refuse)["page_faults"].available
    with CounterGroup([PAGE_FAULTS], opener=refuse) as group:
        group.start()
        assert group.stop() == {"page_faults": None}
        assert group.unavailable["page_faults"]


def test_a_counter_that_shared_the_hardware_is_scaled_to_the_whole_time():
    def opener(event: Event, thread: int) -> int:
        return readings(Reading(100, 1000, 1000), Reading(160, 2000, 1500))

    with CounterGroup([BY_NAME["cycles"]], threads=[1, 2], opener=opener) as group:
        group.start()
        assert group.stop() == {"cycles": 2 * 60 * 1000 / 500}


def test_a_counter_that_never_had_its_turn_is_none():
    def opener(event: Event, thread: int) -> int:
        return readings(Reading(100, 1000, 1000), Reading(100, 2000, 1000))

    with CounterGroup([BY_NAME["cycles"]], threads=[1], opener=opener) as group:
        group.start()
        assert group.stop() == {"cycles": None}


def test_a_thread_that_ended_before_it_was_opened_is_left_out():
    def opener(event: Event, thread: int) -> int:
        if thread == 2:
            raise ProcessLookupError(errno.ESRCH, "no such thread")
        return readings(Reading(0, 0, 0), Reading(5, 10, 10))

    with CounterGroup([BY_NAME["cycles"]], threads=[1, 2], opener=opener) as group:
        group.start()
        assert group.stop() == {"cycles": 5}


@given(
    st.lists(
        st.tuples(st.integers(0, 10**9), st.integers(1, 10**9), st.integers(1, 10**9)).map(
            lambda t: (t[0], max(t[1:]), min(t[1:]))
        ),
        min_size=1,
        max_size=8,
    )
)
def test_scaling_never_loses_events(steps):
    early = [Reading(7, 11, 11)] * len(steps)
    late = [Reading(7 + value, 11 + enabled, 11 + running) for value, enabled, running in steps]
    total = scaled_sum(early, late)
    assert total is not None
    assert total >= sum(value for value, _, _ in steps) * (1 - 1e-12)


@pytest.mark.needs_pmu
@pytest.mark.skipif(not availability()["instructions"].available, reason="no hardware counters here")
def test_more_instructions_are_counted_for_more_work():
    with CounterGroup([BY_NAME["instructions"]]) as group:
        counts = []
        for work in (10**5, 10**6):
            group.start()
            sum(range(work))
            counts.append(group.stop()["instructions"] or 0.0)
    assert counts[0] > 0
    assert counts[1] > 3 * counts[0]
