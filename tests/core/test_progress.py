"""Progress on stderr, on a terminal and elsewhere."""

from __future__ import annotations

import io
import sys
import threading

import pytest

from tests.clock import Clock
from tests.waiting import eventually
from threadcast.core import progress
from threadcast.core.progress import ProgressBar


def test_progress_without_a_terminal_is_a_line_now_and_then_with_the_time_left(
    capsys: pytest.CaptureFixture[str],
) -> None:
    clock = Clock()
    with ProgressBar("timing", total=100, clock=clock) as bar:
        for done in range(1, 51):
            clock.now_s += 1.0
            bar.update(done)
        bar.update(50, doing="resting")
    captured = capsys.readouterr()
    assert captured.out == ""
    lines = captured.err.splitlines()
    assert len(lines) == 10
    assert lines[:2] == ["timing: 5 of 100", "timing: 10 of 100, about 90 s left"]
    assert lines[-1] == "timing: 50 of 100, about 50 s left"


def test_what_blocks_is_looked_at_from_another_thread(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "_LOOK_EVERY_S", 0.0)
    clock, looks = Clock(), list[int]()

    def look() -> tuple[int, str]:
        clock.now_s = 6.0
        looks.append(1)
        return 6, "learning, on its way"

    with ProgressBar("learning", total=8, unit=" s", look=look, clock=clock):
        assert eventually(lambda: len(looks) > 1)
    assert capsys.readouterr().err == "learning, on its way: 6 of 8 s, about 2 s left\n"
    assert "threadcast-progress" not in {thread.name for thread in threading.enumerate()}


def test_on_a_terminal_a_bar_tells_what_is_done_and_is_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stderr", said := Terminal())
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr(progress, "_LOOK_EVERY_S", 0.0)
    with ProgressBar("learning", total=9, look=lambda: (7, "learning much")):
        assert eventually(lambda: "learning much" in said.getvalue() and "7/9" in said.getvalue())
    assert "\x1b[2K" in said.getvalue().rpartition("7/9")[2]
