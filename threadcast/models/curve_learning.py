"""Learns one machine: forecasts without samples, and by `held_out_ops` what samples add to them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from threadcast.core import Case
from threadcast.core.curve import Floats
from threadcast.models.held_out_ops import HeldOutOps
from threadcast.models.intervals import PRIOR_OPS
from threadcast.models.machine_curves import MachineCurves
from threadcast.models.machine_limits import work_per_thread
from threadcast.models.measured import MeasuredOp, rows_by_machine
from threadcast.models.op_process import OpProcess

MOST_OPS = 2000
"""Ops of one machine that are learned from at most: the process takes time with the cube of their number, and memory
with its square (32 MB for each matrix of 2,000 ops)."""

MIN_OPS = 4
"""A machine or a case is learned from if so many ops were measured there."""

NOISE, LEAST_NOISE, MOST_NOISE = 0.02**2, 1e-8, float(np.log(1.5)) ** 2
"""Variance of the log of a single sample where no case was sampled three times, and limits of that variance.
Conventions: 2 % and 50 %."""


def some_of_each_machine(entries: Sequence[MeasuredOp], *, seed: int) -> tuple[tuple[MeasuredOp, ...], list[str]]:
    """The entries, at most `MOST_OPS` of each machine, drawn at random; and notes on what was left out."""
    random = np.random.default_rng(seed)
    left: list[int] = []
    notes = []
    for fingerprint, rows in rows_by_machine(entries).items():
        if len(rows) > MOST_OPS:
            notes.append(f"{fingerprint}: learned from {MOST_OPS} of {len(rows)} ops, drawn at random")
            rows = random.permutation(rows)[:MOST_OPS].tolist()
        left += rows
    return tuple(entries[row] for row in sorted(left)), notes


def learn(
    entries: Sequence[MeasuredOp], *, samples: int, seed: int, jobs: int, names: tuple[str, ...] = ()
) -> MachineCurves:
    """Learn one machine from its measured ops; `names` are attributes of ops that are inputs (`OpFeatures.names`)."""
    cases = _often(entries)
    entries = [entry for entry in entries if not entry.by_case.keys().isdisjoint(cases)]
    ops = [entry.op for entry in entries]
    known, work = _table(entries, cases), work_per_thread(ops, cases)
    process, left = OpProcess.fitted(ops, _filled(known - work), seed=seed, names=names)
    base = _filled(known - work) - left + work
    scales = _scales([op.kind for op in ops], known - base)
    held_out = HeldOutOps(
        entries, cases, known, base, scales, _noise(entries, cases), seed=seed, jobs=jobs, names=names
    )  # fmt: skip
    correction = held_out.correction()
    widths, low, high = held_out.bounds(samples)
    return replace(held_out.machine, widths=widths, low=low, high=high, process=process, correction=correction)


def _filled(known: Floats) -> Floats:
    """`known` (n_ops, n_cases), where NaN are the case's mean over ops, moved to the op's own level."""
    of_case = np.nanmean(known, axis=0)
    level = np.nanmean(known - of_case, axis=1, keepdims=True)
    found: Floats = np.where(np.isnan(known), of_case + level, known)
    return found


def _scales(kinds: Sequence[str], residuals: Floats) -> dict[str, float]:
    """For each kind, the size of its residuals relative to those of all kinds; shrunk to 1 where few ops of a kind are
    known."""
    squares = np.nanmean(residuals**2, axis=1)
    typical = float(np.mean(squares)) or 1.0
    of_kind: NDArray[np.str_] = np.array(kinds)
    found = {}
    for kind in dict.fromkeys(kinds):
        own = squares[of_kind == kind]
        found[kind] = float(np.sqrt((own.sum() / typical + PRIOR_OPS) / (len(own) + PRIOR_OPS)))
    return found


def _noise(entries: Sequence[MeasuredOp], cases: Sequence[Case]) -> Floats:
    """(n_cases,) variance of the log of one sample around the mean of its case, over ops with three samples or more.

    The average is a mean and not a median: now and then a sample is far off, and a single sample may be such a one.
    Values are limited to `MOST_NOISE`. Cases without repeated samples get the mean of the other cases.
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


def _table(entries: Sequence[MeasuredOp], cases: Sequence[Case]) -> Floats:
    """(n_ops, n_cases) measured log seconds, NaN where a case was not measured."""
    position = {case: i for i, case in enumerate(cases)}
    table = np.full((len(entries), len(cases)), np.nan)
    for row, entry in enumerate(entries):
        for case, measured in entry.by_case.items():
            if case in position:
                table[row, position[case]] = np.log(measured.seconds)
    return table
