"""Forecasts the ops of a machine as if they were new: from that follow a correction and the width of intervals."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from threadcast.core import Case
from threadcast.core.curve import Floats
from threadcast.models.case_gaussian import CaseGaussian
from threadcast.models.correction import Correction, Forecast
from threadcast.models.intervals import NORMAL_95, PRIOR_OPS, residual_bounds
from threadcast.models.machine_curves import MachineCurves
from threadcast.models.measured import MeasuredOp

PARTS = 5
"""Number of parts into which the ops are divided; each part is forecast by a Gaussian of the other parts."""

FEW_OPS = 60
"""With fewer ops, standard deviations are taken from the Gaussian of all ops. That of four fifths of them would differ
from it: three ops that happen to be alike make it so narrow that the next one is 30 standard deviations away, and the
resulting intervals span a factor of 1,000. With so many ops or more, the Gaussians of the parts give good standard
deviations too, in half the time."""

CORRECTED_FROM, CORRECTED_CASES = 60, 8
"""Numbers of ops and of cases from which on a correction is learned."""

LEARNED_COUNTS, RANDOM_COUNTS = (1, 2, 3, 4, 8), (3,)
"""Numbers of samples that the correction learns from: at the most informative cases, and at random ones."""

BOUNDS_COUNTS = (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
"""Numbers of samples for which intervals are computed. Other numbers, and numbers that no op was measured for, use the
interval of the next smaller one."""


class HeldOutOps:
    """The ops of one machine, each forecast by a Gaussian that did not learn from it.

    `known` and `base` (n_ops, n_cases): measured log seconds, NaN where there are none, and forecasts without samples;
    `scales`: the size of the residuals of each kind; `noise` (n_cases,): variance of the log of one sample.
    """

    def __init__(
        self, entries: Sequence[MeasuredOp], cases: tuple[Case, ...], known: Floats, base: Floats,
        scales: dict[str, float], noise: Floats, *, seed: int, names: tuple[str, ...] = (),
    ) -> None:  # fmt: skip
        self.cases, self.known, self.base = cases, known, base
        self.ops = [entry.op for entry in entries]
        self._entries, self._random, self._seed = entries, np.random.default_rng(seed), seed
        self._names = names
        scaled = (known - base) / np.array([scales[op.kind] for op in self.ops])[:, None]
        threads = [case.threads for case in cases]
        none = np.array([NORMAL_95])
        gaussian = CaseGaussian.fitted(scaled, threads, noise)
        self.machine = MachineCurves(cases, gaussian, none, none, scales)
        self._part = self._random.permutation(len(self.ops)) % PARTS
        self._others = [
            replace(self.machine, gaussian=CaseGaussian.fitted(scaled[self._part != out], threads, noise))
            for out in range(PARTS)
        ]
        self._order: list[int] = []
        self._corrections: list[Correction] | None = None

    def correction(self) -> Correction | None:
        """The correction learned from all ops; None where there are too few, or where it does not improve held-out
        ops."""
        if len(self.ops) < CORRECTED_FROM or len(self.cases) < CORRECTED_CASES:
            return None
        designs = [self._informative(count) for count in LEARNED_COUNTS if count < len(self.cases)]
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
        """Widths of the intervals for ops that were not learned from, by number of single samples, in standard
        deviations: a factor for each kind against all kinds, and lower and upper bounds of all ops, divided by it."""
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
            relative = scores / np.array([widths[kind][count] for kind in kinds])[:, None]
            below, above = residual_bounds(relative[~np.isnan(relative)])
            low[count], high[count] = -below, above
        return widths, low, high

    def _all_scores(self, count: int) -> Floats:
        """Errors of all ops with samples at `count` cases, (n_ops, n_cases), in standard deviations; NaN at the sampled
        cases and where nothing was measured."""
        where = self._informative(count)
        found = np.full(self.known.shape, np.nan)
        for one in self._forecasts(where):
            found[one.rows] = self._scores(one)
        found[:, where] = np.nan
        return found

    def _scores(self, one: _PartForecast) -> Floats:
        """Errors of one part's ops, (n_ops, n_cases), in standard deviations."""
        logs = one.forecast.mean
        if self._corrections is not None and one.forecast.where:
            logs = self._corrections[one.part].corrected(one.forecast, self.cases)
        found: Floats = (one.truth - logs) / one.deviations
        return found

    def _trained(self, some: Sequence[_PartForecast]) -> Correction:
        forecasts, truths = [one.forecast for one in some], [one.truth for one in some]
        return Correction.fitted(forecasts, truths, self.cases, seed=self._seed, names=self._names)

    def _informative(self, count: int) -> tuple[int, ...]:
        """Positions of `count` cases, each the most informative one given those before it."""
        gaussian = self.machine.gaussian
        while len(self._order) < count:
            left = gaussian.remaining(self._order, gaussian.noise[self._order])
            allowed = [i for i in range(len(self.cases)) if i not in self._order]
            self._order.append(gaussian.most_informative(left, allowed, np.ones(len(self.cases))))
        return tuple(self._order[:count])

    def _forecasts(self, where: tuple[int, ...]) -> Iterable[_PartForecast]:
        """Forecasts of all ops that were measured at `where`, from one sample of each case, by the Gaussian of the
        other parts."""
        drawn = self._drawn(where)
        for out, machine in enumerate(self._others):
            mine = np.flatnonzero((self._part == out) & ~np.isnan(drawn).any(axis=1))
            if len(mine):
                noise = np.tile(machine.gaussian.noise[list(where)], (len(mine), 1))
                given = [self.ops[i] for i in mine], self.base[mine], where, drawn[mine], noise
                forecast = machine.conditioned(*given)
                wholly = forecast if len(self.ops) >= FEW_OPS else self.machine.conditioned(*given)
                yield _PartForecast(out, mine, forecast, self.known[mine], np.sqrt(wholly.variance))

    def _drawn(self, where: tuple[int, ...]) -> Floats:
        """Logs (n_ops, n_where) of single samples drawn at random, NaN where there is none."""
        drawn = np.full((len(self.ops), len(where)), np.nan)
        for row, entry in zip(drawn, self._entries, strict=True):
            for column, at in enumerate(where):
                measured = entry.by_case.get(self.cases[at])
                if measured is not None:
                    row[column] = np.log(measured.samples[self._random.integers(len(measured.samples))].seconds)
        return drawn


@dataclass(frozen=True, slots=True, eq=False)
class _PartForecast:
    """The forecast of one part of the ops, which are these `rows` of all. `truth` (n_ops, n_cases): measured log
    seconds, NaN where there are none; `deviations` (n_ops, n_cases): standard deviations as forecasts of new ops will
    have them."""

    part: int
    rows: NDArray[np.int64]
    forecast: Forecast
    truth: Floats
    deviations: Floats


def _widths(kinds: Sequence[str], scores: Floats) -> dict[str, float]:
    """For each kind, the size of its `scores` (n_ops, n_cases; errors in standard deviations) relative to those of all
    kinds.

    The Gaussian is of all kinds: it is too narrow for a kind of which few ops are known and whose curves vary in other
    ways. Compared are the 90th percentiles; with few ops of a kind the result is shrunk to 1.
    """
    of_kind: NDArray[np.str_] = np.array(kinds)
    typical, found = _most(scores), {}
    for kind in dict.fromkeys(kinds):
        own = of_kind == kind
        mine, believed = _most(scores[own]), own.sum() / (own.sum() + PRIOR_OPS)
        found[kind] = float((mine / typical) ** believed) if min(mine, typical) > 0 else 1.0
    return found


def _most(scores: Floats) -> float:
    """The 90th percentile of the size of `scores`; 0 where there are none."""
    known = np.abs(scores[~np.isnan(scores)])
    return float(np.quantile(known, 0.9)) if len(known) else 0.0
