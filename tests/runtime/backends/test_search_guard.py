"""A process that builds backends works when it is let, and while its caller computes nothing; else it rests."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from select import select
from threading import Event, Thread
from types import SimpleNamespace

import pytest

from tests.waiting import HANGS_S, eventually
from threadcast.runtime.backends import search_guard
from threadcast.runtime.backends.search_guard import LOOK, LOOK_S, QUIET_S, WORK_S, Idleness
from threadcast.runtime.backends.ways import DONE

WORK = """
import os, signal
print(os.getpid(), flush=True)
while True: signal.pause()
"""
"""Tells its process id, which the guard has not told."""


class Guard:
    """A guard that runs a command, and what its caller can tell it."""

    def __init__(self, folder: Path, command: str = WORK, *, works: bool = True, lock: Path | str = "") -> None:
        self.state, file = os.memfd_create("state"), os.open(os.devnull, os.O_RDONLY)
        os.pwrite(self.state, bytes([works, 0]), 0)
        self.process = subprocess.Popen(
            [sys.executable, "-I", search_guard.__file__, str(os.getpid()), "0", str(file), str(self.state), str(lock),
             sys.executable, "-c", command],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=[file, self.state],
            env={**os.environ, "TMPDIR": str(folder)},
        )  # fmt: skip
        os.close(file)
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.stdin, self.stdout = self.process.stdin, self.process.stdout

    def tell(self, *, works: bool) -> None:
        os.pwrite(self.state, bytes([works]), 0)
        self.process.send_signal(LOOK)

    @property
    def has_turn(self) -> bool:
        return os.pread(self.state, 1, 1) == b"\1"

    def begun(self) -> int:
        """The id of the process that the command is, once it has begun."""
        [of_work] = {self.stdout.readline(), self.stdout.readline()} - {b"{}\n"}
        return int(of_work)

    def __enter__(self) -> Guard:
        return self

    def __exit__(self, *_: object) -> None:
        self.stdin.close()
        self.stdout.close()
        self.process.wait(HANGS_S)
        os.close(self.state)


def stopped(process: int) -> bool:
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "T"


@pytest.fixture
def busy() -> Iterator[None]:
    """This process computes."""
    ends = Event()
    thread = Thread(target=lambda: next(i for i in count() if ends.is_set()))
    thread.start()
    yield
    ends.set()
    thread.join()


@pytest.mark.parametrize("works", [True, False])
def test_its_command_ends_though_it_is_killed_itself(tmp_path: Path, *, works: bool) -> None:
    with Guard(tmp_path) as guard:
        status = Path(f"/proc/{guard.begun()}/stat")
        guard.tell(works=works)
        guard.process.kill()

        def has_ended() -> bool:
            try:
                return status.read_text().rpartition(")")[2].split()[0] in "ZX"
            except (FileNotFoundError, ProcessLookupError):
                return True

        assert eventually(has_ended)


def test_it_works_while_its_caller_computes_nothing_and_a_core_is_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s, caller_s, idle_s = 0.0, 0.0, 0.0
    monkeypatch.setattr(search_guard, "time", SimpleNamespace(monotonic=lambda: now_s))
    monkeypatch.setattr(Idleness, "_caller_s", lambda _: caller_s)
    monkeypatch.setattr(Idleness, "_machine_s", lambda _: idle_s)
    idleness = Idleness(os.getpid())

    def passed(seconds: float, *, used: float, idle: float) -> bool:
        nonlocal now_s, caller_s, idle_s
        seconds *= 1.01  # however it is rounded
        now_s, caller_s, idle_s = now_s + seconds, caller_s + used * seconds, idle_s + idle * seconds
        idleness.look()
        return idleness.found

    assert not passed(QUIET_S / 2, used=0.0, idle=2.0), "it is too early to know"
    assert passed(QUIET_S, used=0.0, idle=1.0)
    assert passed(LOOK_S, used=0.0, idle=0.0), "itself it may use all cores"
    assert not passed(LOOK_S, used=1.0, idle=0.0)
    assert not passed(QUIET_S, used=1.0, idle=1.0), "the caller computes"
    assert not passed(QUIET_S, used=0.0, idle=0.1), "others compute"
    assert passed(QUIET_S, used=0.0, idle=2.0)
    assert not passed(WORK_S, used=0.0, idle=0.0), "others may compute now"


def test_the_clocks_of_the_caller_and_of_the_machine_go_on() -> None:
    idleness = Idleness(os.getpid())
    before_s = idleness._caller_s(), idleness._machine_s()
    assert before_s[0] == pytest.approx(time.process_time(), abs=0.5)
    assert before_s[1] > 0
    eventually(lambda: idleness._caller_s() > before_s[0])


@pytest.mark.parametrize("works", [False, True])
def test_signals_after_the_process_has_ended_do_nothing(tmp_path: Path, works: bool) -> None:
    with Guard(tmp_path) as guard:
        process = guard.begun()
        os.kill(process, 9)
        eventually(lambda: not Path(f"/proc/{process}").exists())
        guard.tell(works=works)
    assert guard.process.returncode == 0


@pytest.mark.usefixtures("busy")
def test_of_guards_with_one_lock_one_command_runs_unless_it_has_rested_for_long(tmp_path: Path) -> None:
    lock = tmp_path / "cache" / "learner"
    with Guard(tmp_path, lock=lock) as first:
        worker = first.begun()
        with Guard(tmp_path, lock=lock) as second:
            assert not select([second.stdout], [], [], 2 * search_guard._LOOK_S)[0], "it waits"
            assert not second.has_turn
            first.tell(works=False)
            assert second.begun(), "its command has begun"
            first.tell(works=True)
            eventually(lambda: second.has_turn and not first.has_turn)
            assert stopped(worker), "the first one has no turn now"
        eventually(lambda: first.has_turn and not stopped(worker))


@pytest.mark.parametrize("first", [True, False])
def test_an_idle_process_ends_and_so_does_its_guard(tmp_path: Path, first: bool) -> None:
    idle = (
        "import sys; from pathlib import Path; from threadcast.runtime.backends import search_worker as worker\n"
        f"worker.IDLE_S = 0.0; worker.Caller(Path(sys.argv[1])).wait_for_program(first={first})"
    )
    with Guard(tmp_path, idle) as guard:
        if not first:
            assert guard.stdout.readline() == b"{}\n"
            assert not select([guard.stdout], [], [], 0.1)[0], "what it has built may still be opened"
            guard.stdin.write(bytes([DONE]))
            guard.stdin.flush()
        assert guard.process.wait(HANGS_S) == 0
    assert not list(tmp_path.glob(f"{search_guard.PREFIX}*"))
