"""Finds how many whole cores each process gets, such that the sum of weighted progress is greatest."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from threadcast.core.curve import Floats
from threadcast.core.errors import InvalidInput

SERIAL = 0.05
"""Share of a process's work that is assumed not to scale (Amdahl's law) where its rates are known at one number of
cores at most. It is low, so that a process gets many cores until it is known that it does not use them."""

STAYS_WITHIN = 0.02
"""The present division stays if its progress is at most this share below the best one's: every change costs time."""

_ROUNDING = 1e-9


def check_bounds(least: int, most: int | None) -> None:
    """Raise InvalidInput unless `least` is at least 1 and at most `most` (None: the number of cores of the machine)."""
    if least < 1 or (most is not None and most < least):
        raise InvalidInput(f"least={least} and most={most}: least must be from 1 on and no more than most")


@dataclass(frozen=True, slots=True)
class Claim:
    """How many cores a process can use, and how fast it is with them.

    It can use `least` to `most` cores (None: all of the machine). `progress` maps numbers of cores to steps a second,
    or anything proportional to these, as far as they are known; 0 says nothing, as of a process that has made no step.
    `weight` is a factor of the process's progress in the sum that is divided by. InvalidInput for numbers outside their
    range.
    """

    weight: float = 1.0
    least: int = 1
    most: int | None = None
    progress: Mapping[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not (math.isfinite(self.weight) and self.weight > 0):
            raise InvalidInput(f"weight={self.weight!r} must be above 0")
        check_bounds(self.least, self.most)
        if any(cores < 1 or not math.isfinite(rate) or rate < 0 for cores, rate in self.progress.items()):
            raise InvalidInput(f"progress={dict(self.progress)!r}: numbers of cores from 1 on, rates from 0 on")

    def rate(self, cores: int) -> float:
        """Return the progress with so many cores, estimated where it is not known; relative where it is nowhere."""
        return float(self._rates(cores)[-1])

    def worth(self, cores: int) -> Floats:
        """Return an array (cores + 1,): weight times progress with 0 to `cores` cores, over the greatest progress."""
        rates = self._rates(cores)
        return np.concatenate([[0.0], self.weight * rates / rates.max()])

    def _rates(self, cores: int) -> Floats:
        """Array (cores,): progress with 1 to `cores` cores, interpolated; where none is known, relative to one core."""
        counts = np.arange(1, cores + 1, dtype=np.float64)
        known = {count: rate for count, rate in sorted(self.progress.items()) if rate > 0}
        if not known:
            return _speedup(counts)
        first, last = min(known), max(known)
        rates: Floats = np.exp(np.interp(np.log(counts), np.log(list(known)), np.log(list(known.values()))))
        serial = _serial(known)
        below, above = counts < first, counts > last
        rates[below] = known[first] * _speedup(counts[below], serial) / _speedup(np.array([float(first)]), serial)
        rates[above] = known[last] * _speedup(counts[above], serial) / _speedup(np.array([float(last)]), serial)
        return rates


def floors(claims: Mapping[str, Claim], cores: int) -> dict[str, int]:
    """Return the cores that each process gets before the rest is divided: its least, or one where there are too few."""
    least = {name: min(claim.least, claim.most or cores, cores) for name, claim in claims.items()}
    return least if sum(least.values()) <= cores else dict.fromkeys(claims, 1)


def divide(claims: Mapping[str, Claim], cores: int, before: Mapping[str, int] | None = None) -> dict[str, int]:
    """Return the number of cores of each process; the sum is at most `cores`.

    It is the best division in which each process has at least its `floors`, found by dynamic programming. If `before`
    divides the cores among the same processes nearly as well, it is returned instead. Of either, cores that make nobody
    faster go to those with fewest, such that all have equal parts by weight. With at least as many processes as cores,
    each gets one core, which it may have to share: then the sum may exceed `cores`.
    """
    names = list(claims)
    if len(names) >= cores:
        return dict.fromkeys(names, 1)
    least = floors(claims, cores)
    bounds = {name: (least[name], min(claim.most or cores, cores)) for name, claim in claims.items()}
    worth = {name: claim.worth(cores) for name, claim in claims.items()}
    best = _best_division(worth, bounds, cores)
    if before is not None and before.keys() == claims.keys() and sum(before.values()) <= cores:
        allowed = all(bounds[name][0] <= count <= bounds[name][1] for name, count in before.items())
        if allowed and _sum(worth, before) >= (1 - STAYS_WITHIN) * _sum(worth, best):
            best = {name: _fewest_as_good(worth[name], count, least[name]) for name, count in before.items()}
    while sum(best.values()) < cores:
        takers = [
            name for name, count in best.items()
            if count < bounds[name][1] and worth[name][count + 1] >= worth[name][count] - _ROUNDING
        ]  # fmt: skip
        if not takers:
            break
        fewest = min(takers, key=lambda name: (best[name] / claims[name].weight, -(before or {}).get(name, 0)))
        best[fewest] += 1
    return best


def _fewest_as_good(values: Floats, count: int, least: int) -> int:
    """The fewest cores, from `least` on, from which on up to `count` no core makes the process faster or slower."""
    while count > least and abs(values[count - 1] - values[count]) <= _ROUNDING:
        count -= 1
    return count


def _best_division(worth: Mapping[str, Floats], bounds: Mapping[str, tuple[int, int]], cores: int) -> dict[str, int]:
    """The division with the greatest sum of worth; of equal ones, the one with most cores for later names."""
    reached = np.full(cores + 1, -np.inf)
    reached[0] = 0.0
    choices = []  # for each name: cores to give it, by how many cores are given in all
    for name, values in worth.items():
        least, most = bounds[name]
        found, chosen = np.full(cores + 1, -np.inf), np.zeros(cores + 1, dtype=int)
        for count in range(least, most + 1):
            shifted = np.full(cores + 1, -np.inf)
            shifted[count:] = reached[: cores + 1 - count] + values[count]
            better = shifted > found + 1e-12
            found[better], chosen[better] = shifted[better], count
        reached = found
        choices.append(chosen)
    left = int(np.argmax(reached))
    division: dict[str, int] = {}
    for name, chosen in zip(reversed(list(worth)), reversed(choices), strict=True):
        division[name] = int(chosen[left])
        left -= division[name]
    return {name: division[name] for name in worth}


def _sum(worth: Mapping[str, Floats], division: Mapping[str, int]) -> float:
    return sum(float(worth[name][count]) for name, count in division.items())


def _speedup(cores: Floats, serial: float = SERIAL) -> Floats:
    found: Floats = 1 / (serial + (1 - serial) / cores)
    return found


def _serial(known: Mapping[int, float]) -> float:
    """The share of a process's work that does not scale, by its rates with fewest and with most cores."""
    first, last = min(known), max(known)
    gain = known[last] / known[first]
    if last == first:
        return SERIAL
    if gain <= 1:
        return 1.0
    return max((1 / first - gain / last) / (gain - gain / last - 1 + 1 / first), 0.0)
