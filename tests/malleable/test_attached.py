"""Real processes, attached: their threads follow what they are given, and an arbiter divides the cores among them."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.malleable.processes import COMMAND, CORES, EXECUTED, PER_CORE, ROOT, Running, line, needs_two_cores, running
from tests.waiting import eventually
from threadcast import malleable
from threadcast.core import read_machine
from threadcast.core.errors import InvalidInput
from threadcast.malleable.arbiter import GATHER_S
from threadcast.malleable.attach import attach
from threadcast.malleable.lines import line as message
from threadcast.malleable.sockets import ask, connect, socket_of
from threadcast.threads.memory import KEEPING

LONG_S = 60.0
"""What an answer takes at most on a machine that does much else."""


@needs_two_cores
def test_a_process_follows_what_it_is_told(start: Callable[..., Running]) -> None:
    one = start()
    path = socket_of(one.process.pid)
    assert len(ask(path, {"resize": 1})["cores"]) == 1
    assert eventually(lambda: one.uses(1))
    assert len(ask(path, {"resize": None})["cores"]) == CORES
    assert eventually(lambda: one.uses(CORES))
    last = [list(core.cpus) for core in read_machine().cores][-1:]
    assert ask(path, {"resize": last})["cores"] == last
    assert eventually(lambda: one.now()["masks"] == last)
    assert "at least 1 core" in ask(path, {"resize": 0})["error"]
    assert "this machine has" in ask(path, {"resize": 100_000})["error"]
    assert "may use CPUs" in ask(path, {"resize": [[4096]]})["error"]
    for nonsense in ("two", 1.5, True, {}, [1]):
        assert "must be" in ask(path, {"resize": nonsense})["error"]
    assert "cores" in ask(path, {"resize": 1})
    with connect(path) as rude:
        rude.sendall(b"nonsense\n")
        assert b"not JSON" in rude.recv(1000)
        assert rude.recv(100) == b""
    with connect(path) as deep:
        deep.sendall(b"[" * 60_000 + b"\n")
        assert b"error" in deep.recv(1000)
    assert len(ask(path, {"resize": None})["cores"]) == CORES


@pytest.mark.parametrize(
    "wrong",
    [
        {"weight": -1}, {"weight": "2"}, {"least": 0}, {"least": "1"}, {"most": 1.5}, {"least": 2, "most": 1},
        {"name": 3},
    ],
    ids=str,
)  # fmt: skip
def test_terms_that_no_arbiter_would_take_are_refused_and_leave_nothing(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match=list(wrong)[-1]):
        attach(**wrong)
    assert not socket_of(os.getpid()).exists()


@pytest.mark.system
@needs_two_cores
@pytest.mark.parametrize("command", [(), EXECUTED], ids=["attach", "exec"])
def test_libraries_use_the_cores_from_the_start(
    start: Callable[..., Running], monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    one = start(*command)
    assert eventually(lambda: one.uses(CORES))


@pytest.mark.system
def test_the_socket_goes_with_the_process(start: Callable[..., Running]) -> None:
    one = start()
    path = socket_of(one.process.pid)
    assert path.exists()
    assert one.process.stdin is not None
    one.process.stdin.close()
    one.process.wait(10)
    assert not path.exists()


@needs_two_cores
def test_processes_share_while_both_are_there_and_all_is_given_back(
    start: Callable[..., Running], arbitrate: Callable[[], Callable[[], None]], tmp_path: Path
) -> None:
    arbitrate()
    first = start()
    assert eventually(lambda: first.uses(CORES))
    second = start()
    assert eventually(lambda: len(first.now()["masks"][0]) + len(second.now()["masks"][0]) == CORES * PER_CORE)
    mine, others = first.now()["masks"], second.now()["masks"]
    assert not set(mine[0]) & set(others[0])
    assert first.now("train")["threads"] * PER_CORE == len(mine[0])
    shown = ask(tmp_path / "threadcast" / "arbiter.sock", {"who": "all"})
    assert {one["process"] for one in shown["processes"]} == {first.process.pid, second.process.pid}
    second.process.kill()
    assert eventually(lambda: first.uses(CORES))


STEPPING = """
import threadcast, torch
from threadcast.threads.this_process import this_process
threadcast.attach()
optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
while True:
    optimizer.step()
"""


@needs_two_cores
@pytest.mark.parametrize("expects", ["", "this_process().steps.expect({1: 10.0, 2: 8.0})"], ids=["", "expects"])
def test_steps_of_optimizers_are_progress_and_what_is_expected_of_more_cores_counts(
    arbitrate: Callable[[], Callable[[], None]], tmp_path: Path, expects: str
) -> None:
    arbitrate()
    path = tmp_path / "threadcast" / "arbiter.sock"
    with running(STEPPING.replace("while", f"{expects}\nwhile")) as one:
        assert eventually(lambda: any(each["steps_per_s"] for each in list_of(path)))
        if expects:
            assert len(os.sched_getaffinity(one.pid)) == PER_CORE


FORKING = """
import os, sys, threadcast
threadcast.attach()
sys.stdin.readline()
child = os.fork()
if child:
    print(child, flush=True)
sys.stdin.readline()
"""


UNSEEN = FORKING.replace("import os", "import ctypes, os").replace("os.fork()", "ctypes.CDLL(None).fork()")
"""None of Python's hooks runs."""


@pytest.mark.parametrize("program", [FORKING, UNSEEN], ids=["by Python", "by a library"])
def test_cores_come_back_from_a_process_whose_forked_child_lives_on(
    arbitrate: Callable[[], Callable[[], None]], tmp_path: Path, program: str
) -> None:
    arbitrate()
    path = tmp_path / "threadcast" / "arbiter.sock"
    with running(program) as parent:
        assert parent.stdin is not None
        assert eventually(lambda: len(ask(path, {"who": "all"})["processes"]) == 1)
        parent.stdin.write("fork\n")
        parent.stdin.flush()
        child = int(line(parent))
        try:
            parent.kill()
            assert eventually(lambda: ask(path, {"who": "all"})["processes"] == [])
            os.kill(child, 0)  # it is still there
        finally:
            os.kill(child, signal.SIGKILL)


@pytest.mark.system
@needs_two_cores
def test_processes_outlive_their_arbiter_and_come_back_to_the_next(
    start: Callable[..., Running], arbitrate: Callable[[], Callable[[], None]], tmp_path: Path
) -> None:
    stop = arbitrate()
    first, second = start(), start()
    assert eventually(lambda: first.uses(CORES // 2) or second.uses(CORES // 2))
    assert eventually(lambda: not set(first.now()["masks"][0]) & set(second.now()["masks"][0]))
    before = first.now()["masks"]
    stop()
    assert first.now()["masks"] == before
    ahead_s = 0.0
    arbitrate(lambda: ahead_s)  # its clock stands: it gathers for as long as the test wants
    path = tmp_path / "threadcast" / "arbiter.sock"
    assert eventually(lambda: len(ask(path, {"who": "all"})["processes"]) == 2)
    held = {one["process"]: one["cores"] for one in ask(path, {"who": "all"})["processes"]}
    ahead_s = 10 * GATHER_S
    for _ in range(3):  # orders go out after each answer, and would show in the next
        found = {one["process"]: one["cores"] for one in ask(path, {"who": "all"})["processes"]}
        assert found == held
    assert first.now()["masks"] == before


@needs_two_cores
def test_exec_attaches_a_program_that_knows_nothing_of_it(
    start: Callable[..., Running], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in KEEPING:
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "sitecustomize.py").write_text(f"open({str(tmp_path / 'seen')!r}, 'w').close()")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(ROOT)]))
    one = start(sys.executable, "-c", COMMAND, "exec", "--weight", "2", "--", sys.executable)
    assert len(ask(socket_of(one.process.pid), {"resize": 1})["cores"]) == 1
    assert eventually(lambda: one.uses(1))
    seen = Path(f"/proc/{one.process.pid}/environ").read_bytes()
    assert (tmp_path / "seen").exists(), "the sitecustomize that was there before has run too"
    assert b"MALLOC_TRIM_THRESHOLD_=-1" in seen
    assert b"THREADCAST_MALLEABLE_WEIGHT=2" in seen


def test_an_arbiter_is_found_from_wherever_a_program_goes(
    arbitrate: Callable[[], Callable[[], None]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arbitrate()
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    program = "import os; os.chdir('/'); import numpy; input()"
    command = ["exec", "--arbiter", "threadcast/arbiter.sock", "--", sys.executable, "-c", program]
    with subprocess.Popen([sys.executable, "-c", COMMAND, *command], stdin=subprocess.PIPE, cwd=tmp_path) as one:
        path = tmp_path / "threadcast" / "arbiter.sock"
        try:
            assert eventually(lambda: [each["process"] for each in ask(path, {"who": "all"})["processes"]] == [one.pid])
        finally:
            one.kill()


@pytest.mark.parametrize(
    ("argument", "attached"), [("train", True), ("threadcast.scheduler.planner_process", False)], ids=["user", "own"]
)
def test_processes_that_threadcast_starts_do_not_attach_themselves(argument: str, attached: bool) -> None:
    inject = Path(malleable.__file__).parent / "inject"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(inject), str(ROOT)])}
    program = "import numpy, sys, threading\n"
    program += "[one.join(60) for one in threading.enumerate() if one.name == 'threadcast-waiting']\n"
    program += "print('threadcast.malleable.attach' in sys.modules)"
    command = [sys.executable, "-c", program, argument]
    said = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert (said.stdout.strip(), said.stderr) == (str(attached), "")


def test_an_arbiter_refuses_nonsense_and_goes_on(arbitrate: Callable[[], Callable[[], None]], tmp_path: Path) -> None:
    arbitrate()
    path = tmp_path / "threadcast" / "arbiter.sock"
    for wrong in (b"nonsense\n", b'{"steps": 1}\n', b'{"join": {"holds": [], "most": Infinity}}\n', b"x" * 70_000):
        with connect(path) as rude:
            rude.sendall(wrong)
            answer = rude.recv(1000)
            assert b"error" in answer or answer == b""
    with connect(path) as joined:
        joined.sendall(message({"join": {"holds": [], "name": "x"}}))
        assert b"cores" in joined.recv(1000)
        joined.sendall(message({"join": {"holds": []}}))
        assert b"joined already" in joined.recv(1000)
    assert eventually(lambda: ask(path, {"who": "all"})["processes"] == [])


def test_who_does_not_read_answers_cannot_join(arbitrate: Callable[[], Callable[[], None]], tmp_path: Path) -> None:
    arbitrate()
    path = tmp_path / "threadcast" / "arbiter.sock"
    with connect(path) as deaf:
        deaf.sendall(message({"who": "all"}) * 1_000 + message({"join": {"holds": []}}))
        looking = select.poll()
        looking.register(deaf, 0)
        assert looking.poll(60_000), "its connection is closed"
        assert ask(path, {"who": "all"})["processes"] == []


@pytest.mark.system
def test_hundreds_of_processes_are_listed(arbitrate: Callable[[], Callable[[], None]], tmp_path: Path) -> None:
    arbitrate()
    path = tmp_path / "threadcast" / "arbiter.sock"
    with ExitStack() as closing:
        for number in range(200):
            joined = closing.enter_context(connect(path, LONG_S))
            joined.sendall(message({"join": {"holds": [], "name": "ü" * 1_500, "weight": number + 1}}))
            if number % 100 == 99:  # the arbiter's socket has room for 128 that are not accepted yet
                assert eventually(lambda so_far=number + 1: len(list_of(path)) == so_far)
        slow = closing.enter_context(connect(path, LONG_S))
        slow.sendall(message({"who": "all"}) * 5)  # more than fits into a socket, and nobody reads
        found = ask(path, {"who": "all"}, LONG_S)
        assert len(found["processes"]) == 200
        got = sum(len(data) for data in iter(lambda: slow.recv(1 << 20), b""))  # up to where it was dropped
        assert 0 < got < 2 * len(message(found))


def list_of(path: Path) -> list[Any]:
    """The processes that the arbiter lists."""
    found: list[Any] = ask(path, {"who": "all"}, LONG_S)["processes"]
    return found
