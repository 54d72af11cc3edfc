"""Whether stored measurements still hold, and what a campaign's choices cost on a check."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from threadcast.collector.proposers import Choice
from threadcast.core import Case, Measurement
from threadcast.core.measurement_time import made_at, not_void
from threadcast.store.holding import Elsewhere, what_holds

PROBES, PROBE_AFTER_S = 3, 3600.0
"""How many stored measurements are made again before the others are believed, and the age from which on. A campaign
that goes on soon after it was stopped makes none again."""

DRIFT = 1.4
"""Factor between new and stored times from which on the machine counts as changed. A convention: times of a quiet
machine differ by a few percent from day to day."""

CHECKED_CASES = 3
"""Most cases that are measured of each checked op, the chosen one first."""

MOST_CHECKS = 5
"""Most checks of a campaign; after each it goes on measuring if forecasts proved to be less certain than they said."""


@dataclass(frozen=True, slots=True)
class CheckedRegret:
    """What the choices for `ops` randomly drawn ops cost: the time at the chosen case over the shortest time at all
    measured cases, less one. Cases that were not measured may be faster still."""

    ops: int
    mean: float

    @classmethod
    def of(cls, chosen: Mapping[str, Case], observed: Mapping[str, Sequence[Measurement]]) -> CheckedRegret | None:
        """From the chosen cases of checked ops, by op key; None where none of these cases was measured."""
        found = []
        for key, case in chosen.items():
            at_case = [m.seconds for m in observed[key] if m.case == case]
            if at_case:
                found.append(at_case[-1] / min(m.seconds for m in observed[key]) - 1)
        return cls(len(found), statistics.fmean(found)) if found else None


def holding(
    found: Sequence[Measurement], *, now: datetime, max_age_days: float | None, elsewhere: Elsewhere | None = None
) -> list[Measurement]:
    """The newest measurement of each op and case, a disturbed one only where there is no other, unless it is too old, a
    later one declared it void, or the op or the machine has changed since (`store.holding`). Those that do not say when
    they were made count as new."""
    oldest = None if max_age_days is None else now - timedelta(days=max_age_days)
    by_op: dict[str, list[Measurement]] = {}
    newest: dict[tuple[str, Case], Measurement] = {}
    for one in not_void(found):  # in the order of time
        by_op.setdefault(one.op.key, []).append(one)
        before = newest.pop((one.op.key, one.case), one)
        newest[one.op.key, one.case] = before if one.disturbed and not before.disturbed else one
    held = {key: what_holds(of_op, elsewhere) for key, of_op in by_op.items()}
    return [
        one
        for (key, case), one in newest.items()
        if not held[key][case].stale and (oldest is None or (time := made_at(one)) is None or time >= oldest)
    ]


def probes(observed: Mapping[str, Sequence[Measurement]], *, now: datetime) -> list[Measurement]:
    """The stored measurements to make again first: the newest of the ops that take longest.

    None if more ops, or all, have new ones: with as many, a campaign may have been stopped before it compared them.
    Times after `now` are wrong, and tell nothing.
    """
    newest = [known[-1] for known in observed.values() if known]
    ages_s = [(now - time).total_seconds() if (time := made_at(m)) else math.nan for m in newest]
    known_s = [age_s for age_s in ages_s if age_s >= 0]
    new = sum(age_s < PROBE_AFTER_S for age_s in known_s)
    if not known_s or new >= min(PROBES + 1, len(newest)):
        return []
    old = [m for m, age_s in zip(newest, ages_s, strict=True) if not 0 <= age_s < PROBE_AFTER_S]
    return sorted(old, key=lambda m: -m.seconds)[:PROBES]


def disturbed_cases(observed: Mapping[str, Sequence[Measurement]]) -> dict[tuple[str, Case], float]:
    """The cases of which all measurements are disturbed, by op key and case: the shortest of their times in seconds."""
    found: dict[tuple[str, Case], float] = {}
    for key, known in observed.items():
        quiet = {m.case for m in known if not m.disturbed}
        for m in known:
            if m.case not in quiet:
                found[key, m.case] = min(found.get((key, m.case), m.seconds), m.seconds)
    return found


def drift_factor(pairs: Sequence[tuple[Measurement, Measurement]]) -> float:
    """The typical factor, at least 1, between stored and new times; 1 without any."""
    logs = [math.log(new.seconds / old.seconds) for old, new in pairs]
    return math.exp(abs(statistics.median(logs))) if logs else 1.0


def drawn(keys: Sequence[str], count: int, *, seed: int = 0) -> list[str]:
    """`count` of the keys, or all, at random; the same each time."""
    return random.Random(seed).sample(list(keys), min(count, len(keys)))


def checked_cases(choice: Choice, observed: Sequence[Measurement]) -> list[Case]:
    """The cases to check a choice by, none of which is measured yet: the chosen one, the one whose measurement the
    forecast expects to tell most, and, as that forecast may be wrong, a rival drawn at random."""
    measured = {m.case for m in observed}
    found = [case for case in (choice.case, choice.next_case) if case is not None and case not in measured]
    others = [case for case in choice.rivals if case not in measured and case not in found]
    random.Random(len(others)).shuffle(others)
    return list(dict.fromkeys([*found, *others]))[:CHECKED_CASES]
