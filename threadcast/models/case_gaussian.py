"""How the log times of ops vary together over the cases of one machine: a Gaussian, conditioned on samples of an op."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from threadcast.core.curve import Floats
from threadcast.models.sample_noise import WILD, Scatter

LEAST_VARIANCE = 1e-5
"""Least variance of a case's log time that is independent of other cases (0.3 %); keeps the covariance regular."""

PRIOR_OPS = 8.0
"""Weight of the smooth covariance, in measured ops, against the empirical covariance. A convention: with 20 ops it
keeps a 96 x 96 matrix from having rank 20; with hundreds of ops it has no effect."""

ROUNDS = 3
"""Rounds in which disturbed samples are searched for; further rounds no longer change much."""

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
        self, where: Sequence[int], values: Floats, scatter: Scatter, scale: Floats, level: Floats
    ) -> tuple[Floats, ...]:
        """Mean and variance (n_ops, n_cases) of ops whose samples at the cases `where` have the residuals `values`, and
        the probability (n_ops, n_where) that each sample is not `WRONG`.

        `values` and `scatter` are (n_ops, n_where), the oldest sample first. `scale` (n_ops,) multiplies the standard
        deviation of an op's curve; `level` (n_ops,) is a further variance that all cases of an op share. Whether a
        sample is disturbed or wrong is decided by how far it is from what the other samples predict (Rasmussen and
        Williams, 5.12), in `ROUNDS` rounds of expectation propagation with mixtures of normals.
        """
        at, spread, level = list(where), scale[:, None] ** 2, level[:, None]
        if not at:
            return *self.unsampled(scale, level[:, 0]), np.empty((len(values), 0))
        alone = spread * np.diag(self.covariance) + level
        across = spread[:, :, None] * self.covariance[at] + level[:, :, None]
        within = across[:, :, at]
        off = values - scale[:, None] * self.mean[at]
        noise, shift, wrong = _judged_by_others(within, off, scatter)
        gains = _inverse(within, noise) @ across
        mean = scale[:, None] * self.mean + np.einsum("ni,nim->nm", off - shift, gains)
        variance = np.maximum(alone - (across * gains).sum(axis=1), LEAST_VARIANCE)
        return mean, variance, 1 - wrong

    def remaining(self, where: Sequence[int], samples: Floats) -> Floats:
        """The covariance (n_cases, n_cases) that remains when the cases `where` have so many `samples` (n_where,)."""
        at = list(where)
        return self.covariance - self._gain(at, samples) @ self.covariance[at] if at else self.covariance

    def most_informative(self, left: Floats, allowed: Sequence[int], weights: Floats) -> int:
        """The one of the `allowed` cases that, sampled once, reduces the weighted sum of the variances in `left`
        most."""
        removed = (weights[:, None] * left**2).sum(axis=0) / (np.diag(left) + self.noise)
        return max(allowed, key=lambda case: float(removed[case]))

    def _gain(self, at: list[int], samples: Floats) -> Floats:
        within = self.covariance[np.ix_(at, at)] + np.diag(self.noise[at] / samples)
        gain: Floats = np.linalg.solve(within, self.covariance[at]).astype(np.float64, copy=False).T
        return gain


def _judged_by_others(within: Floats, off: Floats, scatter: Scatter) -> tuple[Floats, Floats, Floats]:
    """Noise and shift of each sample, judged by the other samples, and the probability that it is wrong; each (n_ops,
    n).

    `within` (n_ops, n, n): covariance of the true values at the sampled cases.
    """
    logs_of_shares = np.log(scatter.shares + 1e-300)
    noise, shift, wrong = scatter.variances[:, :, 0].copy(), scatter.offsets[:, :, 0].copy(), np.zeros(off.shape)
    centred, inverse = off - shift, _inverse(within, noise)
    for _ in range(ROUNDS):
        for i in range(off.shape[1]):
            column = inverse[:, :, i].copy()
            diagonal = column[:, i]
            others = centred[:, i] - (column * centred).sum(axis=1) / diagonal
            left = np.maximum(1 / diagonal - noise[:, i], 0.0)[:, None]
            variance = left + scatter.variances[:, i]
            apart = (off[:, i] - others)[:, None] - scatter.offsets[:, i]
            logs = logs_of_shares[:, i] - 0.5 * (apart**2 / variance + np.log(variance))
            logs[np.abs(apart[:, 2]) < WILD, 2] = -np.inf
            likely = np.exp(logs - logs.max(axis=1, keepdims=True))
            likely /= likely.sum(axis=1, keepdims=True)
            precisions = likely / scatter.variances[:, i]
            before, noise[:, i] = noise[:, i].copy(), 1 / precisions.sum(axis=1)
            shift[:, i] = noise[:, i] * (precisions * scatter.offsets[:, i]).sum(axis=1)
            centred[:, i], wrong[:, i] = off[:, i] - shift[:, i], likely[:, 2]
            more = noise[:, i] - before  # Sherman and Morrison 1950: one entry of the diagonal has changed
            share = more / (1 + more * diagonal)
            inverse -= share[:, None, None] * (column[:, :, None] * column[:, None, :])
    return noise, shift, wrong


def _inverse(within: Floats, noise: Floats) -> Floats:
    """Inverse of the covariance of the samples, (n_ops, n, n)."""
    return np.linalg.inv(within + noise[:, :, None] * np.eye(noise.shape[1])).astype(np.float64, copy=False)


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
