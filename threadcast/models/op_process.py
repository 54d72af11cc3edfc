"""A Gaussian process over descriptions of ops: forecasts the curve of an op from the curves of similar ops, principal
component by principal component."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from threadcast.core import Op
from threadcast.core.curve import Floats
from threadcast.models.static_features import describe

GROUPS = (1, 2, 3, 4, 8, 24)
"""Principal components of log curves share length scales in groups that end at these numbers; the rest is one more
group. On 900 shapes of MKL's sgemm at 96 thread counts 24 components hold all but 1.6 % of the time; the first are
smooth in the shape, the later ones jump."""

TUNED_ON = 300
"""Ops, drawn at random, from which length scales are chosen; the cost grows with the cube of their number."""

NOISES = np.geomspace(1e-4, 10.0, 26)
"""Tried shares of a component's variance that do not depend on the op."""

NEGLIGIBLE = 1e-30
"""Covariances below this count as 0: sums do not change by them, and their products are numbers so small (denormal)
that processors take up to 40 times as long for them."""

TOGETHER = 16
"""Of so many ops at most, each is forecast to the last bit as it is alone: their matrices are multiplied one by one,
which for so few takes less time than asking libraries that sum in another order for each shape."""

_SHORTEST, _LONGEST = np.log(0.05), np.log(50.0)
"""Limits of length scales, in standard deviations of the numbers that describe ops."""


@dataclass(frozen=True, slots=True, eq=False)
class OpProcess:
    """Exponential kernels over scaled descriptions of ops, one for each group of components (Matern 1/2: Rasmussen and
    Williams 2006, 4.2.1; libraries switch algorithms by shape, so curves jump and do not bend).

    Ops of one kind say nothing about ops of another. `described` is (n_ops, n_numbers), `kinds` their kinds; `weights`
    (n_ops, n_components); `components` (n_components, n_cases); `mean` (n_cases,); `lengths` (n_groups, n_numbers).
    """

    kinds: tuple[str, ...]
    lengths: Floats
    described: Floats
    weights: Floats
    components: Floats
    mean: Floats
    names: tuple[str, ...] = ()
    """Attributes of ops that are inputs too (`static_features.describe`)."""
    _known: dict[str, _Kind] = field(init=False)

    def __post_init__(self) -> None:
        rows = {kind: [i for i, own in enumerate(self.kinds) if own == kind] for kind in set(self.kinds)}
        known = {kind: _Kind(self.lengths, self.described[own], self.weights[own]) for kind, own in rows.items()}
        object.__setattr__(self, "_known", known)

    @classmethod
    def fitted(
        cls, ops: Sequence[Op], curves: Floats, *, seed: int, names: tuple[str, ...] = ()
    ) -> tuple[OpProcess, Floats]:
        """Learn from `curves` (n_ops, n_cases); returns the process, and its residuals for each op when that op is left
        out, (n_ops, n_cases)."""
        described, kinds = describe(ops, names), tuple(op.kind for op in ops)
        alike = _alike(kinds, kinds)
        mean = curves.mean(axis=0)
        _, scales, rows = np.linalg.svd(curves - mean, full_matrices=False)
        count = min(GROUPS[-1], int(np.count_nonzero(scales > 1e-9 * max(scales[0], 1e-300))))
        components = rows[:count]
        scores = (curves - mean) @ components.T
        weights, left, lengths = np.empty_like(scores), np.empty_like(scores), []
        for group in groups(count):
            lengths.append(_tuned(described, alike, scores[:, group], np.random.default_rng(seed)))
            scaled = described / lengths[-1]
            kernel = _kernel(scaled, scaled) * alike
            kernel[kernel < NEGLIGIBLE] = 0.0
            values, vectors = np.linalg.eigh(kernel)
            weights[:, group], left[:, group] = _regressed(np.maximum(values, 0.0), vectors, scores[:, group])
        stacked = np.array(lengths).reshape(len(lengths), described.shape[1])
        fitted = cls(kinds, stacked, described, weights, components, mean, names)
        return fitted, curves - mean - (scores - left) @ components

    def forecast(self, ops: Sequence[Op]) -> Floats:
        """(n_ops, n_cases) forecasts; the mean of all curves for ops of unknown kinds."""
        asked, scores = describe(ops, self.names), np.zeros((len(ops), len(self.components)))
        for kind, own in _rows(ops).items():
            known = self._known.get(kind)
            if known is not None:
                scores[own] = known.scores_of_few(asked[own]) if len(own) <= TOGETHER else known.scores(asked[own])
        few = len(ops) <= TOGETHER
        curves: Floats = self.mean + ((scores[:, None] @ self.components)[:, 0] if few else scores @ self.components)
        return curves


@dataclass(frozen=True, slots=True, eq=False)
class _Kind:
    """The ops of one kind: `described` (n_ops, n_numbers) and `weights` (n_ops, n_components)."""

    lengths: Floats
    described: Floats
    weights: Floats
    _scaled: list[Floats] = field(init=False)
    """`described`, scaled for each group of components."""
    _precisions: Floats = field(init=False)
    """(n_numbers, n_groups)"""
    _group: NDArray[np.int64] = field(init=False)
    """(n_components,) the group of each component."""
    _position: NDArray[np.int64] = field(init=False)
    """(n_components,) 0, 1, 2, ..."""

    def __post_init__(self) -> None:
        own = [np.full(part.stop - part.start, i) for i, part in enumerate(groups(self.weights.shape[1]))]
        object.__setattr__(self, "_scaled", [self.described / lengths for lengths in self.lengths])
        object.__setattr__(self, "_precisions", 1 / self.lengths.T**2)
        object.__setattr__(self, "_group", np.concatenate([*own, np.empty(0, dtype=np.int64)]))
        object.__setattr__(self, "_position", np.arange(self.weights.shape[1]))

    def scores(self, asked: Floats) -> Floats:
        """(n_asked, n_components) forecasts for ops with these descriptions."""
        found = [
            _kernel(asked / lengths, scaled, np.float32) @ self.weights[:, group]
            for lengths, scaled, group in zip(self.lengths, self._scaled, groups(self.weights.shape[1]), strict=True)
        ]
        return np.concatenate(found, axis=1) if found else np.empty((len(asked), 0))

    def scores_of_few(self, asked: Floats) -> Floats:
        """As `scores`, in fewer calls: with few ops, calls are what takes time."""
        apart = np.sqrt((self.described - asked[:, None]) ** 2 @ self._precisions).astype(np.float32)
        by_group = np.exp(-apart).astype(np.float64).transpose(0, 2, 1) @ self.weights
        found: Floats = by_group[:, self._group, self._position]
        return found


def groups(count: int) -> list[slice]:
    """The groups of `count` components that share length scales, as slices of their positions."""
    ends = [0, *(end for end in GROUPS if end < count), count]
    return [slice(start, end) for start, end in pairwise(ends) if start < end]


def _regressed(values: Floats, vectors: Floats, scores: Floats) -> tuple[Floats, Floats]:
    """Weights (n_ops, n_components) for a kernel with these eigenvalues and eigenvectors, and the error at each op when
    it is left out, at the noise of each component for which that error is least (Rasmussen and Williams, 5.12)."""
    rotated, squares = vectors.T @ scores, vectors**2
    best, found, errors = np.full(scores.shape[1], np.inf), scores.copy(), scores.copy()
    for noise in NOISES:
        inverse = 1 / (values + noise)
        weights = vectors @ (inverse[:, None] * rotated)
        left = weights / (squares @ inverse)[:, None]
        error = (left**2).mean(axis=0)
        better = error < best
        best[better], found[:, better], errors[:, better] = error[better], weights[:, better], left[:, better]
    return found, errors


def _rows(ops: Sequence[Op]) -> dict[str, list[int]]:
    """The positions of the ops of each kind."""
    if all(op.kind == ops[0].kind for op in ops):
        return {op.kind: list(range(len(ops))) for op in ops[:1]}
    rows: dict[str, list[int]] = {}
    for i, op in enumerate(ops):
        rows.setdefault(op.kind, []).append(i)
    return rows


def _alike(one: Sequence[str], other: Sequence[str]) -> Floats:
    """(n_one, n_other): 1 where two ops are of one kind, else 0."""
    found: Floats = (np.array(one)[:, None] == np.array(other)).astype(np.float64)
    return found


def _kernel(one: Floats, other: Floats, precision: type[np.floating[Any]] = np.float64) -> NDArray[Any]:
    """The kernel, (n_one, n_other); in single precision its exponentials take a sixth of the time."""
    from scipy.spatial.distance import cdist

    apart: NDArray[Any] = cdist(one, other)
    np.negative(apart, out=apart)
    np.exp(apart, out=apart, dtype=precision, casting="same_kind")
    return apart


def _tuned(described: Floats, alike: Floats, scores: Floats, random: np.random.Generator) -> Floats:
    """The length scales under which the scores are most likely, components weighted by their variance."""
    from scipy.linalg import LinAlgError, cho_factor, cho_solve
    from scipy.optimize import minimize

    spread = described.std(axis=0)
    varies = spread > 1e-9
    if scores.shape[1] == 0 or not varies.any():
        return np.where(varies, spread, 1.0)
    some = random.permutation(len(described))[:TUNED_ON]
    points = described[some][:, varies] / spread[varies]
    targets, alike = scores[some], alike[np.ix_(some, some)]
    importance = scores.var(axis=0) / scores.var(axis=0).sum()

    apart = (points[:, None, :] - points[None, :, :]) ** 2

    def unlikeliness(logs: Floats) -> tuple[float, Floats]:
        """Negative log likelihood of log length scales and log noise, with its slopes."""
        scaled = apart / np.exp(2 * logs[:-1])
        distance = np.sqrt(scaled.sum(axis=2))
        kernel = np.exp(-distance) * alike
        kernel[kernel < NEGLIGIBLE] = 0.0
        noisy = kernel + np.exp(logs[-1]) * np.eye(len(some))
        try:
            factor = cho_factor(noisy, lower=True)
        except LinAlgError:
            return 1e12, np.zeros_like(logs)
        inverse = cho_solve(factor, np.eye(len(some)))
        weights = inverse @ targets
        fit = np.maximum((targets * weights).sum(axis=0), 1e-300)
        value = len(some) / 2 * (importance @ np.log(fit)) + np.log(np.diag(factor[0])).sum()
        slope = inverse / 2 - len(some) / 2 * (weights * (importance / fit)) @ weights.T
        bend = slope * kernel / np.maximum(distance, 1e-12)
        slopes = [float((bend * scaled[:, :, i]).sum()) for i in range(scaled.shape[2])]
        return float(value), np.array([*slopes, np.exp(logs[-1]) * np.trace(slope)])

    start = np.append(np.full(points.shape[1], np.log(2.0)), np.log(0.05))
    limits = [(_SHORTEST, _LONGEST)] * points.shape[1] + [(np.log(1e-4), np.log(10.0))]
    found = minimize(unlikeliness, start, jac=True, method="L-BFGS-B", bounds=limits, options={"maxiter": 60})
    lengths = np.ones(described.shape[1])
    lengths[varies] = spread[varies] * np.exp(found.x[:-1])
    return lengths
