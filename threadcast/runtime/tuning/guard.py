"""Plan or the framework's default: whichever is faster on the caller's own steps, taken by turns."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

import numpy as np

from threadcast.core.errors import InvalidInput

Choice = Literal["plan", "default"]

PAIRS_AT_LEAST = 3
"""Pairs of steps below which no comparison is made: a median of two is a mean."""

CONFIDENCE = 0.95
"""Of the interval around the median ratio, from 6 pairs on; fewer cannot reach it and show their extremes."""
_CONFIDENT_PAIRS = 6

MAX_PAIRS = 15
"""Pairs of blocks after which a guard keeps the default for want of a difference. Where pairs scatter by 3 %, 15 tell
a ratio of 1.02 from 1. It looks after every pair from the sixth on, so it finds a difference where there is none more
often than in 1 of 20 runs; the price is as small as the difference."""

BLOCK, BLOCK_S = 2, 0.005
"""Timed steps of a block, and seconds that they take together, at least."""
QUIET_S = 0.005
"""Seconds after a change in which steps are not timed, one step at least: it makes thread teams anew and finds the
caches full of the other's data, and threads of the other's may go on spinning beside it for a while."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What to keep, and how much longer the default's step is than the plan's, pair by pair.

    `gain` is the median ratio of default to plan, above 1 where the plan is faster; `low` and `high` are the ends of
    its 95 % interval.
    """

    kept: Choice
    gain: float
    low: float
    high: float
    pairs: int

    @property
    def shown(self) -> bool:
        """Whether one is faster beyond doubt; where not, the default is kept."""
        return self.low > 1.0 or self.high < 1.0


def judge(default_s: Sequence[float], planned_s: Sequence[float]) -> Verdict:
    """Keep the plan where it is faster beyond doubt, by the ratios of neighbouring steps; else the default.

    Both are seconds a step, taken by turns, entry i of one next to entry i of the other, so that a machine that
    changes its pace changes both. The interval comes from order statistics and assumes nothing of the distribution
    (David and Nagaraja, Order Statistics, 7.1). InvalidInput for fewer than `PAIRS_AT_LEAST` pairs or times that are
    not above 0.
    """
    if len(default_s) != len(planned_s) or len(default_s) < PAIRS_AT_LEAST:
        raise InvalidInput(
            f"{len(default_s)} default and {len(planned_s)} planned steps: give as many, {PAIRS_AT_LEAST} or more"
        )
    pairs = np.array([default_s, planned_s], dtype=np.float64)
    if not np.all(np.isfinite(pairs)) or np.any(pairs <= 0):
        raise InvalidInput("step times must be finite and above 0")
    ratios = sorted((pairs[0] / pairs[1]).tolist())
    outside = _outside(len(ratios))
    low, high = ratios[outside], ratios[-1 - outside]
    return Verdict("plan" if low > 1.0 else "default", median(ratios), low, high, len(ratios))


def _outside(n: int) -> int:
    """How many of n sorted values lie beyond either end of the interval around their median."""
    outside, chance = 0, 1 / 2**n  # that at most `outside` values lie below the true median
    while outside + 1 < n / 2 and (chance := chance + math.comb(n, outside + 1) / 2**n) <= (1 - CONFIDENCE) / 2:
        outside += 1
    return outside


class Guard:
    """Says which of two ways runs each step, by turns until it is clear which is faster; without a clock of its own.

    Both do the whole step, so that every step of the caller's counts. "default" is the way to beat, "plan" the new one.
    A step that raises is not observed, and does not count.
    """

    def __init__(self, *, max_pairs: int = MAX_PAIRS) -> None:
        if max_pairs < PAIRS_AT_LEAST:
            raise InvalidInput(f"max_pairs={max_pairs} must be at least {PAIRS_AT_LEAST}")
        self.verdict: Verdict | None = None
        """Which is faster, once that is clear."""
        self._max_pairs = max_pairs
        self._blocks: dict[Choice, list[float]] = {"default": [], "plan": []}
        self._timed: list[float] = []
        self._last: Choice | None = None
        self._changed_s = 0.0

    def next_runner(self) -> Choice:
        """Default, plan, plan, default, and again, so that a steady drift favours neither; then the faster one."""
        if self.verdict is not None:
            return self.verdict.kept
        blocks = len(self._blocks["default"]) + len(self._blocks["plan"])
        return "default" if blocks % 4 in (0, 3) else "plan"

    @property
    def needs_rest(self) -> bool:
        """Whether idle thread teams must end before the next step: they would slow the default down (`Engine.rest`)."""
        return self.next_runner() == "default" and self._last != "default"

    def observe(self, *, started_s: float, seconds: float) -> None:
        """Take note of the step that `next_runner` named: when it started, and how long it took."""
        runner = self.next_runner()
        if runner != self._last:
            self._last, self._changed_s = runner, started_s
        elif self.verdict is None and started_s - self._changed_s >= QUIET_S:
            self._note(runner, seconds)

    def _note(self, runner: Choice, seconds: float) -> None:
        self._timed.append(seconds)
        if len(self._timed) < BLOCK or sum(self._timed) < BLOCK_S:
            return
        self._blocks[runner].append(median(self._timed))
        self._timed.clear()
        default_s, planned_s = self._blocks["default"], self._blocks["plan"]
        if len(default_s) != len(planned_s) or len(default_s) < min(_CONFIDENT_PAIRS, self._max_pairs):
            return
        verdict = judge(default_s, planned_s)
        if verdict.shown or verdict.pairs >= self._max_pairs:
            self.verdict = verdict
