"""How long each page of the dashboard takes over a store of 100,000 measured ops.

    .venv/bin/python benchmarks/dashboard.py --store build/dashboard.db

Makes the store where there is none (synthetic times; minutes), serves it, and asks for every page several times from
another process. Prints the median and the slowest of each, the size, and whether it stayed below 300 ms.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator

import numpy as np

from threadcast.core import Affinity, Case, Edge, Machine, Measurement, Op, OpGraph, Sample, TensorSpec
from threadcast.store import Store

OPS, CASES = 100_000, (1, 2, 4, 8, 12, 16, 24, 32)
KINDS = ("convolution", "convolution_backward_weight", "mm", "relu", "add", "batch_norm", "max_pool", "softmax")
MACHINE = Machine.uniform("synthetic", 32, group_size=8)
NETWORK_OPS = 300
LIMIT_S = 0.3
REPEATS = 15
BATCH = 2_000
"""Ops added in one transaction."""


def measured(seed: int = 0) -> Iterator[list[Measurement]]:
    """Ops in batches; seconds follow Amdahl's law with an overhead a thread, and noise."""
    random = np.random.default_rng(seed)
    for start in range(0, OPS, BATCH):
        batch = []
        for i in range(start, start + BATCH):
            side = 8 + i % 997
            inputs = (TensorSpec((1 + i // 997, side)), TensorSpec((side, 64)))
            op = Op(KINDS[i % len(KINDS)], inputs, outputs=(TensorSpec((1 + i // 997, 64)),))
            work_s, part = random.lognormal(-7.0, 1.5), random.beta(2, 8)
            when = f"2026-{1 + i // 8400:02d}-{1 + i // 300 % 28:02d}T12:00:00+00:00"
            for threads in CASES:
                s = work_s * (part + (1 - part) / threads) + 2e-6 * threads
                samples = tuple(Sample(float(s * n)) for n in random.lognormal(0, 0.03, 3))
                case = Case(threads, Affinity.COMPACT)
                batch.append(Measurement(op, MACHINE, case, samples, {"cache": "rotated", "time": when}))
        yield batch


def seed(store: str) -> None:
    """Fill the store, with a network of its first ops."""
    with Store.open(store) as opened:
        for i, batch in enumerate(measured()):
            if i == 0:
                ops = [m.op for m in batch[:: len(CASES)]][:NETWORK_OPS]
                edges = tuple(Edge(max(n - 1 - n % 3, 0), n) for n in range(1, len(ops)))
                ids = tuple(f"op{n}" for n in range(len(ops)))
                opened.add_graph("synthetic/b1/forward", OpGraph(ids, tuple(ops), edges))
            opened.add(batch)
            print(f"\r{(i + 1) * BATCH:,} of {OPS:,} ops", end="", file=sys.stderr)
    print(file=sys.stderr)


if __name__ == "__main__":
    started = time.perf_counter()
    seed(sys.argv[1])
    print(time.perf_counter() - started)
