"""Measured ops made by a small analytic formula, so that tests know the truth that models are to find.

    time(p) = work / p * (1 + contention * (p - 1) + crosstalk * p * (p - 1)) + fork * p      (USL plus fork-join cost)

`work` is the longer of flops over a core's peak and bytes over its bandwidth. COMPACT placement shares a cache and
costs memory-bound ops `SHARING` more. Noise is log-normal. Counters follow from flops, bytes and time.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from threadcast.core import Affinity, Case, Machine, Measurement, Op, Sample, TensorSpec

MACHINE = Machine.uniform("synthetic", 8, group_size=2)
"""Eight cores in pairs: SPREAD 1 to 4, COMPACT 2, 4, 6, 8."""

CORE_FLOPS_PER_S, CORE_BYTES_PER_S, HZ, FORK_S, SHARING = 2e10, 8e9, 2e9, 1e-6, 0.2
KINDS = {"mm": (0.01, 0.0005), "add": (0.15, 0.004), "softmax": (0.08, 0.01)}
"""Contention and crosstalk of each kind."""


def make_ops(count: int, *, seed: int = 0) -> list[Op]:
    """Different ops of the three kinds in turn, with sides between 16 and 1024."""
    rng = np.random.default_rng(seed)
    ops: dict[str, Op] = {}
    while len(ops) < count:
        kind = list(KINDS)[len(ops) % len(KINDS)]
        m, k, n = (int(side) for side in np.exp(rng.uniform(np.log(16), np.log(1024), 3)))
        if kind == "mm":
            op = Op(kind, (TensorSpec((m, k)), TensorSpec((k, n))), {}, (TensorSpec((m, n)),))
        else:
            op = Op(kind, (TensorSpec((m, n)),), {}, (TensorSpec((m, n)),))
        ops[op.key] = op
    return list(ops.values())


def true_seconds(op: Op, case: Case) -> float:
    """Seconds of `op` in `case` without noise."""
    contention, crosstalk = KINDS[op.kind]
    compute_s, memory_s = op.flops / CORE_FLOPS_PER_S, op.bytes_moved / CORE_BYTES_PER_S
    if case.affinity is Affinity.COMPACT and case.threads > 1:
        memory_s *= 1 + SHARING
    p = case.threads
    return max(compute_s, memory_s) / p * (1 + contention * (p - 1) + crosstalk * p * (p - 1)) + FORK_S * p


def measure(
    op: Op, case: Case, *, machine: Machine = MACHINE, repeats: int = 5, noise: float = 0.01, counters: bool = True,
    rng: np.random.Generator | None = None,
) -> Measurement:  # fmt: skip
    """Samples of `op` in `case`, log-normal around the truth with relative spread `noise`."""
    rng = rng or np.random.default_rng([int(op.key[-8:], 16), case.threads, len(case.affinity)])
    times = true_seconds(op, case) * np.exp(noise * rng.standard_normal(repeats))
    counts = _counts(op, case) if counters else dict.fromkeys(_counts(op, case))
    return Measurement(op, machine, case, tuple(Sample(float(s), counts) for s in times))


def _counts(op: Op, case: Case) -> dict[str, float | None]:
    instructions = op.flops * 0.3 + op.bytes_moved * 0.5 + 1000
    loads = op.bytes_moved / 4
    return {
        "instructions": instructions,
        "cycles": true_seconds(op, case) * HZ * case.threads,
        "cache_references": loads * 0.1 + 10,
        "cache_misses": op.bytes_moved / 64 + 5,
        "l1d_loads": loads,
        "branches": instructions * 0.1,
        "branch_misses": instructions * 0.001,
    }


def measure_all(
    ops: Sequence[Op], *, machine: Machine = MACHINE, noise: float = 0.01, counters: bool = True, seed: int = 0
) -> list[Measurement]:
    """Every op in every case of the machine."""
    rng = np.random.default_rng(seed)
    return [
        measure(op, case, machine=machine, noise=noise, counters=counters, rng=rng)
        for op in ops
        for case in machine.cases()
    ]
