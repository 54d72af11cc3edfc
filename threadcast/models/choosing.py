"""What the choice of a case may cost while forecasts are uncertain, and which measurement lowers that cost most."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from threadcast.core import Case
from threadcast.core.curve import Floats
from threadcast.models.intervals import NORMAL_95

DRAWS = 128
"""Curves that are drawn at random for an estimate."""

RIVAL = 1.25
"""How many times as long as the chosen case a case may be forecast to take to be one of its rivals. A convention."""

NOISE = 0.01**2
"""Variance of the log of a median where its samples do not tell it. A convention: campaigns stop at 2 % either way."""


class Outlook(NamedTuple):
    """The choice of a case by a forecast.

    `best`: the case with the least expected time, which is longer than the median where that is uncertain; `seconds`:
    its median; `expected_regret`: its extra time as a share of the best case's; `ask`: the case whose measurement
    lowers that most, None where no measurement is wanted; `rivals`: the other cases that are forecast to take at most
    `RIVAL` times as long. Cases are positions.
    """

    best: int
    seconds: float
    expected_regret: float
    ask: int | None
    rivals: tuple[int, ...] = ()


ALIKE_WITHIN = 1.0
"""Difference of log threads over which the correlation of a forecast's errors falls to 1/e, where a model says no more
than how wide its intervals are. A convention; with the learned curve on MKL's sgemm it is about 1."""


def interval_covariance(low: Floats, high: Floats, cases: Sequence[Case]) -> Floats:
    """The covariance (n_cases, n_cases) of log times whose 90 % interval is from `low` to `high` seconds (n_cases,)."""
    deviations = np.log(high / low) / (2 * NORMAL_95)
    threads = np.log([case.threads for case in cases])
    apart = np.abs(threads[:, None] - threads)
    found: Floats = np.outer(deviations, deviations) * np.exp(-apart / ALIKE_WITHIN)
    return found


def outlook(
    logs: Floats, covariance: Floats, allowed: NDArray[np.bool_], noise: float, *, freedom: float | None = None,
    seed: int = 0,
) -> Outlook:  # fmt: skip
    """The outlook for one op with forecast `logs` (n_cases,) of seconds and their `covariance` (n_cases, n_cases).

    Errors are Gaussian, or have a t distribution with `freedom` degrees of freedom and this covariance.
    `allowed` (n_cases,): the cases that may be measured; `noise`: the variance of the log of a measurement. The regret
    of a choice comes from cases that may be faster; a measurement is worth how much it narrows the difference between
    the chosen case and each of these, weighted by their part of the regret.
    """
    best = int((logs + np.diag(covariance) / 2).argmin())
    values, vectors = np.linalg.eigh(covariance)
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    random = np.random.default_rng(seed)
    errors = random.standard_normal((DRAWS, len(logs))) @ root.T
    if freedom is not None:
        errors *= np.sqrt((freedom - 2) / random.chisquare(freedom, (DRAWS, 1)))
    drawn = logs + errors
    fastest = drawn.argmin(axis=1)
    lost = np.exp(drawn[:, best] - drawn.min(axis=1)) - 1
    regret = float(lost.mean())
    seconds = float(np.exp(logs[best]))
    rivals = tuple(int(i) for i in np.flatnonzero(logs <= logs[best] + np.log(RIVAL)) if i != best)
    if not allowed.any():
        return Outlook(best, seconds, regret, None, rivals)
    part = np.bincount(fastest, weights=lost, minlength=len(logs))
    alone = np.diag(covariance)
    between = covariance[best] - covariance  # row b: covariance of (chosen - b) with every case
    apart = np.maximum(alone[best] + alone - 2 * covariance[best], 1e-12)
    narrowed = (part / apart) @ between**2 / (alone + noise)
    return Outlook(best, seconds, regret, int(np.where(allowed, narrowed, -1.0).argmax()), rivals)
