"""Groups, passes, kinds of cores and open files, on a simulated processor and fake trees of /sys."""

from __future__ import annotations

import errno
import os
import resource

import pytest

from tests.collector.fake_pmu import FakeKernel
from tests.core import trees
from threadcast.collector.counters import EVENTS, CountingPlan, Event, ThreadCounters, availability, plan_counting
from threadcast.collector.counters.availability import CounterStatus, refusal
from threadcast.collector.counters.core_pmus import CorePmu, read_core_pmus
from threadcast.collector.counters.counts import Reading, join_kinds_of_core, team_count
from threadcast.collector.counters.descriptors import RESERVE, room_for_descriptors
from threadcast.collector.counters.perf_event import GroupReading

BY_NAME = {event.name: event for event in EVENTS}
HARDWARE_EVENTS = tuple(event for event in EVENTS if event.kind == "hardware")
SOFTWARE_EVENTS = tuple(event for event in EVENTS if event.kind == "software")
CYCLES = BY_NAME["cycles"]
ALL_CPUS = frozenset(os.sched_getaffinity(0))
BIG, LITTLE = CorePmu("cpu_core", 4, ALL_CPUS), CorePmu("cpu_atom", 10, ALL_CPUS)


def put_pmus(root, **pmus: tuple[int, str | None]) -> None:
    for name, (number, cpus) in pmus.items():
        trees.put(root, f"sys/bus/event_source/devices/{name}/type", number)
        if cpus is not None:
            trees.put(root, f"sys/bus/event_source/devices/{name}/cpus", cpus)


def test_a_hybrid_has_a_pmu_for_each_kind_of_core(tmp_path):
    put_pmus(tmp_path, cpu_core=(4, "0-11"), cpu_atom=(10, "12-19"), uncore_imc_0=(14, None), software=(1, None))
    big, little = CorePmu("cpu_core", 4, frozenset(range(12))), CorePmu("cpu_atom", 10, frozenset(range(12, 20)))
    assert read_core_pmus(cpus=range(20), root=tmp_path) == (little, big)
    assert read_core_pmus(cpus=range(4), root=tmp_path) == (big,)


def test_cores_of_one_kind_need_no_pmu_of_their_own(tmp_path):
    put_pmus(tmp_path, cpu=(4, None), msr=(9, None))
    assert read_core_pmus(cpus=range(4), root=tmp_path) == ()
    put_pmus(tmp_path, armv8_pmuv3_0=(7, "0-63"))
    assert read_core_pmus(cpus=range(4), root=tmp_path) == ()
    put_pmus(tmp_path, armv8_pmuv3_1=(8, "0-1"))
    assert [pmu.type for pmu in read_core_pmus(cpus=range(4), root=tmp_path)] == [7, 8], "found by files, not by names"
    assert read_core_pmus(cpus=range(4), root=tmp_path / "missing") == ()


@pytest.mark.parametrize("counters", [1, 2, 4, 6, 64])
def test_no_group_has_more_events_than_the_processor_counts(counters):
    kernel = FakeKernel(counters)
    plan = plan_counting(pmus=(), kernel=kernel)
    assert max(map(len, plan.groups)) == min(counters, len(HARDWARE_EVENTS))
    assert [event for group in plan.groups for event in group] == list(HARDWARE_EVENTS)
    assert plan.software == SOFTWARE_EVENTS
    assert plan.unavailable == {}
    assert kernel.opened == {}


def test_a_counter_that_something_else_holds_is_found_by_the_time_running():
    plan = plan_counting(HARDWARE_EVENTS[:4], pmus=(), kernel=FakeKernel(4, taken=1))
    assert list(map(len, plan.groups)) == [3, 1]


def test_events_that_never_get_a_counter_say_so():
    plan = plan_counting([CYCLES, SOFTWARE_EVENTS[0]], pmus=(), kernel=FakeKernel(4, taken=4))
    assert plan.groups == ()
    assert "nmi_watchdog" in plan.unavailable["cycles"]
    assert plan.names == (SOFTWARE_EVENTS[0].name,)


def test_an_event_that_one_kind_of_core_lacks_is_unavailable_and_names_it():
    statuses = availability([CYCLES, SOFTWARE_EVENTS[0]], pmus=(BIG, LITTLE), kernel=FakeKernel(unknown={LITTLE.type}))
    assert statuses["cycles"].reason.endswith("(cpu_atom)")
    assert statuses[SOFTWARE_EVENTS[0].name].available


def count_all(counters: ThreadCounters, kernel: FakeKernel, threads: range) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for _ in range(counters.passes):
        counters.start()
        for thread in threads:
            kernel.run(thread, 1000)
        for name, count in counters.stop().items():
            if count is not None:
                found.setdefault(name, []).append(count)
    return found


def test_each_pass_counts_its_group_and_the_software_events():
    kernel, threads = FakeKernel(4), range(1, 9)
    with ThreadCounters(plan_counting(pmus=(), kernel=kernel), threads=threads, kernel=kernel) as counters:
        assert counters.passes == 3
        found = count_all(counters, kernel, threads)
    assert found == {e.name: [8000] * (1 if e in HARDWARE_EVENTS else 3) for e in EVENTS}
    assert kernel.opened == {}


def test_the_first_threads_events_are_enabled_last_and_disabled_first():
    kernel = FakeKernel()
    plan = CountingPlan(((CYCLES,),), (), (), {"cycles": CounterStatus("cycles", "hardware", True)})
    with ThreadCounters(plan, threads=[7, 8, 9], kernel=kernel) as counters:
        counters.start()
        counters.stop()
    assert [thread for _, thread in kernel.log] == [9, 8, 7, 7, 8, 9]


def test_a_run_that_raised_does_not_count_towards_the_next():
    kernel = FakeKernel()
    with ThreadCounters(plan_counting([CYCLES], pmus=(), kernel=kernel), threads=[1], kernel=kernel) as counters:
        counters.start()
        kernel.run(1, 500)
        counters.start()
        kernel.run(1, 1000)
        assert counters.stop() == {"cycles": 1000}


def test_a_thread_on_either_kind_of_core_is_counted_once():
    kernel = FakeKernel(kind_of={1: BIG.type, 2: LITTLE.type, 0: BIG.type})
    kernel.kind_of = {1: BIG.type, 2: LITTLE.type}
    plan = plan_counting([CYCLES], pmus=(BIG, LITTLE), kernel=kernel)
    assert plan.names == ("cycles",)
    team = [os.getpid(), os.getppid()]  # threads that exist: their affinity is asked for
    with ThreadCounters(plan, threads=team, kernel=kernel) as counters:
        assert len(kernel.opened) == 4
        counters.start()
        for kinds in ((BIG, LITTLE), (LITTLE, BIG)):
            kernel.kind_of = {thread: kind.type for thread, kind in zip(team, kinds)}
            for thread in team:
                kernel.run(thread, 1000)
        assert counters.stop() == {"cycles": 4000}
    assert kernel.opened == {}


@pytest.mark.parametrize(
    ("readings", "count"),
    [
        ([Reading(7, 10, 10), Reading(0, 0, 0)], 7),
        ([Reading(0, 0, 0)], 0),
        ([Reading(7, 10, 10), Reading(0, 10, 0)], None),
        ([Reading(7, 10, 10), Reading(7, 10, 9)], None),
        ([Reading(7, 10, 10), None], None),
        ([Reading(995, 1000, 995), Reading(5, 1, 1)], 1005),
    ],
    ids=str,
)
def test_a_count_is_of_all_threads_all_the_time_or_none(readings: list[Reading | None], count: float | None):
    assert team_count(readings) == count


def test_a_thread_is_counted_by_one_kind_of_core_at_a_time():
    assert join_kinds_of_core([Reading(3, 10, 4), Reading(4, 10, 6)]) == Reading(7, 10, 10)


def test_a_group_that_the_kernel_does_not_read_leaves_no_count():
    class Unreadable(FakeKernel):
        def read(self, leader: int) -> GroupReading:
            if self.opened[leader].thread == 2 and self.opened[leader].enabled_ns:
                raise ChildProcessError(errno.ECHILD, os.strerror(errno.ECHILD))
            return super().read(leader)

    kernel = Unreadable()
    with ThreadCounters(plan_counting([CYCLES], pmus=(), kernel=kernel), threads=[1, 2], kernel=kernel) as counters:
        counters.start()
        kernel.run(1, 1000)
        assert counters.stop() == {"cycles": 1000}
        counters.start()
        kernel.run(2, 1000)
        assert counters.stop() == {"cycles": None}


def test_a_thread_that_ended_before_it_was_opened_is_left_out():
    kernel = FakeKernel(ended={2})
    with ThreadCounters(plan_counting([CYCLES], pmus=(), kernel=kernel), threads=[1, 2], kernel=kernel) as counters:
        counters.start()
        kernel.run(1, 5)
        assert counters.stop() == {"cycles": 5}


def test_too_few_open_files_cost_the_counters_and_name_the_limit(monkeypatch):
    monkeypatch.setattr("threadcast.collector.counters.descriptors._free", lambda limit: 1)
    kernel = FakeKernel()
    with ThreadCounters(plan_counting([CYCLES], pmus=(), kernel=kernel), threads=[1, 2], kernel=kernel) as counters:
        counters.start()
        assert counters.stop() == {"cycles": None}
        assert "ulimit -n" in counters.unavailable["cycles"]


def test_files_that_ran_out_meanwhile_cost_only_what_could_not_be_opened():
    kernel = FakeKernel(4)
    plan = plan_counting(pmus=(), kernel=kernel)
    kernel.most_open = 10
    with ThreadCounters(plan, threads=[1, 2], kernel=kernel) as counters:
        assert set(counters.unavailable) == {
            event.name for group in (*plan.groups[1:], plan.software) for event in group
        }
        counters.start()
        kernel.run(1, 10)
        kernel.run(2, 10)
        assert {name for name, count in counters.stop().items() if count} == {e.name for e in plan.groups[0]}
    assert kernel.opened == {}


def test_the_soft_limit_of_open_files_is_raised_and_restored():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(map(int, os.listdir("/proc/self/fd")))
    low = highest + RESERVE + 3
    resource.setrlimit(resource.RLIMIT_NOFILE, (low, hard))
    try:
        with room_for_descriptors(500) as room:
            assert room == 500
            raised, same_hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            assert low < raised <= hard
            assert same_hard == hard
            files = [os.dup(0) for _ in range(room)]
            for file in files:
                os.close(file)
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (low, hard)
        with room_for_descriptors(1) as room:
            assert room == 1
            assert resource.getrlimit(resource.RLIMIT_NOFILE) == (low, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


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
    trees.put(tmp_path, "proc/sys/kernel/perf_event_paranoid", 4)
    error = OSError(code, os.strerror(code))
    assert words in refusal(error, root=tmp_path)

    class Refusing(FakeKernel):
        def open(self, event: Event, thread: int, *, leader: int | None) -> int:
            raise error

    plan = plan_counting([CYCLES], pmus=(), kernel=Refusing())
    assert plan.names == ()
    with ThreadCounters(plan, threads=[1], kernel=Refusing()) as counters:
        counters.start()
        assert counters.stop() == {"cycles": None}
        assert counters.unavailable["cycles"]
