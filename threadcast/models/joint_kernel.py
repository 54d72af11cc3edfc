"""The covariance of log times over ops and cases of one machine, and the choice of its parameters.

The covariance of op i in case c with op j in case d is a sum of these terms, each with a variance:

- `level`, `own_level`: how fast ops are in all cases; alike for ops of similar shapes, and different for each op;
- `shared_shape`, `shape`, `own_shape`: how times depend smoothly on the case; the same for all ops, alike for ops of
  similar shapes, and different for each op;
- `rough`, `own_rough`: how single cases differ from their neighbours; alike for ops of similar shapes, and different
  for each op.

Similarity of ops falls exponentially with the distance of their descriptions (`static_features.describe`), similarity
of cases with the distance of what `case_features` returns (Matern 3/2). Source: Bonilla, Chai, Williams 2008,
Multi-task Gaussian process prediction; Rasmussen and Williams 2006, 4.2.1 and 5.4.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from threadcast.core import Op
from threadcast.core.curve import Floats
from threadcast.models.case_similarity import CASE_NUMBERS, AlikeCases, apart_from_middle, matern
from threadcast.models.machine_transfer import MachineTransfer
from threadcast.models.static_features import describe

VARIANCES = ("level", "own_level", "shared_shape", "shape", "own_shape", "rough", "own_rough")
OP_NUMBERS = 4

CONSTANT = 9.0
"""Variance of the level of all ops of a machine: speeds that differ by a factor of 20 are likely."""

_CENTRE = np.log([1.0, 0.05, 0.2, 0.2, 0.02, 5e-4, 2e-4, *[2.0] * OP_NUMBERS, 2.0, 0.4, *[1.5] * CASE_NUMBERS])
_SPREAD = np.array([*[1.5] * len(VARIANCES), *[1.0] * OP_NUMBERS, 0.7, 0.7, *[0.7] * CASE_NUMBERS])
"""Mean and standard deviation of the logarithms of all parameters before anything is measured. Conventions: times of
ops of one kind differ by a factor of 3, shapes of curves by 50 %, single cases by 2 %. Then: length scales of the
numbers that describe ops, by what factor those of levels are longer, how similar ops of different kinds are, length
scales of the numbers that describe cases."""

_BESIDE_PRIOR, _CLOSER = {"shared_shape": 0.005, "own_shape": 0.2}, 2.0
"""With a prior: variances of shapes (of what by convention all ops share, nearly all belongs to each op), and by what
factor ops must be more alike for their shapes to be; length scales of levels stay. Chosen on simulated servers, the
Xeon Phi and two cores."""

_SLOPE, _LEVELS, _FEWEST_TWICE = 0.02, 1.5, 8
"""With a prior: variance of the slope of an op's errors in log threads; by what factor the levels of ops vary more than
on left-out machines, so that a measurement tells the op's level first, and no dent in its curve; and how many ops must
be measured in two cases before parameters follow from measurements. Chosen on the machines of decision 30: with one to
three measurements of an op no choice is notably worse than with fewer."""

_TUNED_ON = 400
"""Most points that parameters are chosen by; the cost grows with the cube of their number."""

_ITERATIONS = 40


@dataclass(frozen=True, slots=True, eq=False)
class Parameters:
    """Variances by name, and length scales; `logs` are the logarithms of all, as the optimizer changes them. `constant`
    is the variance of the level of all ops of a machine, `slope` that of an op's slope in log threads, 0 without a
    prior; these are not changed."""

    logs: Floats
    constant: float = CONSTANT
    slope: float = 0.0

    @classmethod
    def assumed(cls, transfer: MachineTransfer | None = None) -> Parameters:
        """The parameters that are assumed before anything is measured: conventions without a prior; with one, levels
        and shapes as far off as `transfer` says of it.

        The prior knows the shape that all curves of a machine share. What the first few ops are off by in their shapes
        says something about similar ops only: as a property of all curves it would move those of small ops to far too
        many threads (decision 30).
        """
        if transfer is None:
            return cls(_CENTRE)
        logs = _CENTRE.copy()
        found = {"level": _LEVELS * transfer.op_level, "shape": transfer.op_shape, **_BESIDE_PRIOR}
        for name, variance in found.items():
            logs[VARIANCES.index(name)] = np.log(variance)
        first = len(VARIANCES)
        logs[first : first + OP_NUMBERS] -= np.log(_CLOSER)
        logs[first + OP_NUMBERS] += np.log(_CLOSER)
        return cls(logs, transfer.level, _SLOPE)

    def variance(self, name: str) -> float:
        """The variance of this term."""
        return float(np.exp(self.logs[VARIANCES.index(name)]))

    @property
    def op_lengths(self) -> Floats:
        """(OP_NUMBERS,)"""
        return np.exp(self.logs[len(VARIANCES) : len(VARIANCES) + OP_NUMBERS])

    @property
    def level_factor(self) -> float:
        """By what factor the length scales of levels are longer than those of shapes."""
        return float(np.exp(self.logs[len(VARIANCES) + OP_NUMBERS]))

    @property
    def other_kind(self) -> float:
        """Similarity of two ops of different kinds whose descriptions are equal, between 0 and 1."""
        odds = float(np.exp(self.logs[len(VARIANCES) + OP_NUMBERS + 1]))
        return odds / (1 + odds)

    @property
    def case_lengths(self) -> Floats:
        """(CASE_NUMBERS,)"""
        return np.exp(self.logs[-CASE_NUMBERS:])


@dataclass(frozen=True, slots=True, eq=False)
class OpNumbers:
    """The description of ops: (n_ops, OP_NUMBERS) numbers and (n_ops,) kinds."""

    described: Floats
    kinds: NDArray[np.str_]

    @classmethod
    def of(cls, ops: Sequence[Op]) -> OpNumbers:
        """The description of these ops."""
        return cls(describe(ops).reshape(-1, OP_NUMBERS), np.array([op.kind for op in ops], dtype=np.str_))

    def some(self, rows: NDArray[np.int64] | slice) -> OpNumbers:
        """The description of some of them."""
        return OpNumbers(self.described[rows], self.kinds[rows])


@dataclass(frozen=True, slots=True, eq=False)
class Similarity:
    """How alike ops are in their levels and in the shapes of their curves, each (n_ops, n_others), from 0 to 1."""

    levels: Floats
    shapes: Floats

    @classmethod
    def of(cls, parameters: Parameters, ops: OpNumbers, others: OpNumbers) -> Similarity:
        """The similarity of each of `ops` to each of `others`."""
        from scipy.spatial.distance import cdist

        alike = np.where(ops.kinds[:, None] == others.kinds, 1.0, parameters.other_kind)
        apart = cdist(ops.described / parameters.op_lengths, others.described / parameters.op_lengths)
        return cls(alike * np.exp(-apart / parameters.level_factor), alike * np.exp(-apart))


def covariance(
    parameters: Parameters, levels: Floats, shapes: Floats, same_op: NDArray[np.bool_], cases: AlikeCases,
    same_case: NDArray[np.bool_],
) -> Floats:  # fmt: skip
    """The covariance of points with points: similarity of their ops' levels and shapes and of their cases, and whether
    op and case are the same, each (n, m)."""
    variance = parameters.variance
    found: Floats = (
        parameters.constant + variance("level") * levels + variance("own_level") * same_op
        + cases.shapes * (variance("shared_shape") + variance("shape") * shapes + variance("own_shape") * same_op)
        + parameters.slope * cases.slopes * same_op
        + same_case * (variance("rough") * shapes + variance("own_rough") * same_op)
    )  # fmt: skip
    return found


@dataclass(frozen=True, slots=True, eq=False)
class Points:
    """Measured points: `rows` and `columns` (n,) are positions of the op and of the case, `logs` (n,) log seconds less
    what is assumed, `noise` (n,) the variance of each."""

    rows: NDArray[np.int64]
    columns: NDArray[np.int64]
    logs: Floats
    noise: Floats

    def __len__(self) -> int:
        return len(self.logs)

    def some(self, which: NDArray[np.int64]) -> Points:
        """The points at these positions."""
        return Points(self.rows[which], self.columns[which], self.logs[which], self.noise[which])


def tuned(
    points: Points, ops: OpNumbers, features: Floats, *, assumed: Parameters, start: Parameters | None = None,
    seed: int = 0,
) -> Parameters:  # fmt: skip
    """The most probable parameters, given what is assumed of them before anything is measured and the measured points
    of some of the ops (all, unless they are many).

    Beside a prior they stay as assumed until some ops were measured in two cases: with one case each, what curves have
    in common cannot be told from levels, and a few ops that happen to be alike would make all curves alike.
    """
    from scipy.linalg import LinAlgError, cho_factor, cho_solve
    from scipy.optimize import minimize

    points = points.some(_chosen(points, seed))
    described = ops.described
    spread = np.maximum(described.std(axis=0), 0.3)
    op_apart = (described[points.rows][:, None] - described[points.rows]) ** 2
    placed = features[points.columns]
    case_apart = (placed[:, None] - placed) ** 2
    kinds = ops.kinds[points.rows]
    other = kinds[:, None] != kinds
    same_op = points.rows[:, None] == points.rows
    same_case = points.columns[:, None] == points.columns
    centre = assumed.logs.copy()
    centre[len(VARIANCES) : len(VARIANCES) + OP_NUMBERS] += np.log(spread)
    if assumed.slope and (np.bincount(points.rows) > 1).sum() < _FEWEST_TWICE:
        return replace(assumed, logs=centre)
    first = start.logs if start is not None else centre
    apart_from = apart_from_middle(features)[points.columns]
    fixed = assumed.constant + assumed.slope * np.outer(apart_from, apart_from) * same_op
    a, b = len(VARIANCES), len(VARIANCES) + OP_NUMBERS

    def unlikeliness(logs: Floats) -> tuple[float, Floats]:
        """Negative log of the probability of the parameters and the points, with its slopes."""
        parameters = replace(assumed, logs=logs)
        v = np.exp(logs[:a])
        scaled = op_apart / parameters.op_lengths**2
        apart = np.sqrt(scaled.sum(axis=2))
        factor, kind = parameters.level_factor, parameters.other_kind
        alike = np.where(other, kind, 1.0)
        levels, shapes = alike * np.exp(-apart / factor), alike * np.exp(-apart)
        placed_apart = case_apart / parameters.case_lengths**2
        distance = np.sqrt(placed_apart.sum(axis=2))
        cases = matern(distance)
        terms = (levels, same_op, cases, cases * shapes, cases * same_op, same_case * shapes, same_case & same_op)
        kernel = fixed + sum(variance * term for variance, term in zip(v, terms, strict=True))
        kernel[np.diag_indices(len(points))] += points.noise
        away = (logs - centre) / _SPREAD
        try:
            factored = cho_factor(kernel, lower=True)
        except LinAlgError:
            return 1e12, np.zeros_like(logs)
        weights = cho_solve(factored, points.logs)
        value = 0.5 * points.logs @ weights + np.log(np.diag(factored[0])).sum() + 0.5 * away @ away
        slope = 0.5 * (cho_solve(factored, np.eye(len(points))) - np.outer(weights, weights))
        slopes = away / _SPREAD
        slopes[:a] += [variance * float((slope * term).sum()) for variance, term in zip(v, terms, strict=True)]
        level_part, shape_part = v[0] * levels, (v[3] * cases + v[5] * same_case) * shapes
        bend = slope * (level_part / factor + shape_part) / np.maximum(apart, 1e-12)
        slopes[a:b] += np.einsum("ij,ijk->k", bend, scaled)
        slopes[b] += float((slope * level_part * apart).sum() / factor)
        slopes[b + 1] += (1 - kind) * float((slope * other * (level_part + shape_part)).sum())
        of_cases = v[2] + v[3] * shapes + v[4] * same_op
        bend = slope * of_cases * 3 * np.exp(-np.sqrt(3) * distance)
        slopes[b + 2 :] += np.einsum("ij,ijk->k", bend, placed_apart)
        return float(value), slopes

    limits = [(middle - 4 * width, middle + 4 * width) for middle, width in zip(centre, _SPREAD, strict=True)]
    options = {"maxiter": _ITERATIONS}
    found = minimize(unlikeliness, first, jac=True, method="L-BFGS-B", bounds=limits, options=options)
    return replace(assumed, logs=found.x)


def _chosen(points: Points, seed: int) -> NDArray[np.int64]:
    """Positions of all points of ops drawn at random, at most `_TUNED_ON`."""
    if len(points) <= _TUNED_ON:
        return np.arange(len(points))
    order = np.random.default_rng(seed).permutation(points.rows.max() + 1)
    rank = order[points.rows]
    return np.sort(np.argsort(rank, kind="stable")[:_TUNED_ON])
