"""An executor: a pinned thread that leads an OpenMP team of its own and runs jobs one after the other."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue

from threadcast.threads.affinity import LedTeam

Jobs = SimpleQueue[Callable[[], None] | None]


class Executor:
    """A team of `size` threads on `cpus`, ready when the constructor returns; it raises what `LedTeam` raises.

    Jobs must not raise. The owner must call `end`: the thread has no reference to this object, so it does not end when
    this object is garbage-collected. It is a daemon thread, because at exit the interpreter joins all other threads
    before it runs any finalizer that could end them.
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
        """Queue `job` behind all jobs submitted before. Ctrl-C arrives before or after this call, not in between."""
        self._jobs.put(job)

    def end(self) -> None:
        """End the thread and its team once all queued jobs are done; does not wait."""
        self._jobs.put(None)

    def join(self) -> None:
        """Wait until the thread has ended; does nothing if it is the calling thread."""
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
