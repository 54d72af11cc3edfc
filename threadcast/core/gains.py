"""The median of samples with its interval, and the gain of one way to run something over another."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from statistics import median

from threadcast.core.errors import InvalidInput

PAIRS_AT_LEAST = 3
"""Fewest pairs of times for a gain: a median of two values is only their mean."""
CONFIDENCE = 0.95
"""Confidence of intervals, unless another is asked for. Those of gains reach it from 6 pairs on."""


def median_interval(samples: Sequence[float], confidence: float = CONFIDENCE) -> tuple[float, float] | None:
    """Lower and upper bound that enclose the true median with at least `confidence`; None where samples are too few
    (fewer than 6 at 95 %).

    Bounds are samples, which assumes nothing about the distribution (David and Nagaraja, Order Statistics, 7.1).
    """
    rank = _rank(len(samples), confidence)
    if rank is None:
        return None
    ordered = sorted(samples)
    return ordered[rank], ordered[-1 - rank]


@functools.lru_cache(maxsize=1024)
def _rank(count: int, confidence: float) -> int | None:
    """Largest k such that the k-th smallest and the k-th largest (from 0) of `count` samples enclose the median.

    The median lies below the k-th smallest when at most k samples fall under it: the lower tail of Binomial(n, 1/2).
    """
    tail = Fraction(1 - confidence) / 2 * 2**count
    below, ways, found = 0, 1, None
    for k in range(count // 2):
        below += ways
        if below > tail:
            break
        found, ways = k, ways * (count - k) // (k + 1)
    return found


@dataclass(frozen=True, slots=True)
class Gain:
    """How many times as fast one way is as another: the median of the ratios of `pairs` neighbouring times.

    `low` and `high` are the ends of the median's interval, of 95 % unless another was asked for; of too few pairs (for
    95 % fewer than 6) the lowest and highest ratio.
    """

    gain: float
    low: float
    high: float
    pairs: int

    def __str__(self) -> str:
        return f"{self.gain:.2f} ({self.low:.2f} to {self.high:.2f})"

    @property
    def shown(self) -> bool:
        """Whether the interval excludes 1, so that one of the two is faster beyond doubt."""
        return self.low > 1.0 or self.high < 1.0

    def against(self, other: str) -> str:
        """The gain over what is called `other`, in words, with its interval."""
        few = "" if _rank(self.pairs, CONFIDENCE) is not None else f" in {self.pairs} pair{'s' * (self.pairs > 1)}"
        interval = f"({self.low:.2f} to {self.high:.2f}{few})"
        if self.high < 1.0:
            slow = 1 / self.gain
            said = f"{slow - 1:.0%} slower than" if slow < 2 else f"{slow:,.1f} times as slow as"
            return f"{said} {other} {interval}"
        said = f"{self.gain:.2f} times as fast as {other} {interval}"
        return said if self.shown else f"not shown to be faster or slower, {said}"


def gain_of(before_s: Sequence[float], after_s: Sequence[float], *, confidence: float = CONFIDENCE) -> Gain:
    """The gain of steps that take `after_s` seconds over steps that take `before_s`, with an interval of `confidence`.

    Entry i of one was measured next to entry i of the other, so that a change in the machine's speed affects both.
    InvalidInput for fewer than `PAIRS_AT_LEAST` pairs, for different numbers of steps, and for times that are not
    finite and above 0.
    """
    if len(before_s) != len(after_s) or len(before_s) < PAIRS_AT_LEAST:
        raise InvalidInput(
            f"{len(before_s)} steps before and {len(after_s)} after: give as many, {PAIRS_AT_LEAST} or more"
        )
    if not all(math.isfinite(seconds) and seconds > 0 for seconds in (*before_s, *after_s)):
        raise InvalidInput("step times must be finite and above 0")
    ratios = [before / after for before, after in zip(before_s, after_s, strict=True)]
    low, high = median_interval(ratios, confidence) or (min(ratios), max(ratios))
    return Gain(median(ratios), low, high, len(ratios))
