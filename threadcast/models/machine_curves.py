"""What is learned of one machine: curves of ops like those measured there, and how what is left of them varies."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from threadcast.core import Case, Op
from threadcast.core.curve import Floats
from threadcast.core.errors import ArtefactError
from threadcast.models.case_gaussian import CaseGaussian
from threadcast.models.intervals import residual_bounds
from threadcast.models.measured import MeasuredOp
from threadcast.models.op_process import OpProcess, groups
from threadcast.models.point_trees import scale

MIN_OPS = 4
"""Ops that a machine or a case must have been measured for, to be learned from."""

NORMAL_95 = 1.645
"""Standard deviations below which a normal number lies with 95 %."""

NOISE, LEAST_NOISE, MOST_NOISE = 0.02**2, 1e-8, float(np.log(1.5)) ** 2
"""Variance of a lone sample's log where no case was sampled three times, and its limits. Conventions: 2 %; 50 %."""

SHARES = (0.0, 0.15, 0.3, 0.45, 0.6, 0.8, 1.0)
"""Weights that the trees may have beside the process."""

WORTH = 1.03
"""Times the least error up to which the process alone is taken: the trees take ten times as long."""

PARTS = 5
"""Parts of the ops, of which each is judged by the Gaussian of the others, for the intervals."""


@dataclass(frozen=True, slots=True, eq=False)
class MachineCurves:
    """One machine's `cases`, a forecast of ops that were not sampled, and a Gaussian over what that leaves.

    The forecast of an op of a kind that the process knows is the trees' with the weight `share` and the process's with
    the rest, of others the trees'. `low` and `high` are (most samples + 1,): by how many standard deviations the truth
    lies below and above in 5 % of the cases, by number of samples. Without a process all is the trees'.
    """

    cases: tuple[Case, ...]
    gaussian: CaseGaussian
    low: Floats
    high: Floats
    process: OpProcess | None = None
    share: float = 1.0
    position: dict[Case, int] = field(init=False)
    _kinds: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "position", {case: i for i, case in enumerate(self.cases)})
        object.__setattr__(self, "_kinds", frozenset(self.process.kinds if self.process else ()))

    def base(self, ops: Sequence[Op], by_trees: Callable[[Sequence[Op]], Floats]) -> Floats:
        """(n_ops, n_cases) log seconds without samples, where needed from those that `by_trees` gives."""
        known = [op for op in ops if self.process is not None and op.kind in self._kinds]
        if self.process is None or not known:
            return by_trees(ops)
        by_process = self.process.forecast(known) + scale(known, self.cases)
        if len(known) == len(ops) and self.share == 0:
            return by_process
        rows = np.array([op.kind in self._kinds for op in ops])
        found = np.empty((len(ops), len(self.cases)))
        if self.share == 0:
            found[~rows] = by_trees([op for op in ops if op.kind not in self._kinds])
            found[rows] = by_process
        else:
            found[:] = by_trees(ops)
            found[rows] = self.share * found[rows] + (1 - self.share) * by_process
        return found

    @classmethod
    def learned(
        cls, entries: Sequence[MeasuredOp], by_trees: Sequence[Floats], *, samples: int, seed: int
    ) -> MachineCurves:
        """From ops of one machine, and for each of them the log seconds at its cases by trees that have not seen it."""
        cases = _often(entries)
        some = [i for i, entry in enumerate(entries) if not entry.by_case.keys().isdisjoint(cases)]
        entries, by_trees = [entries[i] for i in some], [by_trees[i] for i in some]
        ops = [entry.op for entry in entries]
        known = _table(entries, [np.log([m.seconds for m in entry.by_case.values()]) for entry in entries], cases)
        trees = _table(entries, by_trees, cases)
        off = np.nanmean(known - trees, axis=1, keepdims=True)  # where a case is missing, the trees' shape stands in
        levels = np.where(np.isnan(trees), np.nanmean(known - scale(ops, cases), axis=1, keepdims=True), 0.0)
        guessed = np.where(np.isnan(trees), levels + scale(ops, cases), np.nan_to_num(trees) + off)
        filled = np.where(np.isnan(known), guessed, known) - scale(ops, cases)
        process, left = OpProcess.fitted(ops, filled, seed=seed)
        by_process = filled - left + scale(ops, cases)
        errors = {share: _off(known, share * trees + (1 - share) * by_process) for share in SHARES}
        share = 0.0 if errors[0.0] <= WORTH * min(errors.values()) else min(errors, key=errors.__getitem__)
        residuals = known - (share * np.where(np.isnan(trees), by_process, trees) + (1 - share) * by_process)
        threads = [case.threads for case in cases]
        gaussian = CaseGaussian.fitted(residuals, threads, _noise(entries, cases))
        low, high = _bounds(residuals, threads, gaussian, samples, np.random.default_rng(seed))
        return cls(cases, gaussian, low, high, process, share)

    def to_files(self) -> tuple[dict[str, Any], dict[str, Floats]]:
        """A JSON document and arrays."""
        document: dict[str, Any] = {"cases": [[case.threads, case.affinity] for case in self.cases]}
        arrays = {
            "mean": self.gaussian.mean, "covariance": self.gaussian.covariance, "noise": self.gaussian.noise,
            "low": self.low, "high": self.high,
        }  # fmt: skip
        if self.process is not None:
            document |= {"kinds": self.process.kinds, "share": self.share}
            arrays |= {f"process.{name}": getattr(self.process, name) for name in _PROCESS}
        return document, arrays

    @classmethod
    def from_files(cls, document: Any, arrays: Mapping[str, Floats]) -> MachineCurves:
        """Take over what `to_files` gave; ArtefactError, or whatever reading raises, on anything else."""
        cases = tuple(Case(threads, affinity) for threads, affinity in document["cases"])
        mean, covariance, noise = (arrays[name] for name in ("mean", "covariance", "noise"))
        low, high = arrays["low"], arrays["high"]
        n = len(cases)
        fitting = (
            mean.shape == noise.shape == (n,) and covariance.shape == (n, n) and low.shape == high.shape == (len(low),)
        )
        if not n or not fitting or not all(np.all(np.isfinite(array)) for array in arrays.values()):
            raise ArtefactError("the parts of a machine do not fit each other")
        if (
            len(low) == 0
            or min(low.min(), high.min()) < 0
            or min(noise.min(), np.linalg.eigvalsh(covariance).min()) <= 0
        ):
            raise ArtefactError("a machine has a covariance or an interval that is none")
        process, share = None, 1.0
        if "kinds" in document:
            kinds, share = tuple(map(str, document["kinds"])), float(document["share"])
            process = OpProcess(kinds, *(arrays[f"process.{name}"] for name in _PROCESS))
            count = process.components.shape[0]
            numbers = process.lengths.shape[1]
            shapes = [process.described.shape, process.weights.shape, process.components.shape, process.mean.shape]
            expected = [(len(kinds), numbers), (len(kinds), count), (count, n), (n,)]
            grouped = len(process.lengths) == len(groups(count))
            if shapes != expected or not grouped or process.lengths.min(initial=1) <= 0 or not 0 <= share <= 1:
                raise ArtefactError("the parts of a machine do not fit each other")
        return cls(cases, CaseGaussian(mean, covariance, noise), low, high, process, share)


_PROCESS = ("lengths", "described", "weights", "components", "mean")


def _off(known: Floats, forecast: Floats) -> float:
    """Mean absolute difference, of what is known."""
    apart = np.abs(known - forecast)
    apart = apart[~np.isnan(apart)]
    return float(apart.mean()) if len(apart) else 0.0


def _noise(entries: Sequence[MeasuredOp], cases: Sequence[Case]) -> Floats:
    """(n_cases,) variance of one sample's log around its case's: the mean over ops that have three samples or more.

    The mean, not the median: now and then a sample is far off, and a lone one may be that one. None counts as more than
    `MOST_NOISE`. Cases without any take the mean of the others'.
    """
    found: dict[Case, list[float]] = {case: [] for case in cases}
    for entry in entries:
        for case, measured in entry.by_case.items():
            if case in found and len(measured.samples) >= 3:
                found[case].append(
                    min(float(np.var(np.log([s.seconds for s in measured.samples]), ddof=1)), MOST_NOISE)
                )
    means = [float(np.mean(values)) if values else np.nan for values in found.values()]
    known = [mean for mean in means if not np.isnan(mean)]
    typical = float(np.mean(known)) if known else NOISE
    return np.maximum(np.where(np.isnan(means), typical, means), LEAST_NOISE)


def _often(entries: Sequence[MeasuredOp]) -> tuple[Case, ...]:
    counts: dict[Case, int] = {}
    for entry in entries:
        for case in entry.by_case:
            counts[case] = counts.get(case, 0) + 1
    return tuple(sorted(case for case, count in counts.items() if count >= min(MIN_OPS, max(counts.values()))))


def _table(entries: Sequence[MeasuredOp], rows: Sequence[Floats], cases: Sequence[Case]) -> Floats:
    """`rows`, by the cases of each op, as (n_ops, n_cases) with NaN where a case was not measured."""
    position = {case: i for i, case in enumerate(cases)}
    table = np.full((len(entries), len(cases)), np.nan)
    for row, (entry, values) in enumerate(zip(entries, rows, strict=True)):
        for case, value in zip(entry.by_case, values, strict=True):
            if case in position:
                table[row, position[case]] = value
    return table


def _bounds(
    residuals: Floats, threads: Sequence[int], gaussian: CaseGaussian, samples: int, random: np.random.Generator
) -> tuple[Floats, Floats]:
    """By how many standard deviations ops are off that the Gaussian has not seen, by number of single samples."""
    low, high = np.full(samples + 1, NORMAL_95), np.full(samples + 1, NORMAL_95)
    part = random.permutation(len(residuals)) % PARTS
    drawn = residuals + np.sqrt(gaussian.noise) * random.standard_normal(residuals.shape)
    others = [CaseGaussian.fitted(residuals[part != out], threads, gaussian.noise) for out in range(PARTS)]
    where: list[int] = []
    for count in range(samples + 1):
        if count:
            allowed = [i for i in range(len(threads)) if i not in where]
            if not allowed:
                low[count:], high[count:] = low[count - 1], high[count - 1]
                break
            left = gaussian.left(where, np.ones(len(where)))
            where.append(gaussian.most_telling(left, allowed, np.ones(len(threads))))
        judged = [i for i in range(len(threads)) if i not in where]
        scores = []
        for out, other in enumerate(others):
            mine = (part == out) & ~np.isnan(residuals[:, where]).any(axis=1)
            mean, variance = other.given(where, drawn[mine][:, where], np.ones(count))
            scores.append(((residuals[mine] - mean) / np.sqrt(variance))[:, judged].ravel())
        told = np.concatenate(scores)
        told = told[~np.isnan(told)]
        if len(told):
            below, above = residual_bounds(told)
            low[count], high[count] = -below, above
    return low, high
