"""Shrinks uncertain curves towards what they have in common, so that plans do not depend on noise.

Ops of one network scale alike. Take the logarithms of their curves, and subtract each curve's mean and the mean shape:
what is left is mostly a mixture of a few shapes, while the errors of points are independent. Such a matrix, with noise
of known size, is best recovered by shrinking its singular values (Gavish and Donoho 2017, "Optimal Shrinkage of
Singular Values", Frobenius loss). Real curves are jagged too, so curves move only half of the way.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from threadcast.core import CurveTable, Source
from threadcast.scheduler.problem import Problem
from threadcast.scheduler.problem.times import LONGEST_S, Floats
from threadcast.scheduler.search.robust import log_deviation

UNCERTAIN = 0.04
"""Standard deviation of a typical point's logarithm from which on curves are denoised; a 90 % interval of +-7 %."""

FEWEST_CURVES, FEWEST_CASES = 8, 3
"""Fewest different curves, and fewest cases measured in all of them; with fewer, noise cannot be told apart."""

SHARE = 0.5
"""Share of the way to the shrunk curves that curves move. On exact curves the full way made plans 4 % longer, half of
it 1 to 2 %; with errors of up to 20 %, half of it made plans 1.4 % shorter (networks of the planner's benchmark)."""


def denoised(problem: Problem) -> Problem | None:
    """Return the problem with denoised curves; None where the curves are certain enough, or too few.

    Ops that take no time keep their curves.
    """
    curves = problem.curves
    measured = (curves.source == list(Source).index(Source.MEASURED)) & np.isfinite(curves.seconds)
    timed = (curves.seconds > 0).all(axis=1) & measured.any(axis=1)
    deviation = float(np.median(log_deviation(curves)[timed][measured[timed]])) if timed.any() else 0.0
    if deviation < UNCERTAIN:
        return None
    seconds = curves.seconds.copy()
    groups, group_of, sizes = np.unique(measured[timed], axis=0, return_inverse=True, return_counts=True)
    for group in np.flatnonzero(sizes >= FEWEST_CURVES):  # curves that were measured at the same counts
        ops, known = np.flatnonzero(timed)[group_of.ravel() == group], np.flatnonzero(groups[group])
        rows, inverse = np.unique(np.log(curves.seconds[np.ix_(ops, known)]), axis=0, return_inverse=True)
        if len(rows) >= FEWEST_CURVES and len(known) >= FEWEST_CASES:
            change = _between(SHARE * (_shrunk(rows, deviation) - rows), curves, known)
            seconds[ops] *= np.exp(change[inverse.ravel()])
    if np.array_equal(seconds, curves.seconds):
        return None
    seconds = np.where(np.isfinite(curves.seconds), np.minimum(seconds, LONGEST_S), curves.seconds)
    return Problem(problem.graph, replace(curves, seconds=seconds, low=seconds, high=seconds), problem.machine)


def _shrunk(rows: Floats, deviation: float) -> Floats:
    """`rows` (n, n_cases) with their singular values shrunk as for noise of this standard deviation."""
    mean = rows.mean(axis=1, keepdims=True)
    shape = (rows - mean).mean(axis=0)
    left, values, right = np.linalg.svd(rows - mean - shape, full_matrices=False)
    short, long = sorted(rows.shape)
    ratio, unit = short / long, deviation * math.sqrt(long)
    scaled = values / unit
    square = np.maximum((scaled**2 - ratio - 1) ** 2 - 4 * ratio, 0.0)
    shrunk = np.where(scaled > 1 + math.sqrt(ratio), np.sqrt(square) / np.maximum(scaled, 1e-300), 0.0)
    return np.asarray(mean + shape + (left * (shrunk * unit)) @ right)


def _between(change: Floats, curves: CurveTable, known: np.ndarray[tuple[int], np.dtype[np.intp]]) -> Floats:
    """Changes of the `known` cases, (n, n_known), interpolated to all cases by thread count, within one affinity."""
    threads = np.log([case.threads for case in curves.cases])
    found = np.empty((len(change), len(curves.cases)))
    for affinity in dict.fromkeys(case.affinity for case in curves.cases):
        mine = np.array([case.affinity is affinity for case in curves.cases])
        given = np.flatnonzero(mine[known])
        given = given if len(given) else np.arange(len(known))
        at, order = threads[known][given], np.argsort(threads[known][given], kind="stable")
        for row, of_row in zip(found, change[:, given], strict=True):
            row[mine] = np.interp(threads[mine], at[order], of_row[order])
    return found
