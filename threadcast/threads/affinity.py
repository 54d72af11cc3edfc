"""Threads on CPUs of their own: teams of torch's, as context managers that restore what they change, and single ones.

OpenMP keeps one pool of workers for every thread that ever ran a parallel region, rebuilds it when the size asked
for changes, and gives new workers the affinity of the thread that made them. So a team belongs to one set of cpus
and one size, and is led by a thread of its own, with which its workers end.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from itertools import count, cycle, islice
from pathlib import Path
from queue import SimpleQueue
from types import TracebackType
from typing import Self, TypeVar

from threadcast.core.errors import ExecutionError, InvalidInput, MeasurementError
from threadcast.threads.lasting import Jobs, serve
from threadcast.threads.openmp import end_idle_workers, set_own_threads

T = TypeVar("T")

_FORMING_ELEMENTS = 1 << 16
"""Elements of the addition that forms a team: twice the 32,768 (`at::internal::GRAIN_SIZE`, torch 2.13) up to which
torch does not call OpenMP. OpenMP then starts the whole team, however few of its threads have work."""

_ENDING_S = 1.0
"""Longest wait until threads that were joined are gone from /proc; it commonly takes microseconds."""

_NUMBERS = count()


def thread_ids() -> tuple[int, ...]:
    """The kernel's ids of this process's threads, ascending."""
    return tuple(sorted(map(int, os.listdir("/proc/self/task"))))


class LedTeam:
    """A team of torch's threads that the calling thread leads, one on each CPU: `with LedTeam(cpus):`.

    Worker number i is pinned to `cpus[i]`, so threads with neighbouring numbers are placed as the caller wants. With
    `size` above the number of CPUs, further threads share the CPUs in turn. The leader starts on `cpus[0]` but is
    allowed on all: if an op uses a smaller team, OpenMP ends workers and later starts new ones with the leader's mask,
    which would otherwise all run on the first CPU. `place` pins these new workers. Enter and leave it in a thread of
    its own that ends soon after, because that thread stays pinned. Leaving ends the workers.

    InvalidInput for CPUs that this process may not use or that are named twice, MeasurementError if torch forms no
    team of OpenMP workers.
    """

    def __init__(self, cpus: Sequence[int], *, size: int | None = None) -> None:
        self.cpus = tuple(cpus)
        self.size = len(self.cpus) if size is None else size
        if not self.cpus or len(set(self.cpus)) != len(self.cpus):
            raise InvalidInput(f"cpus={self.cpus}: a team needs at least one, each once")
        if self.size < len(self.cpus):
            raise InvalidInput(f"size={size}: a team on {len(self.cpus)} cpus has at least a thread for each")
        self._leader = 0
        self._others: frozenset[int] = frozenset()
        self._workers: tuple[int, ...] = ()
        self._ours: dict[int, bool] = {}
        """Of each thread that the last look found beside the leader and `_others`: whether it is a worker."""

    def __enter__(self) -> Self:
        import torch

        self._leader = threading.get_native_id()
        self._thread_name = f"tc-{self._leader}"
        self._torch_threads_before = torch.get_num_threads()
        # Before pinning: it also makes a pool of torch's that outlives the team and must not inherit its cpus.
        torch.set_num_threads(self.size)
        try:
            self._form()
        except BaseException:
            torch.set_num_threads(self._torch_threads_before)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        import torch

        torch.set_num_threads(self._torch_threads_before)
        end_idle_workers()

    @property
    def threads(self) -> tuple[int, ...]:
        """Kernel ids of the team's threads, the leader first, then the workers by their OpenMP number."""
        return (self._leader, *self._workers)

    def place(self) -> None:
        """Pin the workers that OpenMP has started since the team was formed.

        Costs one look at /proc, and one for each thread that the last look did not find.
        """
        new = [thread for thread in thread_ids() if thread not in self._others and thread != self._leader]
        known = self._ours
        if len(self._workers) != self.size - 1:  # a thread that the leader started may have taken a name of its own
            known = {thread: ours for thread, ours in known.items() if not ours}
        self._ours = {
            thread: known[thread] if thread in known else _name(thread) == self._thread_name for thread in new
        }
        workers = tuple(thread for thread, ours in self._ours.items() if ours)
        if workers == self._workers:
            return
        for worker, cpu in zip(workers, islice(cycle(self.cpus), 1, self.size)):
            _pin(worker, {cpu})
        self._workers = workers

    def _form(self) -> None:
        import torch

        _pin(0, self.cpus)
        self._others = frozenset(thread_ids()) - {self._leader}
        Path(f"/proc/self/task/{self._leader}/comm").write_text(self._thread_name)  # its workers inherit it
        torch.zeros(_FORMING_ELEMENTS).add_(1.0)
        self.place()
        if len(self._workers) != self.size - 1:
            raise MeasurementError(
                f"torch made {len(self._workers)} workers for a team of {self.size}; teams need torch built "
                f"with OpenMP (torch.__config__.parallel_info()) and no OMP_THREAD_LIMIT below the cores"
            )
        _pin(0, self.cpus[:1])  # moves the leader there at once; nothing else wants that cpu
        _pin(0, self.cpus)


class ThreadTeam:
    """A `LedTeam` led by a thread of its own: `with ThreadTeam(cpus) as team: team.run(op)`.

    Leaving the block ends leader and workers. Only one thread may use a team. Entering also ends the idle OpenMP
    workers of that thread. The thread should not run parallel ops itself inside the block: its workers and the team
    would slow each other down. Raises what `LedTeam` raises.
    """

    def __init__(self, cpus: Sequence[int]) -> None:
        self._team = LedTeam(cpus)

    def __enter__(self) -> Self:
        end_idle_workers()
        self._name = f"threadcast-team-{next(_NUMBERS)}-"
        self._executor = ThreadPoolExecutor(1, thread_name_prefix=self._name)
        try:
            self.run(self._team.__enter__)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.run(lambda: self._team.__exit__(kind, error, trace))
        self._end()

    def _end(self) -> None:
        """Wait until leader and workers have ended; also a leader that Ctrl-C hid from the executor as it started."""
        self._executor.shutdown()
        deadline_s = time.monotonic() + _ENDING_S
        while self._is_there() and time.monotonic() < deadline_s:
            time.sleep(1e-4)

    def _is_there(self) -> bool:
        leads = any(thread.name.startswith(self._name) for thread in threading.enumerate())
        return leads or not set(self._team.threads).isdisjoint(thread_ids())

    @property
    def threads(self) -> tuple[int, ...]:
        """Kernel ids of the team's threads, the leader first, then the workers by their OpenMP number."""
        return self._team.threads

    def run(self, function: Callable[[], T]) -> T:
        """Call `function` in the leader and return what it returns or raise what it raises."""
        return self._executor.submit(function).result()

    def place(self) -> None:
        """Pin the workers that OpenMP has started since the team was formed, as `LedTeam.place` does."""
        self._team.place()


class PinnedThread:
    """Runs functions one after the other in a thread of its own, on `cpus` only, without gradients.

    Threads that libraries start from it inherit its CPUs: those of a session that is opened in it, and the workers of
    its parallel regions, in which torch's operators have `threads` threads. It ends when nothing refers to this object
    any more. It is a daemon thread, which also runs what other threads and functions of `atexit` ask for after the main
    thread has returned. InvalidInput for CPUs that this process may not use.
    """

    def __init__(self, cpus: Iterable[int], *, threads: int) -> None:
        self._process = os.getpid()
        self._jobs: Jobs = SimpleQueue()
        work = self._jobs, end_idle_workers
        threading.Thread(target=serve, args=work, name="threadcast-pinned", daemon=True).start()
        weakref.finalize(self, self._jobs.put, None).atexit = False
        self.run(_begin_pinned, tuple(cpus), threads)

    @property
    def usable(self) -> bool:
        """Whether the thread is there: it is not in forks of the process, and not once the interpreter ends."""
        return os.getpid() == self._process and not sys.is_finalizing()

    def run(self, function: Callable[..., T], *arguments: object) -> T:
        """Call `function` in the thread, and return what it returns or raise what it raises.

        OpenMP workers of the calling thread end before it, and those of this thread after it: idle ones would spin on
        CPUs that others need. ExecutionError where the thread is not `usable`.
        """
        if not self.usable:
            raise ExecutionError(f"the thread belongs to process {self._process}, which has forked this one or ends")
        end_idle_workers()
        answer: Future[T] = Future()
        self._jobs.put((answer, partial(function, *arguments)))
        return answer.result()


def _begin_pinned(cpus: tuple[int, ...], threads: int) -> None:
    import torch

    torch.set_grad_enabled(False)
    set_own_threads(threads)
    _pin(0, cpus)


def _pin(thread: int, cpus: Iterable[int]) -> None:
    wanted = set(cpus)
    before = os.sched_getaffinity(thread)
    try:
        os.sched_setaffinity(thread, wanted)
    except (OSError, ValueError) as error:
        raise InvalidInput(f"{_refusal(wanted)}: {error}") from error
    got = os.sched_getaffinity(thread)
    if got != wanted:  # the kernel drops, without an error, what the cpuset forbids
        os.sched_setaffinity(thread, before)
        raise InvalidInput(f"{_refusal(wanted)}: only {sorted(got)} of them are this process's")


def _name(thread: int) -> str:
    try:
        return Path(f"/proc/self/task/{thread}/comm").read_text().strip()
    except (FileNotFoundError, ProcessLookupError):
        return ""  # ended meanwhile


def _refusal(cpus: set[int]) -> str:
    return f"cpus={sorted(cpus)} cannot be used; see `taskset -p {os.getpid()}` and the cgroup's cpuset"
