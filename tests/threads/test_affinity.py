"""Thread teams: what they change, and that they restore it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from tests.waiting import eventually
from threadcast.core.errors import ExecutionError, InvalidInput
from threadcast.threads.affinity import LedTeam, PinnedThread, ThreadTeam, thread_ids
from threadcast.threads.openmp import end_idle_workers

CPUS = sorted(os.sched_getaffinity(0))
FORBIDDEN = max(CPUS) + 4096
needs_two_cpus = pytest.mark.skipif(len(CPUS) < 2, reason="needs two cpus")


def parallel_region() -> None:
    torch.ones(1 << 17).add_(1.0)


@needs_two_cpus
def test_each_worker_of_a_team_has_its_own_cpu():
    with ThreadTeam(CPUS[:2]) as team:
        assert team.run(torch.get_num_threads) == 2
        leader, worker = team.threads
        assert os.sched_getaffinity(leader) == set(CPUS[:2])
        assert os.sched_getaffinity(worker) == {CPUS[1]}
        assert team.run(threading.get_native_id) == leader


@needs_two_cpus
def test_a_team_leaves_nothing_behind():
    before = torch.get_num_threads()
    with ThreadTeam(CPUS[:2]):
        pass  # torch makes a pool of its own, once for the process, when the thread count first grows
    threads = set(thread_ids())
    with ThreadTeam(CPUS[:2]) as team:
        members = set(team.threads)
        assert members <= set(thread_ids())
    assert not members & set(thread_ids())
    assert set(thread_ids()) <= threads
    assert os.sched_getaffinity(0) == set(CPUS)
    with ThreadTeam(CPUS[:1]) as team:
        pass
    assert torch.get_num_threads() == before


@needs_two_cpus
def test_workers_that_openmp_makes_later_are_found_and_do_not_pile_up_on_one_cpu():
    with ThreadTeam(CPUS[:2]) as team:
        leader, first = team.threads

        def region_of(size: int) -> None:
            torch.set_num_threads(size)
            parallel_region()
            team.place()

        team.run(lambda: region_of(3))
        assert team.threads[:2] == (leader, first)
        assert len(team.threads) == 3
        assert os.sched_getaffinity(team.threads[2]) == set(CPUS[:2])
        third = team.threads[2]
        team.run(lambda: region_of(2))
        assert eventually(lambda: third not in thread_ids())  # OpenMP is ending it
        team.place()
        assert team.threads == (leader, first)
        assert os.sched_getaffinity(first) == {CPUS[1]}


@needs_two_cpus
def test_a_look_for_new_workers_reads_the_names_of_new_threads_only(monkeypatch):
    """On 256 cores the names of a team are 255 files, and a look comes before every batch that is timed."""
    read_text, read = Path.read_text, []

    def noting(path, *args, **options):
        read.append(path.name)
        return read_text(path, *args, **options)

    with ThreadTeam(CPUS[:2]) as team:
        workers, ended = team.threads, threading.Event()
        monkeypatch.setattr(Path, "read_text", noting)
        team.place()
        assert read == []
        other = threading.Thread(target=ended.wait)
        other.start()
        team.place()
        team.place()
        assert read == ["comm"]
        assert team.threads == workers
        ended.set()
        other.join()


@needs_two_cpus
def test_further_threads_of_a_team_share_its_cpus_in_turn():
    masks: list[set[int]] = []

    def lead() -> None:
        with LedTeam(CPUS[:2], size=5) as team:
            assert torch.get_num_threads() == 5
            masks.extend(os.sched_getaffinity(worker) for worker in team.threads[1:])

    thread = threading.Thread(target=lead)
    thread.start()
    thread.join()
    assert masks == [{CPUS[1]}, {CPUS[0]}, {CPUS[1]}, {CPUS[0]}]
    with pytest.raises(InvalidInput, match="size=1"):
        LedTeam(CPUS[:2], size=1)


@needs_two_cpus
def test_idle_workers_of_the_calling_thread_end_and_come_back_when_needed():
    def region_makes() -> set[int]:
        known = set(thread_ids())
        parallel_region()
        return set(thread_ids()) - known

    def wait_for_end_of(threads: set[int]) -> None:
        assert eventually(lambda: not threads & set(thread_ids()))  # joined; the kernel is tidying up

    def check() -> None:
        torch.set_num_threads(2)
        end_idle_workers()
        (worker,) = region_makes()
        assert not region_makes()
        end_idle_workers()
        wait_for_end_of({worker})
        (worker,) = region_makes()
        with ThreadTeam(CPUS[:2]):
            wait_for_end_of({worker})
        assert len(region_makes()) == 1
        end_idle_workers()

    threads_before = torch.get_num_threads()
    try:
        with ThreadPoolExecutor(1) as pool:  # a thread that has made no step, so that no lanes run its regions
            pool.submit(check).result()
    finally:
        torch.set_num_threads(threads_before)


def test_an_error_in_a_team_reaches_the_caller_and_the_team_lives():
    def fail() -> None:
        raise ZeroDivisionError("in the op")

    with ThreadTeam(CPUS[:1]) as team:
        with pytest.raises(ZeroDivisionError, match="in the op"):
            team.run(fail)
        assert team.run(lambda: 5) == 5


@pytest.mark.parametrize("cpus", [[], [CPUS[0], CPUS[0]], [FORBIDDEN]])
def test_a_team_refuses_cpus_that_it_cannot_have(cpus):
    threads, ours = len(thread_ids()), threading.active_count()
    with pytest.raises(InvalidInput, match="cpus="), ThreadTeam(cpus):
        pass
    assert len(thread_ids()) <= threads + 1
    assert threading.active_count() == ours


def in_new_thread(function):
    with ThreadPoolExecutor(1) as new:
        return new.submit(function).result()


@needs_two_cpus
def test_workers_of_a_pinned_thread_have_its_cpus_and_end_with_each_function():
    numbers = torch.get_num_threads(), in_new_thread(torch.get_num_threads)
    pinned = PinnedThread(CPUS[-1:], threads=2)
    before = set(thread_ids())
    leader = pinned.run(threading.get_native_id)

    def masks() -> dict[int, set[int]]:
        parallel_region()
        return {thread: os.sched_getaffinity(thread) for thread in {*thread_ids()} - before | {leader}}

    found = pinned.run(masks)
    assert len(found) == 2
    assert list(found.values()) == [{CPUS[-1]}] * 2
    eventually(lambda: set(thread_ids()) & set(found) == {leader})
    assert pinned.run(torch.get_num_threads) == 2
    assert not pinned.run(torch.is_grad_enabled)
    assert (torch.get_num_threads(), in_new_thread(torch.get_num_threads)) == numbers
    assert os.sched_getaffinity(0) == set(CPUS)
    del pinned
    eventually(lambda: leader not in thread_ids())


def test_a_pinned_thread_passes_errors_on_and_goes_on():
    pinned = PinnedThread(CPUS[:1], threads=1)
    with pytest.raises(KeyError, match="own"):
        pinned.run({}.__getitem__, "own")
    assert pinned.run(sum, (1, 2)) == 3
    number = in_new_thread(torch.get_num_threads)
    with pytest.raises(InvalidInput, match=f"cpus=.{FORBIDDEN}. cannot be used"):
        PinnedThread([FORBIDDEN], threads=2)
    assert in_new_thread(torch.get_num_threads) == number


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_fork_has_no_pinned_thread():
    pinned = PinnedThread(CPUS[:1], threads=1)
    assert pinned.usable
    child = os.fork()
    if child == 0:
        try:
            pinned.run(os.getpid)
        except ExecutionError:
            os._exit(7 + pinned.usable)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


AFTER_MAIN = """
import atexit, threading
from threadcast.threads.affinity import PinnedThread
pinned = PinnedThread([CPU], threads=1)

def late():
    threading.main_thread().join()
    print("thread", pinned.run(sum, (1, 2)), PinnedThread([CPU], threads=1).run(sum, (1, 3)))

class Last:
    pinned = pinned

    def __del__(self):
        print("end", self.pinned.usable)

atexit.register(lambda: print("atexit", pinned.run(sum, (2, 3))))
threading.Thread(target=late).start()
last = Last()
"""


def test_a_pinned_thread_runs_what_is_asked_for_after_the_main_thread_has_returned():
    program = AFTER_MAIN.replace("CPU", str(CPUS[0]))
    ran = subprocess.run(
        [sys.executable, "-c", program], check=False, capture_output=True, text=True, timeout=120,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )  # fmt: skip
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.splitlines() == ["thread 3 4", "atexit 5", "end False"]
