"""How long each page of the dashboard takes over a store of 100,000 measured ops.

    .venv/bin/python benchmarks/dashboard.py --store build/dashboard.db [--ops 100000]

Makes the store where there is none (synthetic times; minutes), serves it, and asks for every page several times from
another process. Prints the median and the slowest of each, its size, and which medians are above 300 ms.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import numpy as np
import urllib3

from threadcast.cli.demo_service import service
from threadcast.core import Affinity, Case, Edge, Machine, Measurement, Op, OpGraph, Sample, TensorSpec
from threadcast.models.learned_curve import LearnedCurve
from threadcast.models.registry import ModelRegistry
from threadcast.models.roofline import Roofline
from threadcast.store import Store

OPS, CASES = 100_000, (1, 2, 4, 8, 12, 16, 24, 32)
KINDS = ("convolution", "convolution_backward_weight", "mm", "relu", "add", "batch_norm", "max_pool", "softmax")
MACHINE = Machine.uniform("synthetic", 32, group_size=8)
NETWORK, NETWORK_OPS = "synthetic/b1/forward", 300
LIMIT_S = 0.3
REPEATS = 15
BATCH = 2_000
"""Ops added in one transaction."""


def measured(ops: int, seed: int = 0) -> Iterator[list[Measurement]]:
    """Ops in batches; seconds follow Amdahl's law with an overhead a thread, and noise."""
    random = np.random.default_rng(seed)
    for start in range(0, ops, BATCH):
        batch = []
        for i in range(start, min(start + BATCH, ops)):
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


def seed(store: str, ops_wanted: int) -> None:
    """Fill the store, with a network of its first ops."""
    with Store.open(store) as opened:
        for i, batch in enumerate(measured(ops_wanted)):
            if i == 0:
                ops = [m.op for m in batch[:: len(CASES)]][:NETWORK_OPS]
                edges = tuple(Edge(max(n - 1 - n % 3, 0), n) for n in range(1, len(ops)))
                ids = tuple(f"op{n}" for n in range(len(ops)))
                opened.add_graph(NETWORK, OpGraph(ids, tuple(ops), edges))
            opened.add(batch)
            print(f"\r{min((i + 1) * BATCH, ops_wanted):,} of {ops_wanted:,} ops", end="", file=sys.stderr)
    print(file=sys.stderr)


def train(models: Path) -> None:
    """Register two models fitted to some of the ops, the learned one as champion."""
    registry = ModelRegistry(models)
    some = next(measured(200))[: 200 * len(CASES)]
    for model in (Roofline(), LearnedCurve()):
        version = registry.save(model.fit(some), trained_on={"ops": 200, "measurements": len(some)}, metrics={})
    registry.set_alias("champion", version)


def addresses(http: urllib3.PoolManager, url: str) -> dict[str, str]:
    """What is asked for, by what it shows."""
    ops = http.request("GET", f"{url}/ops").data.decode()
    found = re.search(r'href="(/ops/[^"]+)"', ops)
    assert found
    return {
        "overview": "/", "machines": "/machines", "ops": "/ops", "ops, last page": "/ops?last=1",
        "ops by speed-up": "/ops?sort=speedup&order=up",
        "ops of a kind": "/ops?kind=relu&last=1",
        "search, few found": "/ops?q=101x64", "search, none found": "/ops?q=nothing", "search, all found": "/ops?q=x",
        "search in a network": f"/ops?q=9&network={NETWORK}", "one op": found[1].replace("&amp;", "&"),
        "networks": "/networks", "a network": f"/networks/{NETWORK}", "comparison": "/comparison", "drift": "/drift",
        "models": "/models",
    }  # fmt: skip


def main() -> int:
    """Print the table; 1 where a page took longer than the limit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", type=Path, default=Path("build/dashboard.db"), help="made where there is none")
    parser.add_argument("--ops", type=int, default=OPS, help="in a store that is made")
    given = parser.parse_args()
    if not given.store.exists():
        given.store.parent.mkdir(parents=True, exist_ok=True)
        draft = given.store.with_suffix(".draft")
        draft.unlink(missing_ok=True)
        seed(str(draft), given.ops)
        draft.rename(given.store)
    http, slow = urllib3.PoolManager(), []
    with tempfile.TemporaryDirectory() as folder:
        train(Path(folder, "models"))
        with service(given.store, Path(folder, "models"), log=Path(folder, "log")) as url:
            pages = addresses(http, url)
            for path in pages.values():
                http.request("GET", url + path)  # models are loaded when first asked for
            print(f"{'page':22} {'median ms':>10} {'slowest ms':>11} {'kB':>6}")
            for name, path in pages.items():
                taken = []
                for _ in range(REPEATS):
                    started = time.perf_counter()
                    answer = http.request("GET", url + path)
                    taken.append(time.perf_counter() - started)
                    assert answer.status == 200, (path, answer.status)
                print(f"{name:22} {1e3 * median(taken):10.1f} {1e3 * max(taken):11.1f} {len(answer.data) / 1e3:6.0f}")
                if median(taken) > LIMIT_S:
                    slow.append(name)
    print(f"over {LIMIT_S * 1e3:.0f} ms: {', '.join(slow) or 'none'}")
    return 1 if slow else 0


if __name__ == "__main__":
    sys.exit(main())
