"""Which division of the cores to try next, so that it becomes known how fast processes are with other numbers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import permutations

from threadcast.malleable.party import Party

NEAR = 1.15
"""Ratio of two numbers of cores up to which the rate with one says enough about the other."""
FEWER_FROM = 8
"""Cores of a process from which on it is tried whether fewer serve it better: of a few, more are hardly ever worse."""
_PARTS = (2, 4, 8)
"""Which part of its cores a process gives up in a trial: first a half, last an eighth."""

Counts = Mapping[str, int]
"""Numbers of cores by process."""


def next_trial(parties: Mapping[str, Party], floors: Counts, cores: int) -> dict[str, int] | None:
    """A division near the present one that says something new, those farthest away first; None where there is none.

    One process has some of another's cores, or one with many has fewer. Nobody has fewer than its floor, nor more than
    it can use. `cores` is how many the machine has.
    """
    counts = {name: len(party.target) for name, party in parties.items()}
    if sum(counts.values()) > cores:
        return None
    for trial, changed in _neighbours(counts):
        if _is_allowed(trial, changed, parties, floors, cores) and _is_informative(trial, counts, changed, parties):
            return trial
    return None


def _neighbours(counts: Counts) -> Iterator[tuple[dict[str, int], tuple[str, ...]]]:
    """Divisions near this one, each with the names of the processes whose cores change."""
    for part in _PARTS:
        for giver, taker in permutations(counts, 2):
            moved = max(1, min(counts[giver], counts[taker]) // part)
            yield {**counts, giver: counts[giver] - moved, taker: counts[taker] + moved}, (giver, taker)
        for name, count in counts.items():
            if count >= FEWER_FROM:
                yield {**counts, name: count - count // part}, (name,)


def _is_allowed(
    trial: Counts, changed: Iterable[str], parties: Mapping[str, Party], floors: Counts, cores: int
) -> bool:
    return all(floors[name] <= trial[name] <= (parties[name].claim.most or cores) for name in changed)


def _is_informative(trial: Counts, counts: Counts, changed: tuple[str, ...], parties: Mapping[str, Party]) -> bool:
    """Whether the present rates of the processes are measured, and the trial's are not known from nearby numbers."""
    if not all(parties[name].rates.by_cores.get(counts[name]) for name in changed):
        return False
    return any(
        not any(known / NEAR <= trial[name] <= known * NEAR for known in parties[name].known_rates())
        for name in changed
    )
