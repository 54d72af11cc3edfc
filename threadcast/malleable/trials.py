"""Proposes divisions of the cores to try, in order to learn how fast processes are with other numbers of cores."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import permutations

from threadcast.malleable.party import Party

NEAR = 1.15
"""Ratio of two numbers of cores up to which a rate measured with one need not be measured with the other."""
FEWER_FROM = 8
"""Number of cores of a process from which on fewer cores are tried; with few cores, more are hardly ever slower."""
_PARTS = (2, 4, 8)
"""Divisors: in a trial a process gives up a half of its cores, a quarter or an eighth, in this order."""

Counts = Mapping[str, int]
"""Numbers of cores by process."""


def next_trial(
    parties: Mapping[str, Party], floors: Counts, cores: int, fits: Callable[[Counts], bool] = lambda _: True
) -> dict[str, int] | None:
    """Return a division near the present one from which something can be learned; None where there is none.

    Compared with the present division, one process has some cores of another, or a process with many cores has fewer;
    larger changes come first. No process has fewer cores than its floor, or more than it can use. `cores` is the number
    of cores of the machine; `fits` says whether each process can have so many of those that it may use.
    """
    counts = {name: len(party.target) for name, party in parties.items()}
    if sum(counts.values()) > cores:
        return None
    for trial, changed in _neighbours(counts):
        allowed = _is_allowed(trial, changed, parties, floors, cores)
        if allowed and _is_informative(trial, counts, changed, parties) and fits(trial):
            return trial
    return None


def _neighbours(counts: Counts) -> Iterator[tuple[dict[str, int], tuple[str, ...]]]:
    """Divisions near this one, each with the names of the processes whose number of cores changes."""
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
    return all(floors[name] <= trial[name] <= (parties[name].most or cores) for name in changed)


def _is_informative(trial: Counts, counts: Counts, changed: tuple[str, ...], parties: Mapping[str, Party]) -> bool:
    """Whether the present rates are measured, and a rate in the trial is not known from nearby numbers of cores."""
    if not all(parties[name].rates.by_cores.get(counts[name]) for name in changed):
        return False
    return any(
        not any(known / NEAR <= trial[name] <= known * NEAR for known in parties[name].known_rates())
        for name in changed
    )
