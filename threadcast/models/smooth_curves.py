"""What trees forecast on a machine that they do not know, as smooth curves.

Trees have steps at which no real time changes, and on an unknown machine the step that looks fastest is chosen:
simulated servers lost 30 to 40 % by the trees' own curves, 10 to 15 % by smooth ones.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from threadcast.core import Case, Machine, Op
from threadcast.core.curve import Floats
from threadcast.models.point_trees import PointTrees

SERIAL = 0.05
"""Assumed part of the work that threads do not divide (Amdahl). A convention."""

DEGREE, MOST_CASES = 3, 24
"""Degree of the polynomials in the logarithm of the threads, and the most thread counts that they are fitted to."""


DOUBT = 0.1
"""A fastest case whose log time is forecast so little below that of all threads counts as no faster than them: on the
simulated Xeon Phi, left out while learning, choices then cost 4.7 % and not 8.9 % (all threads 4.3), on servers of 32
to 128 cores as much as before."""


def fitted_factors(trees: PointTrees, ops: Sequence[Op], machine: Machine) -> Floats:
    """(n_ops, DEGREE + 1) factors of polynomials in the logarithm of the threads, fitted to what the trees forecast."""
    fitted = _some(machine.cases())
    logs = trees.log_seconds(ops, machine, fitted)
    # least squares takes the smallest factors where there are fewer thread counts than powers
    found: Floats = np.linalg.lstsq(_powers(fitted, machine), logs.T, rcond=None)[0].T.astype(np.float64, copy=False)
    return found


def curves_of(factors: Floats, machine: Machine, cases: Sequence[Case]) -> Floats:
    """(n_ops, n_cases) log seconds: the geometric means of the polynomials with these factors (n_ops, DEGREE + 1), and
    of Amdahl's law, moved to the same level.

    No time is below that of one thread over the number of threads. Where more threads than the fastest count's are
    forecast to take hardly longer (`DOUBT`), they take no longer.
    """
    some = _some(machine.cases())
    every, counts = _curves(factors, machine, some), np.array([case.threads for case in some])
    asked = np.array([case.threads for case in cases])
    least = every.min(axis=1, keepdims=True)
    doubtful = every[:, [counts.argmax()]] - least < DOUBT
    beyond = asked > counts[every.argmin(axis=1)][:, None]
    # a little less for each further thread, so that all of them are the choice
    found: Floats = np.where(doubtful & beyond, least - 1e-6 * asked, _curves(factors, machine, cases))
    return found


def _curves(factors: Floats, machine: Machine, cases: Sequence[Case]) -> Floats:
    """`curves_of` without doubt."""
    fitted = _some(machine.cases())
    level = (_powers(fitted, machine) @ factors.T).mean(axis=0) - _amdahl(fitted).mean()
    found = 0.5 * (_powers(cases, machine) @ factors.T).T + 0.5 * (level[:, None] + _amdahl(cases))
    one = 0.5 * (factors[:, -1] + level)
    limited: Floats = np.maximum(found, one[:, None] - np.log([case.threads for case in cases]))
    return limited


def _some(cases: Sequence[Case]) -> tuple[Case, ...]:
    """At most `MOST_CASES` of the cases, evenly over the logarithms of their threads."""
    logs = np.log([case.threads for case in cases])
    wanted = np.linspace(0.0, logs.max(), MOST_CASES)
    return tuple(cases[i] for i in sorted(set(np.abs(logs - wanted[:, None]).argmin(axis=1).tolist())))


def _powers(cases: Sequence[Case], machine: Machine) -> Floats:
    """(n_cases, DEGREE + 1) powers of log threads, as a share of the log of all cores."""
    share = np.log([case.threads for case in cases]) / max(np.log(len(machine)), 1.0)
    return np.vander(share, DEGREE + 1)


def _amdahl(cases: Sequence[Case]) -> Floats:
    threads = np.array([case.threads for case in cases], dtype=np.float64)
    found: Floats = np.log(SERIAL + (1 - SERIAL) / threads)
    return found
