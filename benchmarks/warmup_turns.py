"""Runs a case by threadcast and in eager PyTorch by turns, each in a process of its own, and records every call.

While one runs, all processes of the other are stopped, also those in which threadcast plans: what either does between
its calls must not slow the other down. The seconds of threadcast's calls are counted, not the pauses.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from run_facts import RunFacts
from sessions import Session
from warmup_others import OtherWork

TURN_S, EAGER_S = 2.0, 0.4
"""Seconds of a turn of threadcast, and of eager PyTorch before and after it."""


@dataclass(frozen=True, slots=True)
class Block:
    """Calls by threadcast one after the other, and the eager calls right before them, in seconds."""

    eager_s: Sequence[float]
    calls_s: Sequence[float]


@dataclass(frozen=True, slots=True)
class Record:
    """Every call of one case in one state, from the first on."""

    title: str
    state: str
    """"cold", "store" or "bundle"."""
    run: RunFacts
    blocks: Sequence[Block]
    last_eager_s: Sequence[float]
    """Eager calls after the last block."""
    changes: Sequence[tuple[int, str]]
    """What ran (`Report.runs`), and from which call on it said so; calls count from 1."""
    reports: Sequence[Mapping[str, Any]]
    warnings: Sequence[str]
    others: float
    """Part of all cores' time that other processes used meanwhile."""

    def to_json(self) -> dict[str, Any]:
        """The record as a JSON object; seconds are rounded to 0.1 us."""
        return asdict(self)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """Read what `to_json` gives."""
        blocks = [Block(**block) for block in document["blocks"]]
        changes = [(call, runs) for call, runs in document["changes"]]
        return cls(**{**document, "run": RunFacts.from_json(document["run"]), "blocks": blocks, "changes": changes})


class Side:
    """The process that runs one side of a case, stopped except in its turns; `close` ends it and its children.

    `script` is a file of this folder that does what warmup_process.py describes.
    """

    def __init__(
        self, title: str, who: str, environment: Mapping[str, str], *, script: str = "warmup_process.py"
    ) -> None:
        command = [sys.executable, str(Path(__file__).with_name(script)), title, who]
        self._running = subprocess.Popen(
            command, env=dict(environment), text=True, start_new_session=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        self._session = Session(self._running.pid)
        try:
            self._answer()
        except BaseException:
            self.kill()
            raise
        self._session.stop()

    @property
    def session(self) -> int:
        """The session of all its processes, whatever groups they are in."""
        return self._session.leader

    def turn(self, seconds: float, *, calls: int | None = None, untimed: int = 0) -> dict[str, Any]:
        """Run calls for so long, or so many of them, after some that are not timed; return what the process answers."""
        self._session.go_on()
        assert self._running.stdin is not None
        self._running.stdin.write(json.dumps([seconds, calls, untimed]) + "\n")
        self._running.stdin.flush()
        try:
            return self._answer()
        finally:
            self._session.stop()

    def kill(self) -> None:
        """End the process and all that it started at once."""
        self._session.kill()
        self._running.wait()
        for stream in (self._running.stdin, self._running.stdout):
            assert stream is not None
            with suppress(BrokenPipeError):
                stream.close()

    def close(self) -> None:
        self._session.go_on()
        assert self._running.stdin is not None
        with suppress(BrokenPipeError):
            self._running.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self._running.wait(20)
        self._session.kill()  # what it has started and left behind
        self._running.wait()
        assert self._running.stdout is not None
        self._running.stdout.close()

    def _answer(self) -> dict[str, Any]:
        assert self._running.stdout is not None
        line = self._running.stdout.readline()
        if not line:
            raise RuntimeError(f"{' '.join(map(str, self._running.args))} ended with {self._running.wait()}")  # type: ignore[arg-type]
        found: dict[str, Any] = json.loads(line)
        return found


def recorded(title: str, state: str, environment: Mapping[str, str], *, run: RunFacts, seconds: float) -> Record:
    """Run the case from its first call on until its calls have taken so many seconds."""
    with ExitStack() as ends:
        ours, theirs = (Side(title, who, environment) for who in ("threadcast", "eager"))
        ends.callback(theirs.close)
        ends.callback(ours.close)
        theirs.turn(EAGER_S, untimed=3)
        others = OtherWork((ours.session, theirs.session))
        blocks: list[Block] = []
        changes: list[tuple[int, str]] = []
        answer: dict[str, Any] = {}
        spent_s, calls = 0.0, 0
        while spent_s < seconds:
            eager_s = theirs.turn(EAGER_S, untimed=1)["seconds"]
            answer = ours.turn(TURN_S)
            changes += [(calls + call, runs) for call, runs in answer["changes"]]
            blocks.append(Block(_rounded(eager_s), _rounded(answer["seconds"])))
            spent_s += sum(answer["seconds"])
            calls += len(answer["seconds"])
        last = theirs.turn(EAGER_S, untimed=1)["seconds"]
        used = round(others.share(), 3)
    said = answer["reports"], answer["warnings"]
    return Record(title, state, run, blocks, _rounded(last), changes, *said, used)


@dataclass(frozen=True, slots=True)
class SideBySide:
    """The seconds of the same calls by both sides, and what threadcast said at the end."""

    ours_s: Sequence[float]
    eager_s: Sequence[float]
    answer: Mapping[str, Any]


def side_by_side(title: str, environment: Mapping[str, str], *, seconds: float) -> SideBySide:
    """Run a sequence whose calls differ, from its first call on: after each turn eager PyTorch runs the same calls."""
    with ExitStack() as ends:
        ours, theirs = (Side(title, who, environment) for who in ("threadcast", "eager"))
        ends.callback(theirs.close)
        ends.callback(ours.close)
        ours_s: list[float] = []
        eager_s: list[float] = []
        while sum(ours_s) < seconds:
            answer = ours.turn(TURN_S)
            ours_s += answer["seconds"]
            eager_s += theirs.turn(math.inf, calls=len(answer["seconds"]))["seconds"]
    return SideBySide(ours_s, eager_s, answer)


def _rounded(seconds: Sequence[float]) -> list[float]:
    return [round(one, 7) for one in seconds]
