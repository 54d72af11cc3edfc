"""Attached processes keep to what their masks, quotas and cpusets leave, and the arbiter knows of it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.malleable.processes import CORES, EXECUTED, Running, needs_two_cores
from tests.waiting import eventually
from threadcast.core import read_machine
from threadcast.malleable.sockets import ask, socket_of


@needs_two_cores
def test_a_mask_that_somebody_else_sets_is_a_limit(start: Callable[..., Running]) -> None:
    one = start()
    cpu = min(os.sched_getaffinity(0))
    os.sched_setaffinity(one.process.pid, {cpu})
    assert eventually(lambda: one.now() == {"threads": 1, "masks": [[cpu]]})


@pytest.fixture
def group() -> Iterator[Path]:
    """A cgroup of version 1 for CPU quotas, made by root."""
    yield from made("cpu")


@pytest.fixture
def cpuset() -> Iterator[Path]:
    """A cgroup of version 1 for CPU sets, made by root."""
    yield from made("cpuset")


def made(controller: str) -> Iterator[Path]:
    path = Path(f"/sys/fs/cgroup/{controller}/threadcast-test-{os.getpid()}")
    try:
        path.mkdir()
    except OSError as error:
        pytest.skip(f"no cgroup v1 that can be written to: {error}")
    yield path
    until_s = time.monotonic() + 10
    while (tasks := (path / "tasks").read_text()) and time.monotonic() < until_s:
        for task in tasks.split():
            with suppress(OSError):  # it has ended
                (path.parent / "tasks").write_text(task)
    path.rmdir()


def in_group(group: Path, *command: str) -> tuple[str, ...]:
    return ("sh", "-c", 'echo $$ > "$0" && exec "$@"', str(group / "cgroup.procs"), *command)


@needs_two_cores
def test_a_quota_is_followed_as_it_changes(start: Callable[..., Running], group: Path) -> None:
    one = start()
    (group / "cgroup.procs").write_text(str(one.process.pid))
    (group / "cpu.cfs_quota_us").write_text((group / "cpu.cfs_period_us").read_text())
    assert eventually(lambda: one.uses(1))
    (group / "cpu.cfs_quota_us").write_text("-1")
    assert eventually(lambda: one.uses(CORES))


@needs_two_cores
def test_a_quota_that_is_there_at_the_start_is_kept_to(start: Callable[..., Running], group: Path) -> None:
    (group / "cpu.cfs_quota_us").write_text((group / "cpu.cfs_period_us").read_text())
    one = start(*in_group(group, *EXECUTED))
    assert eventually(lambda: one.uses(1))


@needs_two_cores
def test_a_quota_that_is_lifted_is_known_to_the_arbiter(
    start: Callable[..., Running], arbitrate: Callable[[], Callable[[], None]], group: Path, tmp_path: Path
) -> None:
    arbitrate()
    path = tmp_path / "threadcast" / "arbiter.sock"
    (group / "cpu.cfs_quota_us").write_text((group / "cpu.cfs_period_us").read_text())
    one = start(*in_group(group, *EXECUTED))
    assert eventually(lambda: given(path) == [1])
    (group / "cpu.cfs_quota_us").write_text("-1")
    assert eventually(lambda: one.uses(CORES))


@needs_two_cores
def test_processes_under_quotas_keep_to_the_cores_that_the_arbiter_gives_them(
    start: Callable[..., Running], arbitrate: Callable[[], Callable[[], None]], group: Path
) -> None:
    arbitrate()
    (group / "cpu.cfs_quota_us").write_text((group / "cpu.cfs_period_us").read_text())
    first, second = (start(*in_group(group, *EXECUTED)) for _ in range(2))
    assert eventually(lambda: first.uses(1) and second.uses(1))
    assert eventually(lambda: first.now()["masks"] != second.now()["masks"])


@needs_two_cores
def test_a_process_that_may_use_one_core_only_gets_that_and_the_other_one_makes_room(
    start: Callable[..., Running], arbitrate: Callable[[], Callable[[], None]]
) -> None:
    arbitrate()
    own, *others = (core.cpus for core in read_machine().cores)
    free, bound = start(*EXECUTED), start("taskset", "-c", ",".join(map(str, own)), *EXECUTED)
    assert eventually(lambda: bound.now()["masks"] == [sorted(own)])
    assert eventually(lambda: free.now()["masks"] == [sorted(cpu for core in others for cpu in core)])


@needs_two_cores
def test_cores_that_a_process_was_told_not_to_use_are_others(
    start: Callable[..., Running], arbitrate: Callable[[], Callable[[], None]], tmp_path: Path
) -> None:
    arbitrate()
    path = tmp_path / "threadcast" / "arbiter.sock"
    one = start()
    assert eventually(lambda: given(path) == [CORES])
    ask(socket_of(one.process.pid), {"resize": 1})
    assert eventually(lambda: given(path) == [1])
    ask(socket_of(one.process.pid), {"resize": None})
    assert eventually(lambda: one.uses(CORES))


@needs_two_cores
def test_a_process_that_widens_its_own_mask_is_put_back(
    start: Callable[..., Running], arbitrate: Callable[[], Callable[[], None]]
) -> None:
    arbitrate()
    first, second = start(), start()
    assert eventually(lambda: not os.sched_getaffinity(first.process.pid) & os.sched_getaffinity(second.process.pid))
    os.sched_setaffinity(first.process.pid, os.sched_getaffinity(0))
    assert eventually(lambda: not os.sched_getaffinity(first.process.pid) & os.sched_getaffinity(second.process.pid))


@needs_two_cores
def test_what_the_kernel_makes_of_a_mask_as_the_cpuset_changes_is_no_limit(
    start: Callable[..., Running], cpuset: Path
) -> None:
    for name in ("cpuset.cpus", "cpuset.mems"):
        (cpuset / name).write_text((cpuset.parent / name).read_text())
    one = start()
    (cpuset / "cgroup.procs").write_text(str(one.process.pid))
    cores = [list(core.cpus) for core in read_machine().cores]
    ask(socket_of(one.process.pid), {"resize": cores[:1]})
    for left in (cores[-1], [cpu for core in cores for cpu in core]):
        (cpuset / "cpuset.cpus").write_text(",".join(map(str, left)))
        assert eventually(lambda left=left: limits(one) == set(left))
    ask(socket_of(one.process.pid), {"resize": None})
    assert eventually(lambda: one.uses(CORES))


def given(arbiter: Path) -> list[int]:
    """How many cores each process has of an arbiter."""
    return [len(each["cores"]) for each in ask(arbiter, {"who": "all"})["processes"]]


def limits(one: Running) -> set[int]:
    return {cpu for core in ask(socket_of(one.process.pid), {"limits": "all"})["limits"] for cpu in core}
