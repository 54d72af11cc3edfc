"""`threadcast top` without an arbiter: who waits for cores, why, and what to set."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.commands import invoke
from tests.malleable.test_exec import Kept, keep, needs_cc, program
from tests.waiting import eventually
from threadcast.cli import top
from threadcast.core.cgroup import read_throttling
from threadcast.malleable.causes import causes
from threadcast.malleable.usage import MachineUse, ProcessUse

__all__ = ["keep", "program"]
EIGHT = frozenset(range(8))


def wants(
    threads: int, used: float, *, cpus: frozenset[int] = EIGHT, runnable: float | None = None, name: str = "prog",
    throttled: float = 0.0, quota: float | None = None, variable: str = "OMP_NUM_THREADS",
) -> ProcessUse:  # fmt: skip
    """A process with threads that all run or wait for a CPU, of which it uses so many."""
    runnable = float(threads) if runnable is None else runnable
    return ProcessUse(7, name, threads + 1, threads, runnable, used, cpus, throttled, quota, variable)


def said(*processes: ProcessUse, used: float | None = 8.0, idle: frozenset[int] = frozenset()) -> dict[str, str]:
    """The causes by kind."""
    return dict(causes(MachineUse(8, EIGHT, processes, used, idle)))


def test_too_many_threads_are_told_with_the_number_to_set() -> None:
    (four,) = said(*[wants(8, 2.0)] * 4).values()
    told = "4 processes x 8 threads on 8 cores: set OMP_NUM_THREADS=2, or run them with `threadcast exec` beside "
    assert four == told + "`threadcast arbiter`"
    (one,) = said(wants(16, 8.0, variable="MKL_NUM_THREADS")).values()
    assert one == "1 process x 16 threads on 8 cores: set MKL_NUM_THREADS=8, or run it with `threadcast exec`"
    (mixed,) = said(wants(8, 4.0), wants(4, 2.0, variable="UV_THREADPOOL_SIZE"), wants(1, 0.7)).values()
    assert "3 processes with 13 threads in all on 8 cores" in mixed
    assert "set OMP_NUM_THREADS=2 and UV_THREADPOOL_SIZE=2" in mixed
    (many,) = said(*[wants(1, 0.5)] * 16).values()
    assert many.startswith("16 processes x 1 thread on 8 cores: run at most 8 at a time, or")


def test_a_quota_that_stops_a_process_is_told() -> None:
    found = said(wants(8, 1.5, throttled=0.8, quota=1.5), used=1.5, idle=EIGHT)
    assert list(found) == ["quota"]
    assert "a quota of 1.5 CPUs stops it in 80% of all periods: set OMP_NUM_THREADS=1" in found["quota"]


def test_processes_on_the_same_cores_while_others_are_idle_are_told() -> None:
    pinned = [wants(2, 1.0, cpus=frozenset({0, 1}))] * 3
    (text,) = said(*pinned, used=2.0, idle=frozenset(range(2, 8))).values()
    assert text.startswith("3 processes x 2 threads on CPUs 0-1, while 6 CPUs are idle: start them without taskset")
    assert said(*pinned, used=8.0) == {}, "there is nowhere else to go"
    single = [wants(1, 0.5, cpus=frozenset({3}))] * 2
    (text,) = said(*single, used=1.0, idle=EIGHT - {3}).values()
    assert "on CPU 3, while 7 CPUs are idle" in text


def test_others_who_use_the_cores_are_told() -> None:
    (text,) = said(wants(4, 2.0), used=8.0).values()
    assert text == "others' processes use 6.0 of 8 cores: wait, or use 2 (`threadcast exec`)"


@pytest.mark.parametrize(
    "processes",
    [[], [wants(8, 7.9)], [wants(8, 7.9, runnable=8.0), wants(1, 0.0, runnable=0.3)], [wants(1, 1.0)] * 8], ids=str,
)  # fmt: skip
def test_nothing_is_told_where_no_thread_waits(processes: list[ProcessUse]) -> None:
    assert said(*processes) == {}


def test_periods_are_read_of_both_versions_of_groups(tmp_path: Path) -> None:
    first, second = "nr_periods 10\nnr_throttled 4\nthrottled_time 5\n", "usage_usec 1\nnr_periods 5\nnr_throttled 1\n"
    for group, text in {"sys/fs/cgroup/cpu": first, "sys/fs/cgroup": second}.items():
        (tmp_path / group).mkdir(parents=True, exist_ok=True)
        (tmp_path / group / "cpu.stat").write_text(text)
    assert read_throttling(tmp_path) == (15, 5)
    assert read_throttling(tmp_path / "nowhere") == (0, 0)


def test_it_fits_80_columns_and_has_a_line_a_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    every = frozenset(range(0, 40, 2))
    words: Any = {"name": "python a_very_long_name_of_a_script.py", "throttled": 0.01}
    many = [wants(64, 8.0, cpus=every, **words)] * 29 + [wants(64, 8.0, cpus=every - {0}, **words)]
    use = MachineUse(8, every, tuple(many[::-1]), 8.0)
    monkeypatch.setattr("threadcast.malleable.usage.watch_use", lambda *_: use)
    lines = invoke("top", "--once").output.splitlines()
    assert max(len(line.rstrip()) for line in lines[:-1]) <= 80
    assert sum("python a_very_l" in line for line in lines) == top._ROWS
    assert "29 processes x 64 threads on 8 cores: set OMP_NUM_THREADS=1, run at most 8 at a time" in lines[-1]


@needs_cc
def test_a_real_program_is_shown_with_its_threads(keep: Callable[..., Kept]) -> None:
    one = keep()
    for _ in range(2):
        one.do("w")

    def shown() -> bool:
        document = json.loads(invoke("top", "--json", "--every", "0.3").output)
        found = [each for each in document["processes"] if each["process"] == one.pid]
        return bool(found) and found[0]["runnable"] > 1.5 and found[0]["name"] == "follower"

    assert eventually(shown)
