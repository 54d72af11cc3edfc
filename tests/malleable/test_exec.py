"""`threadcast exec` with any program: what it is told, its masks from outside, and that it notices nothing else."""

from __future__ import annotations

import os
import pty
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from tests.cli.commands import invoke
from tests.malleable.processes import COMMAND, CORES, PER_CORE, ROOT, line, needs_two_cores, running
from tests.waiting import HANGS_S, eventually
from threadcast.core import read_machine
from threadcast.core.errors import InvalidInput
from threadcast.malleable.attach import attach
from threadcast.malleable.family import Family, process_status
from threadcast.malleable.family_masks import FamilyMasks
from threadcast.malleable.inherited_limit import mark_of
from threadcast.malleable.keeper import is_python
from threadcast.malleable.sockets import ask, listener, socket_of
from threadcast.malleable.thread_masks import ThreadMasks
from threadcast.threads.thread_variables import thread_variables

EXEC = (sys.executable, "-c", COMMAND, "exec")
CPUS = [cpu for core in read_machine().cores for cpu in core.cpus]
needs_cc = pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A C program with threads; see follower.c."""
    made = tmp_path_factory.mktemp("programs") / "follower"
    source = Path(__file__).with_name("follower.c")
    subprocess.run(["cc", "-O1", "-pthread", "-o", made, source], check=True)
    return str(made)


class Kept:
    """A program under `threadcast exec`; `exec` are more of exec's words."""

    def __init__(self, program: str, *words: str) -> None:
        self.process = subprocess.Popen(
            [*EXEC, *words, "--", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True, cwd=ROOT,
        )  # fmt: skip
        self.pid, self.first = self.process.pid, self.line()

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def do(self, what: str) -> int:
        assert self.process.stdin is not None
        self.process.stdin.write(what + "\n")
        self.process.stdin.flush()
        return int(self.line())

    def end(self) -> str:
        """Kill it; returns what it had said on stderr."""
        self.process.kill()
        return self.process.communicate()[1]


@pytest.fixture
def keep(program: str) -> Iterator[Callable[..., Kept]]:
    with ExitStack() as running:

        def begin(*words: str) -> Kept:
            one = Kept(program, *words)
            running.callback(one.end)
            return one

        yield begin


def masks(process: int) -> set[frozenset[int]]:
    """The CPUs of its threads, each set once."""
    found = set()
    for thread in os.listdir(f"/proc/{process}/task"):
        with suppress(ProcessLookupError):
            found.add(frozenset(os.sched_getaffinity(int(thread))))
    return found


def lives(process: int) -> bool:
    status = process_status(process)
    return status is not None and status.state != "Z"


@needs_cc
@needs_two_cores
def test_programs_in_c_share_the_cores_and_are_told_how_many_they_have(
    keep: Callable[..., Kept], arbitrate: Callable[[], Callable[[], None]], tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    caplog.set_level("INFO", "threadcast.arbiter")
    arbitrate()
    first = keep("--name", "first")
    assert first.first == str(CORES)
    second = keep()
    assert second.first == str(CORES // 2)
    assert eventually(lambda: len(masks(first.pid)) == len(masks(second.pid)) == 1)
    assert eventually(lambda: not set.intersection(*map(set, (*masks(first.pid), *masks(second.pid)))))
    shown = ask(tmp_path / "threadcast" / "arbiter.sock", {"who": "all"})["processes"]
    assert [(one["process"], one["name"]) for one in shown] == [(first.pid, "first"), (second.pid, "follower")]
    assert f"{first.pid} (first) joined" in caplog.text
    second.process.kill()
    assert eventually(lambda: masks(first.pid) == {frozenset(CPUS)})


@needs_cc
@needs_two_cores
def test_threads_children_and_daemons_follow_from_outside(keep: Callable[..., Kept]) -> None:
    one = keep()
    family = [one.pid, one.do("c"), one.do("d")]
    try:
        for cores in (1, None, 1):
            ask(socket_of(one.pid), {"resize": cores})
            assert one.do("t") == one.pid
            wanted = {frozenset(CPUS[: PER_CORE * (cores or CORES)])}
            assert eventually(lambda wanted=wanted: [masks(each) for each in family] == [wanted] * 3)
        os.kill(family[1], signal.SIGKILL)
        one.process.kill()
        assert eventually(lambda: socket_of(family[2]).exists())  # the daemon has the keeper now
        assert eventually(lambda: masks(family[2]) == {frozenset(CPUS)})
        ask(socket_of(family[2]), {"resize": 1})
        assert eventually(lambda: masks(family[2]) == {frozenset(CPUS[:PER_CORE])})
    finally:
        for each in family[1:]:
            with suppress(ProcessLookupError):
                os.kill(each, signal.SIGKILL)


@needs_cc
@needs_two_cores
@pytest.mark.parametrize("words", [(), ("--progress-regex", "^[0-9]+$")], ids=["", "counted"])
def test_a_keeper_that_is_killed_comes_again_with_all_that_the_program_was_given(
    keep: Callable[..., Kept], words: tuple[str, ...]
) -> None:
    one = keep(*words)
    ask(socket_of(one.pid), {"resize": 1})
    for _ in range(2):
        assert eventually(lambda: masks(one.pid) == {frozenset(CPUS[:PER_CORE])})
        killed = listener(socket_of(one.pid))
        assert killed
        os.kill(killed, signal.SIGKILL)
        assert one.do("t") == one.pid
        assert eventually(lambda killed=killed: listener(socket_of(one.pid)) not in (None, killed))
    ask(socket_of(one.pid), {"resize": None})
    assert eventually(lambda: masks(one.pid) == {frozenset(CPUS)})
    assert one.process.communicate("e0\n") == ("", "")


@needs_cc
@needs_two_cores
def test_a_program_that_pins_itself_stays_so_where_it_may_and_is_told_once(keep: Callable[..., Kept]) -> None:
    one = keep()
    one.do(f"p{CPUS[-1]}")
    ask(socket_of(one.pid), {"resize": [[CPUS[0]]]})
    assert eventually(lambda: masks(one.pid) == {frozenset(CPUS[:1])})
    ask(socket_of(one.pid), {"resize": None})
    assert eventually(lambda: masks(one.pid) == {frozenset(CPUS[-1:]), frozenset(CPUS)})
    one.do(f"p{CPUS[0]}")
    ask(socket_of(one.pid), {"resize": 1})
    assert eventually(lambda: masks(one.pid) == {frozenset(CPUS[:PER_CORE])} or PER_CORE > 1)
    assert one.end().count("pins threads itself") == 1


@needs_two_cores
def test_what_was_forked_with_a_mask_of_before_has_not_pinned_itself() -> None:
    before = frozenset(CPUS[:1])
    with subprocess.Popen(["taskset", "-c", str(CPUS[0]), "sleep", "600"]) as late:
        try:
            assert eventually(lambda: masks(late.pid) == {before})
            for given, pinned in (((before,), False), ((), True)):
                own = ThreadMasks(late.pid, unpinned=CPUS, given=given)
                own.restrict(CPUS[1:])
                assert own.pinned == pinned
                os.sched_setaffinity(late.pid, before)
        finally:
            late.kill()


@needs_two_cores
def test_what_an_attached_program_leaves_behind_has_all_cores_again() -> None:
    program = (
        "import threadcast, subprocess\nmember = threadcast.attach()\nmember.resize(1)\n"
        "one = subprocess.Popen(['sleep', '600'], start_new_session=True, stdout=subprocess.DEVNULL)\n"
        "print(one.pid, flush=True); input()"
    )
    with running(program) as parent:
        left, mark = int(line(parent)), mark_of(parent.pid)
        try:
            seen = FamilyMasks(parent.pid, Family(parent.pid, mark))
            seen.restrict(CPUS)
            assert masks(left) == {frozenset(CPUS[:PER_CORE])}
            parent.communicate("\n")
            seen.look_after(left, Family(left, mark))
            seen.restrict(CPUS)
            assert masks(left) == {frozenset(CPUS)}
        finally:
            os.kill(left, signal.SIGKILL)


def test_a_python_whose_children_are_kept_already_can_attach_itself() -> None:
    program = (
        "import os, subprocess, time\nsubprocess.Popen(['sleep', '600'], stdout=subprocess.DEVNULL)\n"
        "path = f\"{os.environ['XDG_RUNTIME_DIR']}/threadcast/{os.getpid()}.sock\"\n"
        "while not os.path.exists(path):\n    time.sleep(0.01)\n"
        "import threadcast\nthreadcast.attach()\nprint('attached', flush=True); input()"
    )
    with running(program, *EXEC, "--") as parent:
        assert line(parent) == "attached"
        assert listener(socket_of(parent.pid)) == parent.pid


@pytest.mark.parametrize("words", [(), ("--progress-regex", "y")], ids=["", "counted"])
def test_a_program_ends_as_its_reader_does(words: tuple[str, ...]) -> None:
    with subprocess.Popen([*EXEC, *words, "--", "yes"], stdout=subprocess.PIPE, cwd=ROOT) as endless:
        assert endless.stdout is not None
        assert endless.stdout.read(4) == b"y\ny\n"
        endless.stdout.close()
        assert endless.wait(60) == -signal.SIGPIPE


@pytest.mark.parametrize("words", [(), ("--progress-regex", "y")], ids=["", "counted"])
def test_who_reads_what_a_program_says_waits_neither_for_what_it_leaves_behind_nor_for_its_keeper(
    words: tuple[str, ...],
) -> None:
    program = "sleep 600 < /dev/null > /dev/null 2>&1 & echo $!"
    said = subprocess.run(
        [*EXEC, *words, "--", "sh", "-c", program], capture_output=True, text=True, cwd=ROOT, timeout=HANGS_S
    )  # fmt: skip
    left = int(said.stdout)
    try:
        assert eventually(lambda: socket_of(left).exists())
    finally:
        os.kill(left, signal.SIGKILL)


@needs_cc
def test_a_program_under_two_execs_is_kept_by_the_inner_one_alone(program: str) -> None:
    with subprocess.Popen(
        [*EXEC, "--", *EXEC, "--", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, cwd=ROOT,
    ) as one:  # fmt: skip
        assert one.stdout is not None
        assert one.stdout.readline() == f"{CORES}\n"
        assert len(ask(socket_of(one.pid), {"resize": 1})["cores"]) == 1
        assert masks(one.pid) == {frozenset(CPUS[:PER_CORE])}
        assert one.communicate("e0\n") == ("", "")
    assert eventually(lambda: not socket_of(one.pid).exists())


@needs_cc
@pytest.mark.parametrize(("end", "status"), [("e7", 7), (signal.SIGTERM, -15), (signal.SIGKILL, -9)], ids=str)
def test_the_end_of_a_program_is_that_of_exec(keep: Callable[..., Kept], end: str | int, status: int) -> None:
    one = keep()
    if isinstance(end, str):
        assert one.process.communicate(end + "\n") == ("", "")
    else:
        one.process.send_signal(end)
    assert one.process.wait(60) == status


@needs_cc
def test_a_terminal_is_the_programs_own_and_interrupts_it(program: str) -> None:
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(ROOT)
        os.execv(sys.executable, [*EXEC, "--", "sh", "-c", f"test -t 0 -a -t 1 -a -t 2 && exec {program}"])
    assert os.read(terminal, 100).strip() == str(CORES).encode()
    os.write(terminal, b"\x03")
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGINT
    os.close(terminal)


@needs_cc
def test_an_openmp_program_makes_teams_of_its_cores_unless_the_user_says_how_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "#include <omp.h>\n#include <stdio.h>\nint main(void) {\n#pragma omp parallel\n#pragma omp single\n"
    (tmp_path / "team.c").write_text(text + 'printf("%d", omp_get_num_threads()); }\n')
    team = tmp_path / "team"
    if subprocess.run(["cc", "-fopenmp", "-o", team, tmp_path / "team.c"]).returncode:
        pytest.skip("the C compiler has no OpenMP")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    command = [*EXEC, "--", str(team)]
    assert subprocess.run(command, capture_output=True, text=True, cwd=ROOT).stdout == str(CORES)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert subprocess.run(command, capture_output=True, text=True, cwd=ROOT).stdout == "3"


def test_openmp_does_not_spin_where_cores_may_be_taken_away_unless_the_user_says_how_long() -> None:
    assert thread_variables(8, {}, shared=True).items() - thread_variables(8, {}, shared=False).items() == {
        ("OMP_WAIT_POLICY", "passive")
    }
    assert "OMP_WAIT_POLICY" not in thread_variables(8, {"GOMP_SPINCOUNT": "100"}, shared=True)
    assert "OMP_NUM_THREADS" not in thread_variables(8, {"OMP_NUM_THREADS": "3"}, shared=False)
    assert [thread_variables(cores, {}, shared=False)["UV_THREADPOOL_SIZE"] for cores in (1, 8)] == ["4", "8"]


def test_pythons_are_known_by_their_name_or_first_line(tmp_path: Path) -> None:
    script, other = tmp_path / "train", tmp_path / "run"
    script.write_text("#!/usr/bin/env python3\n")
    other.write_text("#!/bin/sh\npython train.py\n")
    assert [is_python(one) for one in (Path(sys.executable), script, other, tmp_path)] == [True, True, False, False]


def test_what_cannot_be_run_ends_as_in_a_shell_and_a_script_of_no_interpreter_is_run_by_it(tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("echo $2 $0\nexit 7\n")
    for word, mode, code in (
        ("no-such-program", 0o755, 127), (f"{tmp_path}/none", 0o755, 127), (f"{script}", 0o644, 126),
        (f"{tmp_path}", 0o755, 126), (f"{script}", 0o755, 7),
    ):  # fmt: skip
        script.chmod(mode)
        told = subprocess.run([*EXEC, "--", word, "a", "b"], capture_output=True, text=True, cwd=ROOT)
        assert told.returncode == code, word
        assert told.stdout == (f"b {script}\n" if code == 7 else "")
        assert "Traceback" not in told.stderr
    script.write_text("#!/no/such/interpreter\n")
    assert subprocess.run([*EXEC, "--", script], capture_output=True, cwd=ROOT).returncode == 127


def test_more_cores_than_there_are_are_refused_as_least() -> None:
    told = invoke("exec", "--least", str(CORES + 1), "--", "true")
    assert told.exit_code == 1
    assert f"least={CORES + 1} is more than the {CORES} cores" in told.output
    with pytest.raises(InvalidInput, match="more than the"):
        attach(least=CORES + 1)
    assert not socket_of(os.getpid()).exists()


@pytest.mark.parametrize("command", [("exec", "--", "true"), ("arbiter",), ("top",), ("resize", "1", "1")], ids=str)
def test_elsewhere_than_on_linux_it_says_so(monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    told = invoke(*command)
    assert told.exit_code == 1
    assert f"threadcast {command[0]} needs Linux" in told.output
