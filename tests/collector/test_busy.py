"""How much of the cpus others use, from made-up and real /proc/stat."""

from __future__ import annotations

import itertools
import os
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from threadcast.collector.busy import (
    CpuTimes,
    Load,
    LoadWatch,
    load_between,
    measure_load,
    read_cpu_times,
    refuse_busy,
)
from threadcast.core.errors import BusyMachine, InvalidInput, MeasurementError


def write_stat(root: Path, *cpus: tuple[int, ...]) -> None:
    """user nice system idle iowait irq softirq steal guest guest_nice of each cpu."""
    (root / "proc").mkdir(exist_ok=True)
    lines = [f"cpu{i} {' '.join(map(str, fields))}" for i, fields in enumerate(cpus)]
    (root / "proc/stat").write_text("cpu  1 1 1 1 1 1 1 1 0 0\n" + "\n".join(lines) + "\nintr 5 6\nctxt 12\n")


def watch(root: Path, before: list[tuple[int, ...]], after: list[tuple[int, ...]], own_s: float = 0.0) -> Load:
    """The load between two contents of /proc/stat, 0.5 s apart, in which this process used `own_s`."""
    write_stat(root, *before)
    return measure_load(
        range(len(before)),
        root=root,
        sleep=lambda _: write_stat(root, *after),
        clock=itertools.count(0.0, 0.5).__next__,
        own_clock=itertools.count(3.0, own_s).__next__,
    )


IDLE = (100, 0, 50, 1000, 10, 0, 0, 0, 0, 0)


def later(*, user: int = 0, nice: int = 0, idle: int = 0, waiting: int = 0, stolen: int = 0) -> tuple[int, ...]:
    return (100 + user, nice, 50, 1000 + idle, 10 + waiting, 0, 0, stolen, 0, 0)


def test_an_idle_machine_has_no_load(tmp_path):
    load = watch(tmp_path, [IDLE, IDLE], [later(idle=50), later(idle=20, waiting=30)])
    assert load == Load(0.0, 0.0, 0.0, 2)
    refuse_busy(load)


def test_the_share_of_others_is_over_all_cpus_and_the_busiest_is_named(tmp_path):
    load = watch(tmp_path, [IDLE, IDLE], [later(user=25, nice=15, idle=10), later(idle=50)])
    assert load.share == pytest.approx(0.4)
    assert load.busiest == pytest.approx(0.8)
    with pytest.raises(BusyMachine, match=r"40% of the 2 cpus .* busiest 80%\); the limit is 10%.*--allow-busy"):
        refuse_busy(load)


def test_stolen_time_counts_and_is_named(tmp_path):
    load = watch(tmp_path, [IDLE], [later(idle=30, stolen=20)])
    assert load.share == load.stolen == pytest.approx(0.4)
    with pytest.raises(BusyMachine, match="40% taken by other virtual machines"):
        refuse_busy(load)


def test_this_processs_own_use_is_not_held_against_it(tmp_path):
    load = watch(tmp_path, [IDLE, IDLE], [later(user=50), later(idle=50)], own_s=0.5)
    assert load == Load(0.0, 0.0, 0.0, 2)


def test_work_on_a_second_hardware_thread_counts_as_work_on_its_core(tmp_path):
    """Of four cores of two hardware threads one is used by another process, on either thread."""
    cores = [(0, 4), (1, 5), (2, 6), (3, 7)]
    write_stat(tmp_path, *[IDLE] * 8)
    before = read_cpu_times(cores, root=tmp_path, clock=lambda: 0.0, own_clock=lambda: 0.0)
    for used in (1, 5):
        write_stat(tmp_path, *[later(user=50) if cpu == used else later(idle=50) for cpu in range(8)])
        after = read_cpu_times(cores, root=tmp_path, clock=lambda: 0.5, own_clock=lambda: 0.0)
        assert load_between(before, after) == Load(0.25, 1.0, 0.0, 4)


def test_this_processs_use_of_first_hardware_threads_hides_nobody_on_the_second(tmp_path):
    write_stat(tmp_path, *[IDLE] * 4)
    before = read_cpu_times([(0, 2), (1, 3)], root=tmp_path, clock=lambda: 0.0, own_clock=lambda: 0.0)
    write_stat(tmp_path, later(user=50), later(user=50), later(user=50), later(idle=50))
    after = read_cpu_times([(0, 2), (1, 3)], root=tmp_path, clock=lambda: 0.5, own_clock=lambda: 1.0)
    assert load_between(before, after).share == pytest.approx(0.5)


def test_the_limit_can_be_moved(tmp_path):
    load = watch(tmp_path, [IDLE], [later(user=10, idle=40)])
    with pytest.raises(BusyMachine):
        refuse_busy(load)
    refuse_busy(load, limit=0.25)


def test_a_watch_tells_of_the_last_half_second_and_of_all_of_it():
    moments = iter([
        CpuTimes({0: (0, 0, 0)}, 0.0, 0.0),
        CpuTimes({0: (5, 0, 20)}, 0.0, 0.2),
        CpuTimes({0: (45, 0, 60)}, 0.0, 0.6),
        CpuTimes({0: (45, 0, 80)}, 0.0, 0.8),
        CpuTimes({0: (45, 0, 120)}, 0.0, 1.2),
    ])  # fmt: skip
    watch = LoadWatch(moments.__next__)
    assert watch.recent() is None
    shares = [load.share for _ in range(3) if (load := watch.recent())]
    assert shares == [pytest.approx(0.75), pytest.approx(0.75), 0.0]
    assert watch.overall().share == pytest.approx(45 / 120)


def test_a_missing_or_garbled_stat_is_a_measurement_error(tmp_path):
    with pytest.raises(MeasurementError, match="proc/stat"):
        read_cpu_times([0], root=tmp_path)
    write_stat(tmp_path, (1, 2))
    with pytest.raises(MeasurementError, match="does not say"):
        read_cpu_times([0], root=tmp_path)
    write_stat(tmp_path, IDLE)
    with pytest.raises(MeasurementError, match=r"no cpus \[7\]"):
        read_cpu_times([0, 7], root=tmp_path)
    with pytest.raises(InvalidInput, match="cpus is empty"):
        measure_load([], root=tmp_path)


def test_a_busy_loop_of_another_process_is_seen_for_real():
    cpus = sorted(os.sched_getaffinity(0))
    before = read_cpu_times(cpus)
    child = os.spawnvp(os.P_NOWAIT, "sh", ["sh", "-c", "while :; do :; done"])
    try:
        deadline_s = time.monotonic() + 30
        while (load := load_between(before, read_cpu_times(cpus))).busiest < 0.02 and time.monotonic() < deadline_s:
            pass
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)
    assert load.busiest >= 0.02


ticks = st.tuples(*[st.integers(0, 1000)] * 3)


@given(st.dictionaries(st.integers(0, 3), ticks, min_size=1), st.floats(0, 10), st.floats(0, 5))
def test_shares_are_between_none_and_all(steps, own_s, passed_s):
    before = CpuTimes(dict.fromkeys(steps, (10, 10, 10)), 0.0, 0.0)
    grown = {cpu: (10 + busy, 10 + min(busy, stolen), 10 + busy + idle) for cpu, (busy, stolen, idle) in steps.items()}
    load = load_between(before, CpuTimes(grown, own_s, passed_s))
    assert 0 <= load.share <= load.busiest <= 1
    assert 0 <= load.stolen <= 1
