"""Makes any program follow its cores from outside: a process beside it sets the masks of all its threads.

`threadcast exec` starts the keeper and then becomes the program, which so has exec's number, terminal, signals and end.
The keeper is of another session and a child of init: two processes, of which one does the work and the other starts it
again wherever it is killed. It ends with the last process that the program has left behind.
"""

from __future__ import annotations

import os
import select
import signal
import time
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from threadcast.core.errors import ThreadcastError
from threadcast.malleable.activity import Activity
from threadcast.malleable.arbiter_link import Terms
from threadcast.malleable.family import Family, ProcessStatus, process_status, thread_times
from threadcast.malleable.family_masks import KEEPER, FamilyMasks, is_keeper
from threadcast.malleable.inherited_limit import mark_of, record_limit
from threadcast.malleable.keeper_memory import KeeperMemory
from threadcast.malleable.limits import Cores, cpus_in
from threadcast.malleable.line_progress import LineProgress, Passage
from threadcast.malleable.member import LOOK_S, Member
from threadcast.threads.process_cores import ProcessCores
from threadcast.threads.this_process import ProcessState

ANSWER_S = 1.0
"""Longest wait in seconds of a program's start for the cores that an arbiter assigns."""
PYTHON_S = 10.0
"""CPU time in seconds from which on a Python that has not attached itself is kept from outside; until then it may."""


def start_keeper(
    terms: Terms, arbiter: Path, limit: frozenset[int], *, attaches_itself: bool, progress: LineProgress | None = None
) -> tuple[int, bool] | None:
    """Start a keeper of the calling process, whatever that becomes by `exec`.

    Return how many cores it gets at first, and whether from an arbiter; None where it `attaches_itself`, for which the
    keeper waits, and where there is no keeper after all. `limit` are the CPUs that it may use at all; `terms` name the
    program. `progress` counts by what the program prints from now on (None: as the arbiter sees it).
    """
    process = os.getpid()
    read_end, write_end = os.pipe()
    passage = None if progress is None else Passage.between(progress)
    files = () if passage is None else passage.files
    with warnings.catch_warnings():  # of threads: there are those of BLAS alone, which know of forks
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        try:
            os.setsid()
            if os.fork() == 0:
                _leave_the_program(keep=(2, write_end, *files))
                if attaches_itself:
                    os.write(write_end, b"-")
                keeping = _Keeping(terms, arbiter, limit, attaches_itself, passage, write_end)
                _kept_alive(process, keeping, KeeperMemory())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    for descriptor in (write_end, *files):
        os.close(descriptor)
    ready, _, _ = select.select([read_end], [], [], 2 * ANSWER_S)
    said = os.read(read_end, 16) if ready else b""
    os.close(read_end)
    count, _, shared = said.partition(b" ")
    return (int(count), shared == b"shared") if count.isdigit() else None


def is_python(path: Path) -> bool:
    """Whether a program is Python, or a script that Python runs: such a process attaches itself once it computes."""
    with suppress(OSError), path.open("rb") as file:
        first = file.read(256).partition(b"\n")[0]
        if first.startswith(b"#!"):
            return b"python" in first
    return path.resolve().name.startswith(("python", "pypy"))


class OutsideFollowers:
    """Keeps the family of a program with the number `process` on its cores from outside, by its `masks`.

    These are saved in `memory` before they are set.

    They need cores, unless all are Pythons that may still attach themselves, or those that have are all that computes;
    then all may run on the CPUs `limit`. `say` is told once where the program pins threads itself. `attaches_itself`:
    whether what this process was forked from, and still is, soon is such a Python.
    """

    def __init__(
        self, process: int, masks: FamilyMasks, memory: KeeperMemory, limit: frozenset[int],
        say: Callable[[str], None], *, attaches_itself: bool, others_attach: bool,
    ) -> None:  # fmt: skip
        self._masks, self._memory, self._limit, self._say = masks, memory, limit, say
        self._process, self._attaches_itself, self._needs_cores = process, attaches_itself, not attaches_itself
        self._others_attach = others_attach
        self._cpus, self._activity, self._said = limit, Activity(), masks.pinned

    def apply(self, cores: Cores) -> frozenset[int]:
        """Let all threads use these cores and no others; return this process's own mask, which stays."""
        self._cpus = cpus_in(cores)
        self._restrict()
        return frozenset(os.sched_getaffinity(0))

    def catch_up(self) -> bool:
        """Find what began or was pinned since; return whether the program needs cores."""
        found = self._restrict()
        state = found[self._process].state if self._process in found else "S"
        waits = self._activity.observe(sum(one.cpu_s for one in found.values()), state, time.monotonic()) == "waits"
        rests = waits and self._masks.attached
        others = (one for one in found if not self._may_attach(one) or _computed_s(one) >= PYTHON_S)
        needed, self._needs_cores = self._needs_cores, not rests and any(others)
        if needed and not self._needs_cores:
            self._restrict()
        return self._needs_cores

    def _restrict(self) -> Mapping[int, ProcessStatus]:
        cpus = self._cpus if self._needs_cores else self._limit
        self._memory.given.add(cpus)
        self._memory.save()
        found = self._masks.restrict(cpus)
        if self._masks.pinned and not self._said:
            self._said = True
            self._say("pins threads itself: they keep to their CPUs where its cores have these, else to its cores")
        return found

    def _may_attach(self, process: int) -> bool:
        if process == self._process and _command(process) == _command(os.getpid()):
            return self._attaches_itself
        if not self._others_attach:
            return False
        with suppress(OSError):
            return is_python(Path(os.readlink(f"/proc/{process}/exe")))
        return False


@dataclass(frozen=True, slots=True)
class _Keeping:
    """What `start_keeper` was called with, and the file to write the number of cores to."""

    terms: Terms
    arbiter: Path
    limit: frozenset[int]
    attaches_itself: bool
    passage: Passage | None
    tell: int | None

    def keep(self, process: int, masks: FamilyMasks, memory: KeeperMemory) -> bool:
        """Keep one process until it ends, and return whether it could be."""
        terms = replace(self.terms, process=process)

        def say(what: str) -> None:
            with suppress(OSError):
                os.write(2, f"threadcast: {terms.name} ({process}) {what}\n".encode())

        try:
            record_limit(self.limit, os.sched_getaffinity(0))  # which the member takes for its own
            followers = OutsideFollowers(
                process, masks, memory, self.limit, say, attaches_itself=self.attaches_itself,
                others_attach=not self.passage,
            )  # fmt: skip
            member = Member(
                terms, ProcessState(ProcessCores()), arbiter=self.arbiter, steps=self._steps, followers=followers,
                requested=memory.requested, remember=memory.request,
            )  # fmt: skip
            member.start()
            try:
                count, shared = member.first_cores(ANSWER_S)
                if self.tell is not None:
                    with suppress(OSError):  # nobody reads it where the program has begun
                        os.write(self.tell, f"{count} {'shared' if shared else ''}".encode())
                self._wait_for_end(process)
            finally:
                member.close()
        except (OSError, ThreadcastError) as error:
            say(f"is not kept on its cores: {error}")
            return False
        return True

    def _steps(self) -> float:
        if self.passage is None:
            return 0.0
        if not self.passage.passes:
            self.passage.take()
        return self.passage.progress.count

    def _wait_for_end(self, process: int) -> None:
        """Wait until the process has ended, and pass on all that it prints until then."""
        passage = self.passage
        with suppress(ProcessLookupError):
            try:
                ended = os.pidfd_open(process)
            except OSError:  # Linux before 5.3
                ended = None
            while True:
                if passage is not None and passage.follow_size():
                    os.kill(process, signal.SIGWINCH)  # it looked too early, when the real one changed
                source = passage.source if passage is not None and passage.passes else None
                waiting = [one for one in (ended, source) if one is not None]
                every_s = None if ended is not None and source is None else LOOK_S
                ready, _, _ = select.select(waiting, [], [], every_s)
                if passage is not None and source is not None and source in ready:
                    passage.take()
                elif ended in ready or (status := process_status(process)) is None or status.state in "ZX":
                    return


def _kept_alive(process: int, keeping: _Keeping, memory: KeeperMemory) -> None:
    """Have a child keep a process, and another one where that is killed, as by the kernel when memory runs out.

    What the program prints goes through the child, and is held open here meanwhile.
    """
    while True:
        ended, held = os.pipe()
        if (child := os.fork()) == 0:
            try:
                os.close(ended)
                _watch_over(process, keeping, memory)
            finally:
                os._exit(0)
        os.dup2(0, 2)
        for descriptor in (held, *(() if keeping.tell is None else (keeping.tell,))):
            os.close(descriptor)
        keeping = replace(keeping, tell=None)
        if keeping.passage is not None:
            keeping.passage.hold_open(ended)
        killed = os.WIFSIGNALED(os.waitpid(child, 0)[1])
        os.close(ended)
        if not killed:
            return
        time.sleep(LOOK_S)


def _watch_over(process: int, keeping: _Keeping, memory: KeeperMemory) -> None:
    """Keep a process, and then what it has left behind, until there is none."""
    mark = mark_of(process)
    memory.load()  # of a keeper of before, whose masks the program has not set itself
    masks = FamilyMasks(process, Family(process, mark), memory.given)
    while left := [one for one, status in Family(process, mark).look().items() if _is_kept(one, status)]:
        masks.look_after(left[0], Family(left[0], mark))
        if not keeping.keep(left[0], masks, memory):
            return
        memory.request(None)  # it was asked of the one that has ended
        os.dup2(0, 2)  # who reads what the program says need not wait for its daemons


def _is_kept(process: int, status: ProcessStatus) -> bool:
    return status.state not in "ZX" and not is_keeper(process)


def _leave_the_program(keep: tuple[int, ...]) -> None:
    """Hold nothing of the program: its files, folder and signals."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    os.chdir("/")
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        with suppress(OSError):
            if descriptor < 2:
                os.dup2(nothing, descriptor)
            elif descriptor not in (*keep, nothing):
                os.close(descriptor)
    Path("/proc/self/comm").write_text(KEEPER)


def _computed_s(process: int) -> float:
    """CPU time of its threads in seconds, without that of its children: launchers do not compute."""
    return sum(run_s for run_s, _ in thread_times(process).values())


def _command(process: int) -> bytes:
    with suppress(OSError):
        return Path(f"/proc/{process}/cmdline").read_bytes()
    return b""
