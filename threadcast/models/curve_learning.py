"""Learning one machine: a forecast without samples, a Gaussian over what it leaves, a correction, their intervals."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from threadcast.core import Case
from threadcast.core.curve import Floats
from threadcast.models.case_gaussian import CaseGaussian
from threadcast.models.correction import Correction, Forecast
from threadcast.models.intervals import PRIOR_OPS, residual_bounds
from threadcast.models.machine_curves import MachineCurves
from threadcast.models.measured import MeasuredOp
from threadcast.models.op_process import OpProcess
from threadcast.models.point_trees import scale
from threadcast.models.sample_noise import SampleNoise

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
"""Parts of the ops, of which each is judged by the Gaussian of the others."""

FEW_OPS = 60
"""Below which the Gaussian of four fifths of the ops is not that of all: three ops that happen to be alike make it so
sure of itself that the next is 30 standard deviations off, and intervals that follow from it reach over a factor of
1,000. From there on a part's own standard deviations do as well, in half the time."""

CORRECTED_FROM, CORRECTED_CASES = 60, 8
"""Ops and cases from which on what the Gaussian leaves is learned too."""

LEARNED_COUNTS, RANDOM_COUNTS = (1, 2, 3, 4, 8), (3,)
"""Numbers of samples that the correction learns from: at the cases that tell most, and at random ones."""

BOUNDS_COUNTS = (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
"""Numbers of samples at which intervals are taken; others, and those that no op tells of, have those of the next
smaller."""


def learn(
    entries: Sequence[MeasuredOp], by_trees: Sequence[Floats], *, samples: int, seed: int, jobs: int
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
    base = share * np.where(np.isnan(trees), by_process, trees) + (1 - share) * by_process
    scales = _scales([op.kind for op in ops], known - base)
    judged = _Judged(entries, cases, known, base, scales, np.random.default_rng(seed), seed, jobs)
    correction = judged.correction()
    widths, low, high = judged.bounds(samples)
    return replace(
        judged.machine, widths=widths, low=low, high=high, process=process, share=share, correction=correction
    )


class _Judged:
    """Ops of one machine, each forecast by Gaussians that have not seen it."""

    def __init__(
        self, entries: Sequence[MeasuredOp], cases: tuple[Case, ...], known: Floats, base: Floats,
        scales: dict[str, float], random: np.random.Generator, seed: int, jobs: int,
    ) -> None:  # fmt: skip
        self.cases, self.known, self.base = cases, known, base
        self.ops = [entry.op for entry in entries]
        self._entries, self._random, self._seed, self._jobs = entries, random, seed, jobs
        scaled = (known - base) / np.array([scales[op.kind] for op in self.ops])[:, None]
        threads, noise = [case.threads for case in cases], _noise(entries, cases)
        none = np.array([NORMAL_95])
        gaussian = CaseGaussian.fitted(scaled, threads, noise)
        self.machine = MachineCurves(cases, gaussian, SampleNoise.fitted(entries), none, none, scales)
        self._part = random.permutation(len(self.ops)) % PARTS
        self._others = [
            replace(self.machine, gaussian=CaseGaussian.fitted(scaled[self._part != out], threads, noise))
            for out in range(PARTS)
        ]
        self._order: list[int] = []
        self._corrections: list[Correction] | None = None

    def correction(self) -> Correction | None:
        """Learned from all ops; None where there are too few, or where it does not help with ops it has not seen."""
        if len(self.ops) < CORRECTED_FROM or len(self.cases) < CORRECTED_CASES:
            return None
        designs = [self._telling(count) for count in LEARNED_COUNTS if count < len(self.cases)]
        designs += [tuple(self._random.permutation(len(self.cases))[:count].tolist()) for count in RANDOM_COUNTS]
        forecasts = [forecast for where in designs for forecast in self._forecasts(where)]
        if len({one.part for one in forecasts}) < 2:
            return None
        by_part = [[one for one in forecasts if one.part == out] for out in range(PARTS)]
        trained = [self._trained([one for one in forecasts if one.part != out]) for out in range(PARTS)]
        before = after = 0.0
        for correction, unseen in zip(trained, by_part, strict=True):
            for one in unseen:
                before += float(np.nansum(np.abs(one.truth - one.forecast.mean)))
                after += float(np.nansum(np.abs(one.truth - correction.corrected(one.forecast, self.cases))))
        if after >= before:
            return None
        self._corrections = trained
        return self._trained(forecasts)

    def bounds(self, samples: int) -> tuple[dict[str, Floats], Floats, Floats]:
        """By how many standard deviations ops are off that were not learned from, by number of single samples: how many
        times as far as those of all kinds each kind's are, and how far below and above all are, divided by that."""
        kinds = [op.kind for op in self.ops]
        widths = {kind: np.ones(samples + 1) for kind in dict.fromkeys(kinds)}
        low, high = np.full(samples + 1, NORMAL_95), np.full(samples + 1, NORMAL_95)
        for count in range(samples + 1):
            judged = count in BOUNDS_COUNTS and count < len(self.cases)
            scores = self._all_scores(count) if judged else None
            if scores is None or np.isnan(scores).all():
                for of_count in (low, high, *widths.values()) if count else ():
                    of_count[count] = of_count[count - 1]
                continue
            for kind, width in _widths(kinds, scores).items():
                widths[kind][count] = width
            told = scores / np.array([widths[kind][count] for kind in kinds])[:, None]
            below, above = residual_bounds(told[~np.isnan(told)])
            low[count], high[count] = -below, above
        return widths, low, high

    def _all_scores(self, count: int) -> Floats:
        """How far off all ops are with samples at so many cases, (n_ops, n_cases), in standard deviations; NaN at those
        and where nothing is known."""
        where = self._telling(count)
        found = np.full(self.known.shape, np.nan)
        for one in self._forecasts(where):
            found[one.rows] = self._scores(one)
        found[:, where] = np.nan
        return found

    def _scores(self, one: _PartForecast) -> Floats:
        """How far off ops are, (n_ops, n_cases), in standard deviations."""
        logs = one.forecast.mean
        if self._corrections is not None and one.forecast.where:
            logs = self._corrections[one.part].corrected(one.forecast, self.cases)
        found: Floats = (one.truth - logs) / one.spread
        return found

    def _trained(self, some: Sequence[_PartForecast]) -> Correction:
        forecasts, truths = [one.forecast for one in some], [one.truth for one in some]
        return Correction.fitted(forecasts, truths, self.cases, jobs=self._jobs, seed=self._seed)

    def _telling(self, count: int) -> tuple[int, ...]:
        """The positions of so many cases, each the one that tells most beside those before it."""
        gaussian = self.machine.gaussian
        while len(self._order) < count:
            left = gaussian.left(self._order, np.ones(len(self._order)))
            allowed = [i for i in range(len(self.cases)) if i not in self._order]
            self._order.append(gaussian.most_telling(left, allowed, np.ones(len(self.cases))))
        return tuple(self._order[:count])

    def _forecasts(self, where: tuple[int, ...]) -> Iterable[_PartForecast]:
        """All ops that were measured there, from one sample of each case, by the Gaussian of the other parts."""
        drawn = self._drawn(where)
        for out, machine in enumerate(self._others):
            mine = np.flatnonzero((self._part == out) & ~np.isnan(drawn).any(axis=1))
            if len(mine):
                ops, ones = [self.ops[i] for i in mine], np.ones((len(mine), len(where)))
                given = ops, self.base[mine], where, drawn[mine], ones, 0 * ones
                forecast, _ = machine.told(*given)
                wholly = forecast if len(self.ops) >= FEW_OPS else self.machine.told(*given)[0]
                yield _PartForecast(out, mine, forecast, self.known[mine], np.sqrt(wholly.variance))

    def _drawn(self, where: tuple[int, ...]) -> Floats:
        """(n_ops, n_where) logs of single samples, NaN where there is none."""
        drawn = np.full((len(self.ops), len(where)), np.nan)
        for row, entry in zip(drawn, self._entries, strict=True):
            for column, at in enumerate(where):
                measured = entry.by_case.get(self.cases[at])
                if measured is not None:
                    row[column] = np.log(measured.samples[self._random.integers(len(measured.samples))].seconds)
        return drawn


@dataclass(frozen=True, slots=True, eq=False)
class _PartForecast:
    """Of the ops of one part, in these `rows` of all; `truth` (n_ops, n_cases) are log seconds, NaN where a case was
    not measured; `spread`, of the same shape, standard deviations as forecasts of other ops will have them."""

    part: int
    rows: NDArray[np.int64]
    forecast: Forecast
    truth: Floats
    spread: Floats


def _scales(kinds: Sequence[str], residuals: Floats) -> dict[str, float]:
    """By kind, how many times as far as those of all kinds curves are off; few ops of a kind are not believed."""
    squares = np.nanmean(residuals**2, axis=1)
    typical = float(np.mean(squares)) or 1.0
    of_kind: NDArray[np.str_] = np.array(kinds)
    found = {}
    for kind in dict.fromkeys(kinds):
        own = squares[of_kind == kind]
        found[kind] = float(np.sqrt((own.sum() / typical + PRIOR_OPS) / (len(own) + PRIOR_OPS)))
    return found


def _widths(kinds: Sequence[str], scores: Floats) -> dict[str, float]:
    """By kind, how many times as far off as those of all kinds together its ops are in standard deviations, of which
    `scores` are (n_ops, n_cases).

    The Gaussian is that of all kinds: one of which few ops are known, and whose curves vary in other ways, is forecast
    less surely than it says. What 90 % stay below is compared; few ops of a kind are not believed.
    """
    of_kind: NDArray[np.str_] = np.array(kinds)
    typical, found = _most(scores), {}
    for kind in dict.fromkeys(kinds):
        own = of_kind == kind
        mine, believed = _most(scores[own]), own.sum() / (own.sum() + PRIOR_OPS)
        found[kind] = float((mine / typical) ** believed) if min(mine, typical) > 0 else 1.0
    return found


def _most(scores: Floats) -> float:
    """What nine in ten stay below on either side; 0 where there are none."""
    known = np.abs(scores[~np.isnan(scores)])
    return float(np.quantile(known, 0.9)) if len(known) else 0.0


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
