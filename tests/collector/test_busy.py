"""How much of the cpus others use, from made-up and real /proc/stat."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from threadcast.collector.busy import (
    CpuTimes,
    Load,
    LoadWatch,
    load_between,
    load_document,
    read_cpu_times,
)
from threadcast.core.errors import MeasurementError


def write_stat(root: Path, *cpus: tuple[int, ...]) -> None:
    """user nice system idle iowait irq softirq steal guest guest_nice of each cpu."""
    (root / "proc").mkdir(exist_ok=True)
    lines = [f"cpu{i} {' '.join(map(str, fields))}" for i, fields in enumerate(cpus)]
    (root / "proc/stat").write_text("cpu  1 1 1 1 1 1 1 1 0 0\n" + "\n".join(lines) + "\nintr 5 6\nctxt 12\n")


def watch(root: Path, before: list[tuple[int, ...]], after: list[tuple[int, ...]], own_s: float = 0.0) -> Load:
    """The load between two contents of /proc/stat, 0.5 s apart, in which this process used `own_s`."""
    moments = []
    for at_s, own, cpus in ((0.0, 3.0, before), (0.5, 3.0 + own_s, after)):
        write_stat(root, *cpus)
        moments.append(
            read_cpu_times(range(len(cpus)), root=root, clock=lambda at_s=at_s: at_s, own_clock=lambda own=own: own)
        )
    return load_between(*moments)


IDLE = (100, 0, 50, 1000, 10, 0, 0, 0, 0, 0)


def later(*, user: int = 0, nice: int = 0, idle: int = 0, waiting: int = 0, stolen: int = 0) -> tuple[int, ...]:
    return (100 + user, nice, 50, 1000 + idle, 10 + waiting, 0, 0, stolen, 0, 0)


@pytest.mark.parametrize(
    ("after", "own_s"),
    [([later(idle=50), later(idle=20, waiting=30)], 0.0), ([later(user=50), later(idle=50)], 0.5)],
    ids=["idle", "its own use"],
)
def test_what_nobody_else_uses_is_no_load(tmp_path, after, own_s):
    load = watch(tmp_path, [IDLE, IDLE], after, own_s=own_s)
    assert load == Load(0.0, 0.0, 0.0, 2)
    assert not load.disturbs


def test_the_share_of_others_is_over_all_cpus_and_the_busiest_is_named(tmp_path):
    load = watch(tmp_path, [IDLE, IDLE], [later(user=25, nice=15, idle=10), later(idle=50)])
    assert load.share == pytest.approx(0.4)
    assert load.busiest == pytest.approx(0.8)
    assert load.disturbs
    assert load.said("use") == "others use 40% of the 2 cpus (the busiest 80%)"


def test_stolen_time_counts_and_is_named(tmp_path):
    load = watch(tmp_path, [IDLE], [later(idle=30, stolen=20)])
    assert load.share == load.stolen == pytest.approx(0.4)
    assert "40% taken by other virtual machines" in load.said("used")


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


class Cpus:
    """Two CPUs on which others use the share that `busy` says at each second; time passes only by `sleep`."""

    def __init__(self, busy: Callable[[float], float]) -> None:
        self.busy, self.now_s, self.used = busy, 0.0, 0.0

    def read(self) -> CpuTimes:
        ticks = round(self.now_s * 1000)
        return CpuTimes(dict.fromkeys((0, 1), (round(self.used * 1000), 0, ticks)), 0.0, self.now_s)

    def sleep(self, seconds: float) -> None:
        self.used += seconds * self.busy(self.now_s)
        self.now_s += seconds

    def watch(self) -> LoadWatch:
        return LoadWatch(self.read, sleep=self.sleep)


@pytest.mark.parametrize(
    ("quiet_from_s", "waited_s", "share"),
    [(0.0, 0.5, 0.0), (7.0, 7.5, 0.0), (math.inf, 30.0, 0.6)],
    ids=["quiet", "quiet after a while", "always busy"],
)
def test_a_quiet_moment_is_waited_for_up_to_thirty_seconds(quiet_from_s: float, waited_s: float, share: float) -> None:
    cpus, said = Cpus(lambda at_s: 0.0 if at_s >= quiet_from_s else 0.6), []
    load = cpus.watch().wait(said.append)
    assert load is not None
    assert (cpus.now_s, load.share) == (waited_s, pytest.approx(share))
    line = "others use 60% of the 2 cpus (the busiest 60%): waiting up to 30 s for a quiet moment"
    assert said == ([line] if waited_s > 0.5 else [])


def test_all_waits_of_a_watch_end_thirty_seconds_after_it_was_made_and_work_before_them_counts() -> None:
    cpus, said = Cpus(lambda at_s: 0.6), []
    watch = cpus.watch()
    cpus.sleep(20.0)
    watch.wait(said.append)
    assert (cpus.now_s, said[0].split(": ")[1]) == (30.0, "waiting up to 10 s for a quiet moment")
    watch.wait(said.append)
    assert (cpus.now_s, len(said)) == (30.5, 1)


def test_a_watch_tells_of_the_last_half_second_and_of_all_since_the_wait() -> None:
    cpus = Cpus(lambda at_s: 0.8 if at_s >= 0.7 else 0.0)
    watch = cpus.watch()
    assert (watch.recent(), watch.overall()) == (None, None)
    watch.wait()
    shares = []
    for seconds in (0.2, 0.2, 0.2, 0.2, 3.0, 0.1):
        cpus.sleep(seconds)
        load = watch.recent()
        assert load is not None
        shares.append(load.share)
    assert shares == [pytest.approx(x, abs=0.01) for x in (0.0, 0.18, 0.53, 0.8, 0.8, 0.8)]
    assert watch.overall().share == pytest.approx(3.7 * 0.8 / 3.9, abs=0.01)


def test_a_load_that_cannot_be_read_is_not_known_and_not_waited_for() -> None:
    def unreadable() -> CpuTimes:
        raise MeasurementError("no /proc/stat")

    watch = LoadWatch(unreadable, sleep=lambda _: pytest.fail("waited"))
    assert (watch.wait(), watch.recent(), watch.overall()) == (None, None, None)
    assert load_document(None)["load"] == "how busy others kept the cpus is not known here"


def test_a_document_says_how_busy_others_were_and_what_they_disturbed() -> None:
    load = Load(0.27, 0.5, 0.0, 2)
    assert load_document(load, what="3 times") == {
        "others_share": 0.27, "disturbed": True,
        "load": "disturbed: others used 27% of the 2 cpus (the busiest 50%), so 3 times may be too long",
    }  # fmt: skip
    quiet = load_document(load, disturbed=False)
    assert (quiet["disturbed"], quiet["load"]) == (False, "others used 27% of the 2 cpus (the busiest 50%)")


def test_a_missing_or_garbled_stat_is_a_measurement_error(tmp_path):
    with pytest.raises(MeasurementError, match="proc/stat"):
        read_cpu_times([0], root=tmp_path)
    write_stat(tmp_path, (1, 2))
    with pytest.raises(MeasurementError, match="does not say"):
        read_cpu_times([0], root=tmp_path)
    write_stat(tmp_path, IDLE)
    with pytest.raises(MeasurementError, match=r"no cpus \[7\]"):
        read_cpu_times([0, 7], root=tmp_path)


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
