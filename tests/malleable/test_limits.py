"""Attached processes keep to what their masks, quotas and cpusets leave, and the arbiter knows of it."""

from __future__ import annotations

import errno
import os
import resource
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.core import trees
from tests.malleable.processes import CORES, EXECUTED, Running, needs_two_cores
from tests.waiting import eventually
from threadcast.core import read_machine
from threadcast.core.errors import ServiceUnavailable
from threadcast.malleable import member as member_module
from threadcast.malleable.arbiter_link import Terms
from threadcast.malleable.limits import Cores, Limits, cpus_in
from threadcast.malleable.member import Member
from threadcast.malleable.sockets import ask, connect, socket_of
from threadcast.threads.process_cores import ProcessCores
from threadcast.threads.this_process import ProcessState


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


@needs_two_cores
def test_a_quota_is_followed_as_it_changes(start: Callable[..., Running], group: Path) -> None:
    one = start()
    (group / "cgroup.procs").write_text(str(one.process.pid))
    (group / "cpu.cfs_quota_us").write_text((group / "cpu.cfs_period_us").read_text())
    assert eventually(lambda: one.uses(1))
    (group / "cpu.cfs_quota_us").write_text("-1")
    assert eventually(lambda: one.uses(CORES))


@pytest.mark.system
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


@pytest.mark.system
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


@contextmanager
def no_file_left() -> Iterator[None]:
    """This process may open no more files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def quota(root: Path, cpus: int) -> None:
    """Describe a machine of four cores, and a quota."""
    trees.plain(root, 4)
    trees.cgroup_v2(root, "/", {"cpu.max": f"{cpus}00000 100000"})


def test_limits_hold_while_no_more_files_can_be_opened_and_nobody_can_be_reached(tmp_path: Path) -> None:
    quota(tmp_path, 2)
    limits = Limits(ProcessCores(), root=tmp_path, mask=frozenset(range(4)))
    two = limits.cores()
    assert len(two) == 2
    with no_file_left():
        assert limits.cores() == two
        with pytest.raises(ServiceUnavailable, match="Too many open files"):
            connect(tmp_path / "arbiter.sock")
    quota(tmp_path, 3)
    assert len(limits.cores()) == 3


class Pins:
    """An engine that has just pinned the main thread."""

    def send_home(self, thread: int) -> bool:
        return thread == os.getpid()

    def is_pinned(self, thread: int) -> tuple[bool, int]:
        return thread == os.getpid(), 1


@needs_two_cores
def test_a_process_that_attaches_within_a_step_is_not_kept_on_the_cpu_of_its_main_thread() -> None:
    process, before = ProcessCores(), os.sched_getaffinity(0)
    process.add_pinner(Pins())
    with ThreadPoolExecutor(1) as other:
        other.submit(int).result()
        os.sched_setaffinity(os.getpid(), {min(before)})
        try:
            limits = other.submit(Limits, process).result()
        finally:
            os.sched_setaffinity(os.getpid(), before)
    assert len(limits.cores()) > 1 or len(read_machine()) == 1
    assert limits.cpus == before


class Told(ProcessCores):
    """A process of four CPUs whose threads have the mask that `Following` sets."""

    mask = frozenset(range(4))

    def mask_of(self, thread: int) -> frozenset[int]:
        return self.mask


def test_cores_that_are_named_while_others_are_being_applied_are_still_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process, naming = Told(), list[threading.Thread]()

    class Following:
        def __init__(self, process: ProcessCores) -> None:
            pass

        def apply(self, cores: Cores) -> frozenset[int]:
            process.mask = cpus_in(cores)
            if len(cores) == 1 and not naming:
                naming.append(threading.Thread(target=member.resize, args=(((3,),),)))
                naming[0].start()
                naming[0].join(0.2)  # it waits
            return process.mask

    monkeypatch.setattr(member_module, "Followers", Following)
    monkeypatch.setattr(member_module, "inherited_limit", lambda: None)
    trees.plain(tmp_path, 4)
    member = Member(Terms(), ProcessState(process), arbiter=tmp_path / "none", steps=lambda: 0.0, root=tmp_path)
    member.resize(1)
    naming[0].join()
    assert member.cores == ((3,),)
    assert len(member.resize(None)) == 4
    member.abandon()


def test_a_mask_without_a_cpu_of_the_cpuset_holds_again_once_it_has_one(tmp_path: Path) -> None:
    def allow(cpus: str) -> None:
        trees.cgroup_v2(tmp_path, "/", {"cpuset.cpus.effective": cpus})

    trees.plain(tmp_path, 4)
    allow("0-3")
    limits = Limits(Told(), root=tmp_path, mask=frozenset({1}))
    for cpus, left in (("0-3", {1}), ("2-3", {2, 3}), ("0,1", {1}), ("1-3", {1})):
        allow(cpus)
        assert cpus_in(limits.cores()) == limits.cpus == left
        assert limits.mask == {1}


def test_what_could_not_be_told_of_its_cores_is_told_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    told, failures = list[Cores](), [OSError(errno.EMFILE, "Too many open files")] * 2

    class Following:
        def __init__(self, process: ProcessCores) -> None:
            pass

        def apply(self, cores: Cores) -> frozenset[int]:
            if told and failures:
                raise failures.pop()
            told.append(cores)
            return cpus_in(cores)

        def catch_up(self) -> None:
            pass

    monkeypatch.setattr(member_module, "Followers", Following)
    monkeypatch.setattr(member_module, "inherited_limit", lambda: frozenset(range(4)))
    quota(tmp_path, 2)
    member = Member(Terms(), ProcessState(), arbiter=tmp_path / "arbiter.sock", steps=lambda: 0.0, root=tmp_path)
    member.start()
    (tmp_path / "new").write_text("100000 100000")
    (tmp_path / "new").rename(tmp_path / "sys/fs/cgroup/cpu.max")  # whole at once, as the kernel's file is
    assert eventually(lambda: [len(cores) for cores in told] == [2, 1])
    member.close()
    assert not failures
    assert caplog.messages == ["this process cannot follow its cores for now: [Errno 24] Too many open files"]
