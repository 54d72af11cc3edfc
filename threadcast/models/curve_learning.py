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

SHARES = (0.0, 0.15, 0.3, 0.45, 0.6, 0.8, 1.0)
"""Weights of the trees' forecast that are tried; the process has the rest of the weight."""

PROCESS_ALONE_ERROR = 1.03
"""The process is used without trees where its error is at most so many times the least error: trees take ten times as
long."""


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
    entries: Sequence[MeasuredOp], by_trees: Sequence[Floats], *, samples: int, seed: int,
    names: tuple[str, ...] = (),
) -> MachineCurves:  # fmt: skip
    """Learn one machine from its measured ops; `by_trees[i]` are log seconds of op i at its cases by trees that did not
    learn from it; `names` are attributes of ops that are inputs (`OpFeatures.names`)."""
    cases = _often(entries)
    some = [i for i, entry in enumerate(entries) if not entry.by_case.keys().isdisjoint(cases)]
    entries, by_trees = [entries[i] for i in some], [by_trees[i] for i in some]
    ops = [entry.op for entry in entries]
    known = _table(entries, [np.log([m.seconds for m in entry.by_case.values()]) for entry in entries], cases)
    trees = _table(entries, by_trees, cases)
    off = np.nanmean(known - trees, axis=1, keepdims=True)  # where a case is missing, the trees' shape stands in
    levels = np.where(np.isnan(trees), np.nanmean(known - work_per_thread(ops, cases), axis=1, keepdims=True), 0.0)
    guessed = np.where(np.isnan(trees), levels + work_per_thread(ops, cases), np.nan_to_num(trees) + off)
    filled = np.where(np.isnan(known), guessed, known) - work_per_thread(ops, cases)
    process, left = OpProcess.fitted(ops, filled, seed=seed, names=names)
    by_process = filled - left + work_per_thread(ops, cases)
    errors = {share: _off(known, share * trees + (1 - share) * by_process) for share in SHARES}
    share = 0.0 if errors[0.0] <= PROCESS_ALONE_ERROR * min(errors.values()) else min(errors, key=errors.__getitem__)
    base = share * np.where(np.isnan(trees), by_process, trees) + (1 - share) * by_process
    scales = _scales([op.kind for op in ops], known - base)
    held_out = HeldOutOps(
        entries, cases, known, base, scales, _noise(entries, cases), seed=seed, names=names
    )  # fmt: skip
    correction = held_out.correction()
    widths, low, high = held_out.bounds(samples)
    return replace(
        held_out.machine, widths=widths, low=low, high=high, process=process, share=share, correction=correction
    )


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


def _off(known: Floats, forecast: Floats) -> float:
    """Mean absolute difference where `known` is not NaN."""
    apart = np.abs(known - forecast)
    apart = apart[~np.isnan(apart)]
    return float(apart.mean()) if len(apart) else 0.0


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


def _table(entries: Sequence[MeasuredOp], rows: Sequence[Floats], cases: Sequence[Case]) -> Floats:
    """`rows`, each over its op's own cases, as one array (n_ops, n_cases) with NaN where a case was not measured."""
    position = {case: i for i, case in enumerate(cases)}
    table = np.full((len(entries), len(cases)), np.nan)
    for row, (entry, values) in enumerate(zip(entries, rows, strict=True)):
        for case, value in zip(entry.by_case, values, strict=True):
            if case in position:
                table[row, position[case]] = value
    return table
