"""How many whole cores each process gets: the division of a machine with the greatest sum of weighted progress."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from threadcast.core.curve import Floats
from threadcast.core.errors import InvalidInput

SERIAL = 0.05
"""Share of a process's work that is taken not to scale where its progress is not known (Amdahl): low, so that cores
are tried before they are given up."""

KEPT = 0.02
"""Share of the progress that a division may fall short of the best one and be kept nevertheless: every change costs."""

_ROUNDED = 1e-9


@dataclass(frozen=True, slots=True)
class Claim:
    """What one process may have, and what it does with it.

    `progress` is in steps a second, or anything proportional to it, by number of cores, as far as it is known; `most`
    None: as many as there are. Of processes whose progress is equally worth, cores go by `weight`. `needs_per_s` is
    what it has to make at least, in the unit of `progress`, to be done in time; 0: no matter when.
    """

    weight: float = 1.0
    least: int = 1
    most: int | None = None
    progress: Mapping[int, float] = field(default_factory=dict)
    needs_per_s: float = 0.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.weight) and self.weight > 0):
            raise InvalidInput(f"weight={self.weight!r} must be above 0")
        if self.least < 1 or (self.most is not None and self.most < self.least):
            raise InvalidInput(f"least={self.least} and most={self.most}: from 1 on, and no more than most")
        if any(cores < 1 or not math.isfinite(rate) or rate < 0 for cores, rate in self.progress.items()):
            raise InvalidInput(f"progress={dict(self.progress)!r}: numbers of cores from 1 on, rates from 0 on")
        if not self.needs_per_s >= 0:  # infinite where the time is over
            raise InvalidInput(f"needs_per_s={self.needs_per_s!r} must be 0 or more")

    def fewest(self, cores: int) -> int | None:
        """Of `cores` the fewest with which it makes what it needs; None where none of its numbers do."""
        if not self.progress:
            return None
        enough = np.flatnonzero(self._rates(min(self.most or cores, cores)) >= (1 - _ROUNDED) * self.needs_per_s)
        return int(enough[0]) + 1 if enough.size else None

    def worth(self, cores: int) -> Floats:
        """(cores + 1,) weighted progress with 0 to `cores` cores, as a share of the most that it reaches."""
        rates = self._rates(cores)
        return np.concatenate([[0.0], self.weight * rates / rates.max()])

    def _rates(self, cores: int) -> Floats:
        """(cores,) progress with 1 to `cores` cores; in a unit of its own where none is known."""
        counts = np.arange(1, cores + 1, dtype=np.float64)
        known = {count: rate for count, rate in sorted(self.progress.items()) if rate > 0}
        if not known:
            return _speedup(counts)
        first, last = min(known), max(known)
        rates: Floats = np.exp(np.interp(np.log(counts), np.log(list(known)), np.log(list(known.values()))))
        below, above = counts < first, counts > last
        rates[below] = known[first] * _speedup(counts[below]) / _speedup(np.array([first], dtype=np.float64))
        rates[above] = known[last] * _speedup(counts[above]) / _speedup(np.array([last], dtype=np.float64))
        return rates


def floors(claims: Mapping[str, Claim], cores: int) -> dict[str, int]:
    """What each process gets before the rest is divided: its least, or the fewest cores that meet its deadline.

    Where not all deadlines can be met, those are whose weights make the greatest sum, and of equal sums those that take
    the fewest cores; the other processes get their least. Where that is more than there is each gets one core.
    """
    least = {name: min(claim.least, claim.most or cores, cores) for name, claim in claims.items()}
    spare = cores - sum(least.values())
    if spare < 0:
        return dict.fromkeys(claims, 1)
    fewest = {name: claim.fewest(cores) for name, claim in claims.items() if claim.needs_per_s > 0}
    more = {name: count - least[name] for name, count in fewest.items() if count is not None and count > least[name]}
    best = [(0.0, 0, frozenset[str]())] * (spare + 1)  # by cores that are spent: weights, cores saved, and whose
    for name, count in more.items():
        for spent in range(spare, count - 1, -1):
            weight, saved, met = best[spent - count]
            best[spent] = max(best[spent], (weight + claims[name].weight, saved - count, met | {name}), key=_first_two)
    return least | {name: least[name] + more[name] for name in max(best, key=_first_two)[2]}


def in_time(claims: Mapping[str, Claim], division: Mapping[str, int]) -> dict[str, bool]:
    """Whether processes that have to be done in time are, with so many cores of their own; where that is known."""
    found = {}
    for name, claim in claims.items():
        if claim.needs_per_s > 0 and claim.progress:
            found[name] = bool(claim._rates(division[name])[-1] >= (1 - _ROUNDED) * claim.needs_per_s)
    return found


def divide(claims: Mapping[str, Claim], cores: int, before: Mapping[str, int] | None = None) -> dict[str, int]:
    """Cores of each process, by name; the sum is at most `cores` unless there are more processes than cores.

    Exact, by dynamic programming, above what `floors` says. Where `before` is a division of the same processes that is
    nearly as good it stays. With more processes than cores each gets one, which it shares.
    """
    names = list(claims)
    if len(names) >= cores:
        return dict.fromkeys(names, 1)
    least = floors(claims, cores)
    bounds = {name: (least[name], min(claim.most or cores, cores)) for name, claim in claims.items()}
    worth = {name: claim.worth(cores) for name, claim in claims.items()}
    best = _divided(worth, bounds, cores)
    if before is not None and before.keys() == claims.keys() and sum(before.values()) <= cores:
        allowed = all(bounds[name][0] <= count <= bounds[name][1] for name, count in before.items())
        if allowed and _sum(worth, before) >= (1 - KEPT) * _sum(worth, best):
            return dict(before)
    return best


def _divided(worth: Mapping[str, Floats], bounds: Mapping[str, tuple[int, int]], cores: int) -> dict[str, int]:
    """The division of the greatest worth; of equal ones that which leaves most cores to later names."""
    reached = np.full(cores + 1, -np.inf)
    reached[0] = 0.0
    taken = []
    for name, values in worth.items():
        least, most = bounds[name]
        found, chosen = np.full(cores + 1, -np.inf), np.zeros(cores + 1, dtype=int)
        for count in range(least, most + 1):
            shifted = np.full(cores + 1, -np.inf)
            shifted[count:] = reached[: cores + 1 - count] + values[count]
            better = shifted > found + 1e-12
            found[better], chosen[better] = shifted[better], count
        reached = found
        taken.append(chosen)
    left = int(np.argmax(reached))
    division: dict[str, int] = {}
    for name, chosen in zip(reversed(list(worth)), reversed(taken), strict=True):
        division[name] = int(chosen[left])
        left -= division[name]
    return {name: division[name] for name in worth}


def _first_two(of: tuple[float, int, frozenset[str]]) -> tuple[float, int]:
    return of[:2]


def _sum(worth: Mapping[str, Floats], division: Mapping[str, int]) -> float:
    return sum(float(worth[name][count]) for name, count in division.items())


def _speedup(cores: Floats) -> Floats:
    found: Floats = 1 / (SERIAL + (1 - SERIAL) / cores)
    return found
