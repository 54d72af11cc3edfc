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


@dataclass(frozen=True, slots=True)
class Claim:
    """What one process may have, and what it does with it.

    `progress` is in steps a second, or anything proportional to it, by number of cores, as far as it is known; `most`
    None: as many as there are. Of processes whose progress is equally worth, cores go by `weight`.
    """

    weight: float = 1.0
    least: int = 1
    most: int | None = None
    progress: Mapping[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not (math.isfinite(self.weight) and self.weight > 0):
            raise InvalidInput(f"weight={self.weight!r} must be above 0")
        if self.least < 1 or (self.most is not None and self.most < self.least):
            raise InvalidInput(f"least={self.least} and most={self.most}: from 1 on, and no more than most")
        if any(cores < 1 or not math.isfinite(rate) or rate < 0 for cores, rate in self.progress.items()):
            raise InvalidInput(f"progress={dict(self.progress)!r}: numbers of cores from 1 on, rates from 0 on")

    def worth(self, cores: int) -> Floats:
        """(cores + 1,) weighted progress with 0 to `cores` cores, as a share of the most that it reaches."""
        counts = np.arange(1, cores + 1, dtype=np.float64)
        known = {count: rate for count, rate in sorted(self.progress.items()) if rate > 0}
        if known:
            first, last = min(known), max(known)
            rates = np.exp(np.interp(np.log(counts), np.log(list(known)), np.log(list(known.values()))))
            below, above = counts < first, counts > last
            rates[below] = known[first] * _speedup(counts[below]) / _speedup(np.array([first], dtype=np.float64))
            rates[above] = known[last] * _speedup(counts[above]) / _speedup(np.array([last], dtype=np.float64))
        else:
            rates = _speedup(counts)
        return np.concatenate([[0.0], self.weight * rates / rates.max()])


def divide(claims: Mapping[str, Claim], cores: int, before: Mapping[str, int] | None = None) -> dict[str, int]:
    """Cores of each process, by name; the sum is at most `cores` unless there are more processes than cores.

    Exact, by dynamic programming. Where `before` is a division of the same processes that is nearly as good it stays.
    Where least claims are more than there is, each process gets at least one core; with more processes than cores each
    gets one, which it shares.
    """
    names = list(claims)
    if len(names) >= cores:
        return dict.fromkeys(names, 1)
    fits = sum(claim.least for claim in claims.values()) <= cores
    worth, bounds = {}, {}
    for name, claim in claims.items():
        most = min(claim.most or cores, cores)
        bounds[name] = (min(claim.least, most) if fits else 1, most)
        worth[name] = claim.worth(cores)
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


def _sum(worth: Mapping[str, Floats], division: Mapping[str, int]) -> float:
    return sum(float(worth[name][count]) for name, count in division.items())


def _speedup(cores: Floats) -> Floats:
    found: Floats = 1 / (SERIAL + (1 - SERIAL) / cores)
    return found
