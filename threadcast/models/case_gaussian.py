"""How the log times of ops vary together over the cases of one machine: a Gaussian, conditioned on samples of an op."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from threadcast.core.curve import Floats

LEAST_VARIANCE = 1e-5
"""Least variance of a case's log time that is independent of other cases (0.3 %); keeps the covariance regular."""

PRIOR_OPS = 8.0
"""Weight of the smooth covariance, in measured ops, against the empirical covariance. A convention: with 20 ops it
keeps a 96 x 96 matrix from having rank 20; with hundreds of ops it has no effect."""

DRAWS = 96
"""Number of curves that are drawn at random to estimate the expected regret of a choice."""


@dataclass(frozen=True, slots=True, eq=False)
class CaseGaussian:
    """A Gaussian over log times, or over residuals of log times: `mean` (n_cases,), `covariance` (n_cases, n_cases),
    float64.

    `noise` (n_cases,): variance of the log of one sample around the true value, used to choose the next sample.
    """

    mean: Floats
    covariance: Floats
    noise: Floats

    @classmethod
    def fitted(cls, residuals: Floats, threads: Sequence[int], noise: Floats) -> CaseGaussian:
        """Estimate from `residuals` (n_ops, n_cases), NaN where a case was not measured; `threads` are those of the
        cases."""
        known = ~np.isnan(residuals)
        counts = known.sum(axis=0)
        filled = np.where(known, residuals, 0.0)
        mean = filled.sum(axis=0) / np.maximum(counts, 1)
        mean = np.where(counts > 0, mean, filled.sum() / max(known.sum(), 1))
        centred = np.where(known, residuals - mean, 0.0)
        both = known.T.astype(np.float64) @ known
        own = centred.T @ centred / np.maximum(both, 1)
        smooth = _smooth(own, both, np.log(np.asarray(threads, dtype=np.float64)))
        share = both / (both + PRIOR_OPS)
        mixed = share * own + (1 - share) * smooth
        values, vectors = np.linalg.eigh((mixed + mixed.T) / 2)  # pairs with unlike counts can make it indefinite
        covariance = (vectors * np.maximum(values, 0.0)) @ vectors.T + LEAST_VARIANCE * np.eye(len(mean))
        return cls(mean, covariance, noise)

    def unsampled(self, scale: Floats, level: Floats) -> tuple[Floats, Floats]:
        """Mean and variance (n_ops, n_cases) of ops without samples; `scale` and `level` are those of `given`."""
        scale, level = scale[:, None], level[:, None]
        return scale * self.mean, scale**2 * np.diag(self.covariance) + level

    def given(
        self, where: Sequence[int], values: Floats, noise: Floats, scale: Floats, level: Floats
    ) -> tuple[Floats, Floats]:
        """Mean and variance (n_ops, n_cases) of ops whose samples at the cases `where` have the residuals `values`.

        `values` and `noise`, the variance of each around the true one, are (n_ops, n_where). `scale` (n_ops,)
        multiplies the standard deviation of an op's curve; `level` (n_ops,) is a further variance that all cases of an
        op share.
        """
        at, spread = list(where), scale[:, None] ** 2
        if not at:
            return self.unsampled(scale, level)
        alone = spread * np.diag(self.covariance) + level[:, None]
        across = spread[:, :, None] * self.covariance[at] + level[:, None, None]
        within = across[:, :, at] + noise[:, :, None] * np.eye(len(at))
        gains = np.linalg.solve(within, across)
        mean = scale[:, None] * self.mean + np.einsum("ni,nim->nm", values - scale[:, None] * self.mean[at], gains)
        return mean, np.maximum(alone - (across * gains).sum(axis=1), LEAST_VARIANCE)

    def remaining(self, where: Sequence[int], noise: Floats) -> Floats:
        """The covariance (n_cases, n_cases) that remains when the cases `where` are known up to this `noise`
        (n_where,)."""
        at = list(where)
        if not at:
            return self.covariance
        within = self.covariance[np.ix_(at, at)] + np.diag(noise)
        found: Floats = self.covariance - self.covariance[at].T @ np.linalg.solve(within, self.covariance[at])
        return found

    def most_informative(self, left: Floats, allowed: Sequence[int], weights: Floats) -> int:
        """The one of the `allowed` cases that, sampled once, reduces the weighted sum of the variances in `left`
        most."""
        removed = (weights[:, None] * left**2).sum(axis=0) / (np.diag(left) + self.noise)
        return max(allowed, key=lambda case: float(removed[case]))


def expected_regret(log_times: Floats, covariance: Floats, *, seed: int = 0) -> tuple[float, Floats]:
    """Expected regret of choosing the least of `log_times` (n_cases,), which is its extra time as a share of the best
    time, and the probability (n_cases,) that each case is the best."""
    drawn = log_times + _errors_drawn(np.ascontiguousarray(covariance).tobytes(), seed)
    best: NDArray[np.int64] = drawn.argmin(axis=1)
    lost = np.exp(drawn[:, log_times.argmin()] - drawn.min(axis=1)) - 1
    return float(lost.mean()), np.bincount(best, minlength=len(log_times)) / DRAWS


@lru_cache(maxsize=32)
def _errors_drawn(covariance: bytes, seed: int) -> Floats:
    """(DRAWS, n_cases) errors with this covariance (the bytes of a float64 array); read-only. Ops that were sampled at
    the same cases have one covariance, and its eigenvectors take as long as all else in a proposal."""
    own = np.frombuffer(covariance, dtype=np.float64)
    own = own.reshape(math.isqrt(len(own)), -1)
    values, vectors = np.linalg.eigh(own)
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    found: Floats = np.random.default_rng(seed).standard_normal((DRAWS, len(own))) @ root.T
    found.flags.writeable = False
    return found


def _smooth(own: Floats, both: Floats, log_threads: Floats) -> Floats:
    """A covariance that depends on the distance of two thread counts only, with the variances and correlation length of
    `own`."""
    scale = np.sqrt(np.maximum(np.diag(own), LEAST_VARIANCE))
    apart = np.abs(log_threads[:, None] - log_threads)
    found: Floats = np.outer(scale, scale) * np.exp(-apart / _length(own, both, log_threads))
    return found


def _length(covariance: Floats, both: Floats, log_threads: Floats) -> float:
    """Distance in log threads at which correlation falls to 1/e, from pairs of cases that more than two ops have."""
    scale = np.sqrt(np.maximum(np.diag(covariance), LEAST_VARIANCE))
    correlation = np.clip(covariance / np.outer(scale, scale), -1, 1)
    apart = np.abs(log_threads[:, None] - log_threads)
    pairs = (both > 2) & (apart > 0)
    if not pairs.any():
        return 1.0
    lengths = np.geomspace(0.05, 50.0, 25)
    errors = [float(np.mean((correlation[pairs] - np.exp(-apart[pairs] / length)) ** 2)) for length in lengths]
    return float(lengths[int(np.argmin(errors))])
