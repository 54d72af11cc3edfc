"""Runs cases in one way and in eager PyTorch by turns, each in a process of its own, and records every call.

While one runs, all processes of the other are stopped, also those in which threadcast plans: what either does between
its calls must not slow the other down. The seconds of calls are counted, not the pauses.
"""

from __future__ import annotations

import json
import math
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Self

import numpy as np
from sessions import Session
from warmup_others import OtherWork
from warmup_shapes import SEQUENCES

TURN_S, EAGER_S = 2.0, 0.4
"""Seconds of a turn, and of eager PyTorch before and after it."""
NEIGHBOURS = 2
"""Blocks of eager calls on each side over which the median smooths an eager call's time."""


@dataclass(frozen=True, slots=True)
class Record:
    """Every call of one case in one way, from the first one of its process on."""

    part: str
    """"zoo", "scripts", "pairs" or "shapes"."""
    title: str
    """With ", inference" or ", training" at its end; with " beside " and another one where two functions alternate."""
    way: str
    process: str
    """"first": nothing stored. "second": with what the first has left. "learned", "learned for long": after 8 s and
    after up to 60 s of `learn`."""
    run: str
    """The command, commit, day and machine."""
    ours_s: Sequence[float]
    """Seconds of each call."""
    eager_s: Sequence[float]
    """Eager PyTorch's seconds for each of these calls."""
    runs: str = ""
    """What ran at the end."""
    failed: str = ""
    """Why there are no more calls."""
    until_s: float = 0.0
    """Seconds over which calls were watched, where a call that did not end took the last of them."""
    others: float = 0.0
    """Part of all cores' time that other processes used meanwhile."""

    @property
    def seconds(self) -> float:
        """Of all calls that ended."""
        return float(sum(self.ours_s))

    def to_json(self) -> dict[str, Any]:
        """The record as a JSON object; seconds are rounded to 0.1 us."""
        rounded = {name: [round(one, 7) for one in getattr(self, name)] for name in ("ours_s", "eager_s")}
        return asdict(self) | rounded

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """Read what `to_json` gives."""
        return cls(**document)


class TooLong(Exception):
    """A case takes longer than its limit."""


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Within the context raise TooLong after so many seconds."""

    def stop(*_: object) -> None:
        raise TooLong(f"longer than {seconds:.0f} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


class Side:
    """The process that runs one side of a case, stopped except in its turns; `close` ends it and its children."""

    def __init__(self, title: str, who: str, environment: Mapping[str, str]) -> None:
        command = [sys.executable, str(Path(__file__).with_name("warmup_process.py")), title, who]
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

    def turn(
        self, seconds: float, *, calls: int | None = None, untimed: int = 0, learn_s: float = 0.0
    ) -> dict[str, Any]:
        """Run calls for so long, or so many of them, after learning and untimed calls; what the process answers."""
        self._session.go_on()
        assert self._running.stdin is not None
        asked = {"seconds": seconds, "calls": calls, "untimed": untimed, "learn_s": learn_s}
        self._running.stdin.write(json.dumps(asked) + "\n")
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


def by_turns(
    part: str, titles: Sequence[str], way: str, process: str, environment: Mapping[str, str], *,
    run: str, seconds: float, limit_s: float, learn_s: float = 0.0,
) -> list[Record]:  # fmt: skip
    """Run cases, whose calls alternate, from the first call on until their calls have taken so many seconds.

    One record a case. Eager PyTorch runs the same beside; where calls differ, exactly the same ones. A way that fails,
    or takes `limit_s` longer than that, has the calls until then.
    """
    blocks: list[list[list[float]]] = [[] for _ in titles]
    eager: list[list[list[float]]] = [[] for _ in titles]
    runs, failed, share, until_s = [""] * len(titles), "", 0.0, 0.0
    same = titles[0] in SEQUENCES
    try:
        with at_most(seconds + limit_s), ExitStack() as ends:
            theirs = Side(" + ".join(titles), "eager", environment)
            ends.callback(theirs.close)
            ours = Side(" + ".join(titles), way, environment)
            ends.callback(ours.close)
            others = OtherWork((ours.session, theirs.session))
            try:
                theirs.turn(0.0 if same else EAGER_S, calls=1)
                if learn_s:
                    ours.turn(0.0, calls=1, learn_s=learn_s)
                while sum(map(sum, chain(*blocks))) < seconds:
                    before = [[]] if same else theirs.turn(EAGER_S, untimed=1)["seconds"]
                    began_s = time.monotonic()
                    try:
                        answer = ours.turn(TURN_S)
                    except TooLong:
                        until_s = sum(map(sum, chain(*blocks))) + time.monotonic() - began_s
                        raise
                    runs = [", ".join(own) for own in answer["runs"]]
                    if same:
                        before = theirs.turn(math.inf, calls=len(answer["seconds"][0]))["seconds"]
                    for found, taken in ((blocks, answer["seconds"]), (eager, before)):
                        for kept, own in zip(found, taken, strict=True):
                            kept.append(own)
                if not same:
                    for kept, own in zip(eager, theirs.turn(EAGER_S, untimed=1)["seconds"], strict=True):
                        kept.append(own)
            except BaseException:
                ours.kill()
                raise
            share = others.share()
    except (TooLong, RuntimeError, OSError) as error:
        failed = str(error)
    records = []
    for i, title in enumerate(titles):
        named = title if len(titles) == 1 else f"{title} beside {titles[1 - i]}"
        beside = list(chain(*eager[i])) if same else eager_of_calls(eager[i], [len(own) for own in blocks[i]])
        taken = list(chain(*blocks[i]))
        records.append(Record(part, named, way, process, run, taken, beside, runs[i], failed, until_s, share))
    return records


def eager_of_calls(eager: Sequence[Sequence[float]], calls: Sequence[int]) -> list[float]:
    """Seconds of an eager call at the time of each call, from the blocks of eager calls before and after each block.

    Mean of each block, smoothed by the median over its neighbours (a block may fall into a disturbance), then the mean
    of the two around the call; the last one counts twice where the calls ended before another.
    """
    if not calls:
        return []
    means = np.array([np.mean(block) for block in eager])
    smooth = np.array([np.median(means[max(0, i - NEIGHBOURS) : i + NEIGHBOURS + 1]) for i in range(len(means))])
    smooth = np.append(smooth, smooth[-1])
    return [float(one) for one in np.repeat((smooth[:-1] + smooth[1:])[: len(calls)] / 2, calls)]
