"""How ops' log times at the cases of one machine vary together: a Gaussian that a few samples of an op narrow down."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from threadcast.core.curve import Floats
from threadcast.models.sample_noise import WILD, Scatter

LEAST_VARIANCE = 1e-5
"""Of a case's log time, beside what others tell of it: 0.3 %. Keeps the covariance regular."""

PRIOR_OPS = 8.0
"""How many measured ops the smooth covariance weighs as much as, against that of the ops themselves. A convention:
with 20 ops it keeps a 96 x 96 matrix from being of rank 20, with hundreds it vanishes."""

ROUNDS = 3
"""In which it is told which samples are disturbed; what comes after no longer changes much."""

DRAWS = 96
"""Curves that are drawn to tell what a choice may cost."""


@dataclass(frozen=True, slots=True, eq=False)
class CaseGaussian:
    """Log times, or what a base leaves of them. `mean` is (n_cases,), `covariance` (n_cases, n_cases), float64.

    `noise` (n_cases,) is the variance of one sample's log around the truth, by which the next one is chosen.
    """

    mean: Floats
    covariance: Floats
    noise: Floats

    @classmethod
    def fitted(cls, residuals: Floats, threads: Sequence[int], noise: Floats) -> CaseGaussian:
        """From `residuals` (n_ops, n_cases), NaN where a case was not measured; `threads` are the cases'."""
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

    @classmethod
    def smooth(cls, variance: float, length: float, threads: Floats, noise: float) -> CaseGaussian:
        """Around 0, with a variance, that cases `length` apart in log threads share to 1/e."""
        apart = np.abs(np.log(threads)[:, None] - np.log(threads))
        covariance = variance * np.exp(-apart / length) + LEAST_VARIANCE * np.eye(len(threads))
        return cls(np.zeros(len(threads)), covariance, np.full(len(threads), noise))

    def smoothness(self, threads: Sequence[int]) -> tuple[float, float]:
        """The variance and the length for which `smooth` is most like this."""
        log_threads = np.log(np.asarray(threads, dtype=np.float64))
        return float(np.mean(np.diag(self.covariance) + self.mean**2)), _length(self.covariance, None, log_threads)

    def unsampled(self, scale: Floats, level: Floats) -> tuple[Floats, Floats]:
        """As `given`, of ops without samples."""
        scale, level = scale[:, None], level[:, None]
        return scale * self.mean, scale**2 * np.diag(self.covariance) + level

    def given(
        self, where: Sequence[int], values: Floats, scatter: Scatter, scale: Floats, level: Floats
    ) -> tuple[Floats, ...]:
        """Mean and variance (n_ops, n_cases) of ops whose samples at `where` left `values`, and how likely each of
        these is not `WRONG`, (n_ops, n_where).

        `values` and `scatter` are (n_ops, n_where), the oldest first; `scale` (n_ops,) is how many times as far as the
        others' an op's curve may be from the mean, `level` (n_ops,) a variance that all its cases share beside that.
        Which samples are disturbed, which wrong, is told from what the other samples say of each (Rasmussen and
        Williams, 5.12), in `ROUNDS` rounds: expectation propagation with mixtures of normals.
        """
        at, spread, level = list(where), scale[:, None] ** 2, level[:, None]
        if not at:
            return *self.unsampled(scale, level[:, 0]), np.empty((len(values), 0))
        alone = spread * np.diag(self.covariance) + level
        across = spread[:, :, None] * self.covariance[at] + level[:, :, None]
        within = across[:, :, at]
        off = values - scale[:, None] * self.mean[at]
        noise, shift, wrong = _told_apart(within, off, scatter)
        told = _inverse(within, noise) @ across
        mean = scale[:, None] * self.mean + np.einsum("ni,nim->nm", off - shift, told)
        variance = np.maximum(alone - (across * told).sum(axis=1), LEAST_VARIANCE)
        return mean, variance, 1 - wrong

    def left(self, where: Sequence[int], samples: Floats) -> Floats:
        """The covariance (n_cases, n_cases) that is left once `where` is known."""
        at = list(where)
        return self.covariance - self._gain(at, samples) @ self.covariance[at] if at else self.covariance

    def most_telling(self, left: Floats, allowed: Sequence[int], weights: Floats) -> int:
        """Which of the `allowed` cases, sampled once, takes most of the variances in `left`, weighted by case."""
        told = (weights[:, None] * left**2).sum(axis=0) / (np.diag(left) + self.noise)
        return max(allowed, key=lambda case: float(told[case]))

    def _gain(self, at: list[int], samples: Floats) -> Floats:
        within = self.covariance[np.ix_(at, at)] + np.diag(self.noise[at] / samples)
        gain: Floats = np.linalg.solve(within, self.covariance[at]).astype(np.float64, copy=False).T
        return gain


def _told_apart(within: Floats, off: Floats, scatter: Scatter) -> tuple[Floats, Floats, Floats]:
    """Noise and shift of each sample by what the others say of it, and how likely it is wrong: each (n_ops, n).

    `within` (n_ops, n, n) is the covariance of what the samples were taken of.
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
    """Of the samples' covariance, (n_ops, n, n)."""
    return np.linalg.inv(within + noise[:, :, None] * np.eye(noise.shape[1])).astype(np.float64, copy=False)


def expected_regret(log_times: Floats, covariance: Floats, *, seed: int = 0) -> tuple[float, Floats]:
    """What choosing the least of `log_times` (n_cases,) costs on average, as a share of the best, and how often each
    case is the best (n_cases,)."""
    values, vectors = np.linalg.eigh(covariance)
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    drawn = log_times + np.random.default_rng(seed).standard_normal((DRAWS, len(log_times))) @ root.T
    best: NDArray[np.int64] = drawn.argmin(axis=1)
    lost = np.exp(drawn[:, log_times.argmin()] - drawn.min(axis=1)) - 1
    return float(lost.mean()), np.bincount(best, minlength=len(log_times)) / DRAWS


def _smooth(own: Floats, both: Floats, log_threads: Floats) -> Floats:
    """A covariance that depends on how far apart two thread counts are, with the variances and nearness of `own`."""
    scale = np.sqrt(np.maximum(np.diag(own), LEAST_VARIANCE))
    apart = np.abs(log_threads[:, None] - log_threads)
    found: Floats = np.outer(scale, scale) * np.exp(-apart / _length(own, both, log_threads))
    return found


def _length(covariance: Floats, both: Floats | None, log_threads: Floats) -> float:
    """Over which distance in log threads correlation falls to 1/e, of pairs that more than two ops have."""
    scale = np.sqrt(np.maximum(np.diag(covariance), LEAST_VARIANCE))
    correlation = np.clip(covariance / np.outer(scale, scale), -1, 1)
    apart = np.abs(log_threads[:, None] - log_threads)
    pairs = apart > 0 if both is None else (both > 2) & (apart > 0)
    if not pairs.any():
        return 1.0
    lengths = np.geomspace(0.05, 50.0, 25)
    errors = [float(np.mean((correlation[pairs] - np.exp(-apart[pairs] / length)) ** 2)) for length in lengths]
    return float(lengths[int(np.argmin(errors))])
