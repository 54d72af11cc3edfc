"""Strategy 3 of Liu et al. 2018, III-D: the thread counts with which an op may run beside others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from threadcast.scheduler.problem import Problem
from threadcast.scheduler.problem.times import Integers
from threadcast.scheduler.problem.useful_widths import useful_widths

CANDIDATES = 3
"""Thread counts tried per op (Liu et al. 2018, III-D, "an empirical number")."""

TOLERANCE = 2
"""Threads by which a candidate may differ from strategy 2's choice before that is used instead (same place)."""


class Candidate(NamedTuple):
    """A thread count of an op, its predicted seconds and whether these hold for one thread a cache group."""

    threads: int
    seconds: float
    spread: bool


def candidates_of(problem: Problem, chosen: Integers, *, keep_near: bool) -> list[tuple[Candidate, ...]]:
    """Return each op's candidates, fewest threads first; computed once and used by every co-run decision.

    Candidates are an op's `CANDIDATES` fastest thread counts. With `keep_near`, a count that differs by more than
    `TOLERANCE` threads from the `chosen` one (a position in `times.counts`, by strategy 2) is replaced by that. A
    candidate that is not faster than another with fewer threads is left out: it would never be chosen.
    """
    times = problem.times
    threads = np.asarray(times.counts)
    found = np.argsort(times.seconds, axis=1, kind="stable")[:, :CANDIDATES]
    if keep_near:
        far = np.abs(threads[found] - threads[chosen][:, None]) > TOLERANCE
        found = np.where(far, chosen[:, None], found)
    found = np.sort(found, axis=1)
    seconds = np.take_along_axis(times.seconds, found, axis=1)
    spread = np.take_along_axis(times.spread, found, axis=1)
    useful = useful_widths(seconds)
    rows = zip(threads[found].tolist(), seconds.tolist(), spread.tolist(), useful.tolist())
    return [tuple([Candidate(*point) for *point, is_useful in zip(*row) if is_useful]) for row in rows]


def fitting(candidates: Sequence[Candidate], *, idle: int, within_s: float) -> Candidate | None:
    """Return the candidate of fewest threads that fits `idle` cores and takes at most `within_s` seconds; else None.

    Fewer threads leave cores to another op, which the paper found to be better than ending this op sooner. If another
    op runs for 1.9 s more, it takes 18 threads for 1.5 s rather than 20 threads for 1.3 s, but not 16 for 2.1 s.
    """
    for candidate in candidates:
        if candidate.threads > idle:
            return None
        if candidate.seconds <= within_s:
            return candidate
    return None
