"""Progress by what a program prints, which reaches its reader unchanged."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import termios
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.cli.commands import invoke
from tests.malleable.processes import ROOT
from tests.malleable.test_exec import EXEC, Kept, keep, needs_cc, program
from tests.waiting import eventually
from threadcast.core.errors import InvalidInput
from threadcast.malleable.line_progress import LineProgress, Passage, progress_pattern
from threadcast.malleable.sockets import ask

__all__ = ["keep", "program"]
SAYS = "import sys; [print('step', i, end=sys.argv[1]) for i in range(5)]; print('x' * 99_999, end='')"
WITH = [*EXEC, "--progress-regex", r"step (\d+)", "--", sys.executable, "-c", SAYS]


@pytest.mark.parametrize(
    ("pattern", "said", "count"),
    [
        ("step", b"step 1\nstep 2\nanother\nstep", 2),
        (r"step ([\d,]+)/", b"step 5/9\rstep 7/9\rstep 1,000/2\r", 995),
        (r"(\d+\.\d+) s", b"1.5 s\n2.0 s\n", 0.5),
        (r"epoch step (\d+)", b"epoch step 8\nepoch step 9\nepoch step 2\n", 3),
        (r"step (\d*)", b"step \nstep 4\nstep x\nstep 5\n", 1),
        ("(?:a|b)\xff", b"a\xc3\xbf\n", 1),
    ],
)
@pytest.mark.parametrize("at_once", [1, 3, 1000])
def test_lines_that_match_are_counted_or_the_numbers_in_them(
    pattern: str, said: bytes, count: float, at_once: int
) -> None:
    progress = LineProgress(progress_pattern(pattern))
    for start in range(0, len(said), at_once):
        progress.feed(said[start : start + at_once])
    assert progress.count == count


@pytest.mark.parametrize(("wrong", "why"), [("(", "no regular expression"), ("(a)(b)", "has 2 groups")])
def test_what_is_no_pattern_is_refused(wrong: str, why: str) -> None:
    with pytest.raises(InvalidInput, match=why):
        progress_pattern(wrong)
    assert why in invoke("exec", "--progress-regex", wrong, "--", "true").output


def test_what_a_program_prints_reaches_pipes_files_and_terminals_unchanged(tmp_path: Path) -> None:
    wanted = subprocess.run([sys.executable, "-c", SAYS, "\n"], capture_output=True).stdout
    assert subprocess.run([*WITH, "\n"], capture_output=True, cwd=ROOT).stdout == wanted
    (tmp_path / "log").write_bytes(b"before\n")
    with (tmp_path / "log").open("ab") as log:
        subprocess.run([*WITH, "\n"], stdout=log, cwd=ROOT, check=True)
    assert (tmp_path / "log").read_bytes() == b"before\n" + wanted
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(ROOT)
        os.execv(
            sys.executable, [*WITH[:-1], SAYS.replace("import sys;", "import sys; assert sys.stdout.isatty();"), "\r"]
        )
    said = b""
    while len(said) < len(wanted):
        said += os.read(terminal, 1 << 16)
    assert said == wanted.replace(b"\n", b"\r")
    assert os.waitpid(child, 0)[1] == 0
    os.close(terminal)


def test_a_reader_that_is_slow_to_read_what_may_not_block_gets_all(tmp_path: Path) -> None:
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    said = b"x" * 300_000
    (tmp_path / "said").write_bytes(said)

    def passes() -> None:
        source = os.open(tmp_path / "said", os.O_RDONLY)
        passage = Passage(source, write_end, LineProgress(progress_pattern("x")))
        while passage.passes:
            passage.take()

    with ThreadPoolExecutor(1) as threads, os.fdopen(read_end, "rb") as reader:
        passing = threads.submit(passes)
        assert reader.read() == said
        passing.result()


def test_a_terminal_keeps_the_size_of_the_real_one_and_the_program_is_told() -> None:
    program = (
        "import os, signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGWINCH])\nprint('ready', flush=True)\n"
        "while True: signal.sigwait([signal.SIGWINCH]); print(os.get_terminal_size(1).lines, flush=True)"
    )
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(ROOT)
        os.execv(sys.executable, [*WITH[:-1], program])
    try:
        with os.fdopen(os.dup(terminal)) as says:
            assert says.readline() == "ready\n"
            termios.tcsetwinsize(terminal, (33, 44))
            assert next(one for one in says if one in ("33\n", "33\r\n"))
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(terminal)


@needs_cc
def test_steps_are_what_it_has_printed(
    keep: Callable[..., Kept], arbitrate: Callable[[], Callable[[], None]], tmp_path: Path
) -> None:
    arbitrate()
    one = keep("--progress-regex", "^[0-9]+$")
    path = tmp_path / "threadcast" / "arbiter.sock"
    assert eventually(lambda: one.do("t") and ask(path, {"who": "all"})["processes"][0]["steps_per_s"])
