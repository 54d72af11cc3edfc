"""The roofline's formula, and its constants fitted to measured times."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from threadcast.collector.calibration import Calibration
from threadcast.core import Case, Machine, Op
from threadcast.core.curve import Floats
from threadcast.models.measured import MeasuredOp

LEAST_OVERHEAD_S = 1e-9
"""Least time of any op, in seconds; keeps logarithms finite for ops without flops and bytes."""

BALANCE_FLOPS_PER_BYTE = 5.0
"""A core's flops over its bandwidth, assumed where no measured op is bound by compute; 3 to 10 are common."""


def least_seconds(limits: Calibration, ops: Sequence[Op], cases: tuple[Case, ...], machine: Machine) -> Floats:
    """The roofline's seconds of `ops` at `cases`, (n_ops, n_cases)."""
    flops, moved = (np.array([[getattr(op, name)] for op in ops]) for name in ("flops", "bytes_moved"))
    threads = np.array([case.threads for case in cases], dtype=np.float64)
    rate = np.minimum(threads * limits.core_bytes_per_s, limits.all_bytes_per_s)
    capacities = _capacities(machine, cases)
    for level in sorted(limits.cache_bytes_per_s, reverse=True):  # the innermost that holds the bytes is set last
        if level in capacities:
            cached = threads * limits.cache_bytes_per_s[level]
            rate = np.where(capacities[level] >= moved, np.maximum(cached, rate), rate)
    compute_s = flops / (threads * limits.core_flops_per_s)
    return _with_overhead(limits, np.maximum(compute_s, moved / rate), threads)


def _with_overhead(limits: Calibration, work_s: Floats, threads: Floats) -> Floats:
    overhead_s = np.interp(threads, list(limits.fork_join_s), list(limits.fork_join_s.values()))
    return np.maximum(work_s + overhead_s, LEAST_OVERHEAD_S)


@lru_cache(maxsize=64)
def _capacities(machine: Machine, cases: tuple[Case, ...]) -> dict[int, Floats]:
    """By cache level, the bytes of the caches that the cores of each case use, (n_cases,)."""
    used = [set(machine.place(case)) for case in cases]
    levels = {cache.level for cache in machine.caches}
    return {
        level: np.array([
            sum(c.size_bytes for c in machine.caches if c.level == level and cores.intersection(c.cores))
            for cores in used
        ], dtype=np.float64)
        for level in levels
    }  # fmt: skip


def fit_limits(fingerprint: str, entries: Sequence[MeasuredOp]) -> Calibration:
    """The calibration without cache levels that explains the measured times best.

    Five positive constants (core flops, bandwidth of one core and of all, cost of a call and of each further thread),
    by least squares on log time with a soft-L1 loss, so that ops which the roofline cannot explain have little
    influence. A weak penalty keeps constants that no op depends on near their first guess, the best rates observed.
    """
    from scipy.optimize import least_squares

    points = [(e.op.flops, e.op.bytes_moved, case.threads, m.seconds) for e in entries for case, m in e.by_case.items()]
    flops, moved, threads, seconds = np.array(points, dtype=np.float64).T
    most = max(float(threads.max()), 2.0)
    per_core = 1 / (threads * seconds)
    core_bytes = max(np.quantile(moved * per_core, 0.95), 1.0)
    start = np.log([
        max(np.quantile(flops * per_core, 0.95), BALANCE_FLOPS_PER_BYTE * core_bytes),
        core_bytes,
        max(np.quantile(moved / seconds, 0.95), 1.0),
        max(seconds.min() / 2, LEAST_OVERHEAD_S),
        max(seconds.min() / 20, LEAST_OVERHEAD_S),
    ])  # fmt: skip

    def limits(logs: Floats) -> Calibration:
        core_flops, core_bytes, all_bytes, call_s, thread_s = np.exp(logs).tolist()
        fork_join = {1: call_s, int(most): call_s + thread_s * (most - 1)}
        return Calibration(fingerprint, core_flops, core_bytes, max(all_bytes, core_bytes), fork_join)

    def residuals(logs: Floats) -> Floats:
        guess = limits(logs)
        rate = np.minimum(threads * guess.core_bytes_per_s, guess.all_bytes_per_s)
        work_s = np.maximum(flops / (threads * guess.core_flops_per_s), moved / rate)
        return np.concatenate([np.log(_with_overhead(guess, work_s, threads) / seconds), 1e-2 * (logs - start)])

    bounds = (start - 10.0, start + 10.0)  # factors of 20,000: wide enough never to matter, finite to be safe
    return limits(least_squares(residuals, start, bounds=bounds, loss="soft_l1", f_scale=0.3).x)
