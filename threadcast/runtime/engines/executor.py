"""One executor: a pinned thread that leads an OpenMP team of its own and does jobs in turn."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue

from threadcast.threads.affinity import LedTeam

Jobs = SimpleQueue[Callable[[], None] | None]


class Executor:
    """A team of `size` threads on `cpus`, ready when this returns; raises what `LedTeam` raises.

    Jobs must not raise. The thread knows nothing of this object, whose garbage collection it outlives, so
    somebody has to call `end`. It is a daemon, since the interpreter joins all others at exit before it tells anybody.
    """

    def __init__(self, cpus: Sequence[int], size: int) -> None:
        self._jobs: Jobs = SimpleQueue()
        formed: SimpleQueue[BaseException | None] = SimpleQueue()
        self._thread = threading.Thread(
            target=_lead, args=(cpus, size, self._jobs, formed), name="threadcast-executor", daemon=True
        )
        self._thread.start()
        error = formed.get()
        if error is not None:
            self._thread.join()
            raise error

    def submit(self, job: Callable[[], None]) -> None:
        """Do `job` after all that was submitted before. Ctrl-C comes before or after it, not in between."""
        self._jobs.put(job)

    def end(self) -> None:
        """End the thread and its team when all jobs are done."""
        self._jobs.put(None)

    def join(self) -> None:
        """Wait until the thread has ended, unless it is the calling one."""
        if self._thread is not threading.current_thread():
            self._thread.join()


def _lead(cpus: Sequence[int], size: int, jobs: Jobs, formed: SimpleQueue[BaseException | None]) -> None:
    try:
        with LedTeam(cpus, size=size):
            formed.put(None)
            while (job := jobs.get()) is not None:
                job()
                del job  # it would keep the values of its step until the next one
    except BaseException as error:  # noqa: BLE001 - carried to the maker of the team
        formed.put(error)
