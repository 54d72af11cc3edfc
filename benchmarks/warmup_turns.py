"""Runs cases in one way and in eager PyTorch by turns, each in a process of its own, and records every call.

While one runs, all processes of the other are stopped, also those in which threadcast plans: what either does between
its calls must not slow the other down. The seconds of calls are counted, not the pauses.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from itertools import chain
from typing import Any, Self

import numpy as np
from told import Told, TooLong
from warmup_others import OtherWork
from warmup_shapes import SEQUENCES

TURN_S, EAGER_S, ENDLESS_S = 2.0, 0.4, 1e6
"""Seconds of a turn, of eager PyTorch before and after it, and of turns that end with their calls."""
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
    after up to 60 s of `learn` in the same process."""
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


@dataclass(frozen=True, slots=True)
class Phase:
    """Some seconds of calls, after some of learning; `process` is what its records say (`Record.process`)."""

    process: str
    seconds: float
    learn_s: float = 0.0


def by_turns(
    part: str, titles: Sequence[str], way: str, phases: Sequence[Phase], environment: Mapping[str, str], *,
    run: str, limit_s: float,
) -> list[Record]:  # fmt: skip
    """Run cases, whose calls alternate, through phases of one process, each until its calls have taken its seconds.

    One record a case and phase. Eager PyTorch runs the same beside; where calls differ, exactly the same ones. A way
    that fails, or takes `limit_s` longer than that, has the calls until then.
    """
    end_s = time.monotonic() + limit_s + sum(phase.seconds + phase.learn_s for phase in phases)
    found: list[_Calls] = []
    failed, share = "", 0.0
    try:
        with ExitStack() as ends:
            theirs, ours = (process_of(titles, who, environment, limit_s, ends) for who in ("eager", way))
            others = OtherWork((ours.session, theirs.session))
            try:
                for phase in phases:
                    found.append(_Calls(titles))
                    found[-1].fill(phase, theirs, ours, end_s)
            except BaseException:
                ours.kill()
                raise
            share = others.share()
    except (RuntimeError, OSError) as error:
        failed = str(error)
    records = []
    for phase, calls in zip(phases, found or [_Calls(titles)], strict=False):
        last = phase is phases[max(0, len(found) - 1)]
        for i, title in enumerate(titles):
            named = title if len(titles) == 1 else f"{title} beside {titles[1 - i]}"
            taken, beside = calls.seconds(i)
            records.append(
                Record(part, named, way, phase.process, run, taken, beside, calls.runs[i], failed if last else "",
                       calls.until_s, share)
            )  # fmt: skip
    return records


class _Calls:
    """What the calls of some cases took in one phase, and eager PyTorch's, in blocks by turns."""

    def __init__(self, titles: Sequence[str]) -> None:
        self._ours: list[list[list[float]]] = [[] for _ in titles]
        self._eager: list[list[list[float]]] = [[] for _ in titles]
        self._same = titles[0] in SEQUENCES
        self.runs, self.until_s = [""] * len(titles), 0.0

    def fill(self, phase: Phase, theirs: Told, ours: Told, end_s: float) -> None:
        """Run the phase; TooLong where it is not over by `end_s` of the monotonic clock."""

        def calls(side: Told, seconds: float, **more: float) -> dict[str, Any]:
            return side.ask({"seconds": seconds, **more}, end_s - time.monotonic())

        calls(theirs, 0.0 if self._same else EAGER_S, calls=1)
        if phase.learn_s:
            calls(ours, 0.0, calls=1, learn_s=phase.learn_s)
        while self._taken_s < phase.seconds:
            before = [[]] if self._same else calls(theirs, EAGER_S, untimed=1)["seconds"]
            began_s = time.monotonic()
            try:
                answer = calls(ours, TURN_S)
            except TooLong:
                self.until_s = self._taken_s + time.monotonic() - began_s
                raise
            self.runs = [", ".join(own) for own in answer["runs"]]
            if self._same:
                before = calls(theirs, ENDLESS_S, calls=len(answer["seconds"][0]))["seconds"]
            for found, taken in ((self._ours, answer["seconds"]), (self._eager, before)):
                for kept, own in zip(found, taken, strict=True):
                    kept.append(own)
        if not self._same:
            for kept, own in zip(self._eager, calls(theirs, EAGER_S, untimed=1)["seconds"], strict=True):
                kept.append(own)

    def seconds(self, case: int) -> tuple[list[float], list[float]]:
        """Seconds of each call of a case, and of eager PyTorch for it."""
        ours, eager = self._ours[case], self._eager[case]
        beside = list(chain(*eager)) if self._same else eager_of_calls(eager, [len(own) for own in ours])
        return list(chain(*ours)), beside

    @property
    def _taken_s(self) -> float:
        return sum(map(sum, chain(*self._ours)))


def process_of(
    titles: Sequence[str], way: str, environment: Mapping[str, str], limit_s: float, ends: ExitStack
) -> Told:
    """The process that runs one side of a case, which ends with the context."""
    process = Told("warmup_process.py", " + ".join(titles), way, environment=environment, limit_s=limit_s)
    ends.callback(process.close)
    return process


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
