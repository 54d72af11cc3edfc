"""A process that builds backends stops while its caller times steps, and never for good."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from select import select

import pytest

from tests.waiting import HANGS_S, eventually
from threadcast.runtime.backends import search_guard
from threadcast.runtime.backends.search_guard import PAUSE, RESUME
from threadcast.runtime.backends.search_worker import DONE

WORK = """
import os, signal
signal.signal(signal.SIGCONT, lambda *_: print("goes on", flush=True))
print(os.getpid(), flush=True)
while True: signal.pause()
"""
"""Tells its process id, which the guard has not told, and when it goes on after a pause."""


@contextmanager
def guarded(
    folder: Path, *, most_pause_s: float | None = None, lock: Path | str = ""
) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A guard that runs `WORK`, and the id of that process."""
    script = search_guard.__file__
    if most_pause_s is not None:
        copy = folder / "guard.py"
        text = Path(script).read_text()
        copy.write_text(text.replace(f"MOST_PAUSE_S = {search_guard.MOST_PAUSE_S}", f"MOST_PAUSE_S = {most_pause_s}"))
        script = str(copy)
    file = os.open(os.devnull, os.O_RDONLY)
    guard = subprocess.Popen(
        [sys.executable, "-I", script, str(os.getpid()), "0", str(file), str(lock), sys.executable, "-c", WORK],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=[file], env={**os.environ, "TMPDIR": str(folder)},
    )  # fmt: skip
    os.close(file)
    assert guard.stdin is not None
    assert guard.stdout is not None
    try:
        [of_work] = {guard.stdout.readline(), guard.stdout.readline()} - {b"{}\n"}
        yield guard, int(of_work)
    finally:
        guard.stdin.close()
        guard.stdout.close()
        guard.wait(HANGS_S)


def stopped(process: int) -> bool:
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def test_a_paused_process_stops_until_it_is_resumed(tmp_path: Path) -> None:
    with guarded(tmp_path) as (guard, process):
        guard.send_signal(PAUSE)
        eventually(lambda: stopped(process))
        guard.send_signal(RESUME)
        eventually(lambda: not stopped(process))


def test_a_paused_process_ends_with_its_caller(tmp_path: Path) -> None:
    with guarded(tmp_path) as (guard, process):
        guard.send_signal(PAUSE)
        eventually(lambda: stopped(process))
    assert not Path(f"/proc/{process}").exists()
    assert not list(tmp_path.glob(f"{search_guard.PREFIX}*"))


def test_a_pause_that_nobody_ends_is_over_after_a_while(tmp_path: Path) -> None:
    with guarded(tmp_path, most_pause_s=0.0) as (guard, _):
        guard.send_signal(PAUSE)
        assert guard.stdout is not None
        eventually(lambda: select([guard.stdout], [], [], 0.0)[0])  # the pause itself may be over before a look
        assert guard.stdout.readline() == b"goes on\n"


@pytest.mark.parametrize("number", [PAUSE, RESUME])
def test_signals_after_the_process_has_ended_do_nothing(tmp_path: Path, number: int) -> None:
    with guarded(tmp_path) as (guard, process):
        os.kill(process, 9)
        eventually(lambda: not Path(f"/proc/{process}").exists())
        guard.send_signal(number)
    assert guard.returncode == 0


def test_of_guards_with_one_lock_one_command_runs_unless_it_was_paused_for_long(tmp_path: Path) -> None:
    lock = tmp_path / "cache" / "learner"
    with guarded(tmp_path, lock=lock) as (first, worker):
        file = os.open(os.devnull, os.O_RDONLY)
        second = subprocess.Popen(
            [sys.executable, "-I", search_guard.__file__, str(os.getpid()), "0", str(file), str(lock), sys.executable,
             "-c", WORK],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=[file], env={**os.environ, "TMPDIR": str(tmp_path)},
        )  # fmt: skip
        os.close(file)
        assert second.stdin is not None
        assert second.stdout is not None
        with second.stdin, second.stdout:
            assert not select([second.stdout], [], [], 2 * search_guard._LOOK_S)[0], "it waits"
            first.send_signal(PAUSE)
            lines = {second.stdout.readline(), second.stdout.readline()} - {b"{}\n"}
            first.send_signal(RESUME)
            assert len(lines) == 1, "its command has begun"
            assert stopped(worker), "the first one has no turn now"
        second.wait(HANGS_S)
        eventually(lambda: not stopped(worker))


def test_an_idle_process_ends_and_so_does_its_guard(tmp_path: Path) -> None:
    idle = (
        "import sys; from pathlib import Path; from threadcast.runtime.backends import search_worker as worker\n"
        "worker.IDLE_S = 0.0; worker.Caller(Path(sys.argv[1])).wait_for_program()"
    )
    with open(os.devnull, "rb") as file:
        guard = subprocess.Popen(
            [sys.executable, "-I", search_guard.__file__, str(os.getpid()), "0", str(file.fileno()), "",
             sys.executable, "-c", idle],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=[file.fileno()],
            env={**os.environ, "TMPDIR": str(tmp_path)},
        )  # fmt: skip
    assert guard.stdin is not None
    assert guard.stdout is not None
    with guard.stdin, guard.stdout:
        assert guard.stdout.readline() == b"{}\n"
        assert not select([guard.stdout], [], [], 0.1)[0], "what it has built may still be opened"
        guard.stdin.write(bytes([DONE]))
        guard.stdin.flush()
        assert guard.wait(HANGS_S) == 0
    assert not list(tmp_path.glob(f"{search_guard.PREFIX}*"))
