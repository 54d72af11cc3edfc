"""Decides between a plan and the framework's default: whichever is faster in the caller's own steps, in turns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Literal

from threadcast.core.gains import CONFIDENCE, PAIRS_AT_LEAST, Gain, gain_of

Side = Literal["plan", "default"]

CONFIDENT_PAIRS = 6
"""Fewest pairs that end a comparison where one is faster, but not by far."""

MAX_PAIRS = 15
"""Pairs of blocks after which a guard decides by the median ratio, as no difference has shown: the plan is kept above
`CLEAR`, which differs so only where something else used the cores in many of the pairs. Where ratios scatter by 3 %,
15 pairs tell a ratio of 1.02 from 1. The guard judges after every pair from the sixth on, so it finds a difference
where there is none more often than in 1 of 20 runs. Such a mistake costs little: the two are about equally fast."""

HOPELESS = 0.8
"""Ratio of the default's time to the plan's under which all of the first `PAIRS_AT_LEAST` pairs end the comparison."""
CLEAR = 1.1
"""Ratio of the default's time to the plan's above which the plan is clearly faster; two medians of the same way differ
by 5 to 10 %."""
LONG_S = 0.05
"""Seconds from which a block is long: what disturbs single milliseconds says little about it. Steps that take so long
are blocks by themselves. Where all blocks are long, three pairs end a comparison that are all beyond `CLEAR`."""
LONG_PAIRS = 9
"""Most pairs of long blocks: of so many, one may disagree at either end."""
LITTLE = 1.05
"""Ratio of the default's time to the plan's below which all pairs of long blocks end a comparison once it could be
confident: more of them would cost more than so little is worth."""
LOUD = 1.5
"""Ratio of the ends of a verdict's interval above which its times were loud. A convention: where nothing else runs,
single pairs differ by 3 to 10 %."""
ENOUGH_S = 3.0
"""Seconds of both ways' steps after which a comparison also ends where the plan is not shown to be faster, and its
interval ends below `LITTLE`. A convention."""


BLOCK_STEPS, BLOCK_S, QUIET_S = 2, 0.005, 0.005
"""Fewest timed steps of a block, but for steps of `LONG_S`, and fewest seconds that these take together. After a change
of the runner steps are not timed for `QUIET_S` seconds; at least one step is not. The first step starts thread teams
anew and finds caches full of the other runner's data, and threads of the other may still spin."""


@dataclass(frozen=True, slots=True)
class Verdict(Gain):
    """The gain of a new way (the plan) over the one before it (the default), `over` which the faster of both is kept.

    `kept` is what to run from now on; `over` names the way before.
    """

    kept: Side = "default"
    over: str = "default"

    @property
    def loud(self) -> bool:
        """Whether its times were loud: the ends of its interval are `LOUD` apart."""
        return self.high > LOUD * self.low


def judge(default_s: Sequence[float], planned_s: Sequence[float], *, confidence: float = CONFIDENCE) -> Verdict:
    """Return a verdict that keeps the plan where it is faster beyond doubt, else the default; for the arguments and
    errors see `gain_of`."""
    found = gain_of(default_s, planned_s, confidence=confidence)
    return Verdict(found.gain, found.low, found.high, found.pairs, "plan" if found.low > 1.0 else "default")


class Guard:
    """Decides which of two ways runs each step: in turns until it is clear which is faster, then always that one.

    "default" is the way to beat, "plan" the new one. Both do the whole step, so no step of the caller is wasted. The
    caller measures the times and reports each step to `observe`, except steps that raised: these do not count.
    """

    def __init__(self) -> None:
        self.verdict: Verdict | None = None
        """The verdict, once it is clear which way is faster, or once `MAX_PAIRS` have shown no difference."""
        self._long = True
        """Whether all blocks so far are long."""
        self._blocks: dict[Side, list[float]] = {"default": [], "plan": []}
        self._timed: list[float] = []
        self._steps_s: dict[Side, list[float]] = {"default": [], "plan": []}
        """Seconds of the steps of each side before its first block is complete."""
        self._ran_s = 0.0
        """Seconds of all steps."""
        self._last: Side | None = None
        self._changed_s = 0.0
        self._begun = False

    def next_runner(self) -> Side:
        """Return what runs the next step: default, plan, plan, default, and so on, until there is a verdict.

        In this order a steady drift of the machine's speed favours neither. From the verdict on, what it keeps.
        """
        if self.verdict is not None:
            return self.verdict.kept
        blocks = len(self._blocks["default"]) + len(self._blocks["plan"])
        return "default" if blocks % 4 in (0, 3) else "plan"

    @property
    def begun(self) -> bool:
        """Whether a pair of blocks has begun, and is not complete."""
        return self._begun

    def break_off(self) -> None:
        """Have the pair that has begun, if any, begin once more: other steps have run in between."""
        self._timed.clear()
        fewest = min(map(len, self._blocks.values()))
        for of_side in self._blocks.values():
            del of_side[fewest:]
        self._last, self._begun = None, False

    def observe(self, *, started_s: float, seconds: float) -> None:
        """Record the step that `next_runner` named: when it started by the caller's clock, and the seconds it took."""
        runner = self.next_runner()
        self._begun = True
        self._ran_s += seconds
        if not self._blocks[runner]:
            self._steps_s[runner].append(seconds)
        if runner != self._last:
            self._last, self._changed_s = runner, started_s
        elif self.verdict is None and started_s - self._changed_s >= QUIET_S:
            self._note(runner, seconds)

    def _note(self, runner: Side, seconds: float) -> None:
        self._timed.append(seconds)
        block_s = sum(self._timed)
        is_long = (self.step_s(runner) or 0.0) >= LONG_S  # not one step alone that something else disturbed
        if not is_long and (len(self._timed) < BLOCK_STEPS or block_s < BLOCK_S):
            return
        self._long = self._long and block_s >= LONG_S
        self._blocks[runner].append(median(self._timed))
        self._timed.clear()
        default_s, planned_s = self._blocks["default"], self._blocks["plan"]
        if len(default_s) != len(planned_s):
            return
        self._begun = False
        if len(default_s) < PAIRS_AT_LEAST:
            return
        verdict = judge(default_s, planned_s)
        clear = verdict.high < HOPELESS or (self._long and (verdict.high < 1 / CLEAR or verdict.low > CLEAR))
        little = self._long and verdict.high < LITTLE
        confident = verdict.pairs >= CONFIDENT_PAIRS and (verdict.shown or little)
        enough = self._ran_s >= ENOUGH_S and verdict.high < LITTLE and verdict.low <= 1.0
        most = LONG_PAIRS if self._long else MAX_PAIRS
        if clear or confident or enough:
            self.verdict = verdict
        elif verdict.pairs >= most:
            self.verdict = replace(verdict, kept="plan") if verdict.gain > CLEAR else verdict

    def step_s(self, side: Side) -> float | None:
        """Median seconds of a step of one side; before its first block the fewest, None before its second step."""
        first_s = self._steps_s[side]
        return median(self._blocks[side]) if self._blocks[side] else min(first_s) if len(first_s) > 1 else None

    def pair_s(self, side: Side) -> float:
        """Seconds that this side's part of a pair takes; 0 as long as it is not known how long a step takes."""
        step_s = self.step_s(side)
        if step_s is None:
            return 0.0
        block_s = step_s if step_s >= LONG_S else max(BLOCK_S, BLOCK_STEPS * step_s)
        return max(QUIET_S, step_s) + block_s
