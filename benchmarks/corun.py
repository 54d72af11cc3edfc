"""How well slow-downs of op classes are forecast from few measured pairs.

    python benchmarks/corun.py [--measure] [--draws 20] [--write]

With `--measure` all pairs of ops of some networks are first timed on the two halves of this machine (five minutes, on a
quiet machine) and stored in data/recorded. These, and pairs on the simulated Xeon Phi, are the truth.
"""

from __future__ import annotations

import argparse
import csv
import math
import zlib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import fmean, median

import numpy as np
import paper_networks
from figures.forecasts import CORUN
from run_facts import RunFacts

from threadcast.collector.corun import (
    EACH,
    MOST_PAIRS,
    halves,
    limits_of,
    measure_corun,
    representatives,
    work_shares,
)
from threadcast.collector.corun_forecast import CoRunForecast, bandwidth_bound
from threadcast.collector.simulated.calibrated import CALIBRATED
from threadcast.collector.simulated.co_run import XeonPhiCoRun
from threadcast.collector.simulated.constants import CORE_BYTES_PER_S, CORES, DISPATCH_S, MEMORY_BYTES_PER_S
from threadcast.collector.simulated.source import NOISE
from threadcast.collector.simulated.xeon_phi import XeonPhi
from threadcast.core import OpGraph, read_machine
from threadcast.core.corun import Classes, Keys
from threadcast.core.op_class import ClassLimits, OpClass
from threadcast.scheduler.problem import Running

ROOT = Path(__file__).parents[1]
RECORDED = ROOT / "data" / "recorded" / "amd-epyc-2c-corun.csv"
COLUMNS = ("network", "bandwidth_bound", "op", "class", "share", "beside", "beside_class", "slowdown")

CHOSEN_WITH = ("resnet18", "lstm", "transformer")
"""Networks with which the prior's constants were chosen; the others judge them."""
NETWORKS = (*CHOSEN_WITH, "googlenet", "dcgan_generator", "pathnet")
SIMULATED = ("resnet50", "dcgan", "inception_v3", "lstm", "pathnet_medium", "googlenet_medium")

PAIRED = 3
"""Ops a class of which all pairs are known; a draw takes two of them, as many as `profile --corun`."""
STEPS = (0, 1, 2, 3, 4, 6, 8, MOST_PAIRS)
"""Numbers of measured pairs after which the forecasts are judged."""


@dataclass(frozen=True)
class Set:
    """All pairs of some ops of one network on one machine, with how much the first slows down beside the second.

    Each of two ops has `cores` cores; `share` is a class's part of the step's work.
    """

    name: str
    ops: Mapping[OpClass, tuple[str, ...]]
    share: Mapping[OpClass, float]
    cores: int
    bandwidth_bound: float
    slowdown: Mapping[Keys, float]


def measure() -> None:
    """Time all pairs of the networks' ops on this machine, and store them."""
    from threadcast import networks
    from threadcast.capture.workloads import capture_workload
    from threadcast.collector.calibration import calibrate
    from threadcast.threads.memory import keep_freed_memory

    keep_freed_memory()
    run, machine, rows = RunFacts.now(), read_machine(), []
    calibration = calibrate(machine, seconds=0.3)
    limits = limits_of(calibration, machine)
    rates = calibration.core_bytes_per_s, calibration.all_bytes_per_s
    bound = bandwidth_bound(*rates, cores=len(halves(machine)[0]))
    for name in NETWORKS:
        ops = capture_workload(networks.load(name, size="small")).graph.ops
        shares, of = work_shares(ops, limits), {op.key: limits.class_of(op) for op in ops}
        report = measure_corun(ops, machine, limits, each=PAIRED, most=None, narrow=0.0)
        for (op, beside), by in sorted(report.pairs.items()):
            share = f"{shares[of[op]]:.4g}"
            rows.append((name, f"{bound:.4g}", op, of[op], share, beside, of[beside], f"{by:.4g}"))
        print(f"{name}: {len(report.pairs)} pairs, {len(report.failed)} failed", flush=True)
    with RECORDED.open("w", newline="") as file:
        file.write(f"# {run}\n")
        csv.writer(file, lineterminator="\n").writerows([COLUMNS, *rows])


def recorded() -> Iterator[Set]:
    """The networks that were measured for real."""
    rows = list(csv.DictReader(line for line in RECORDED.read_text().splitlines() if not line.startswith("#")))
    for name in dict.fromkeys(row["network"] for row in rows):
        own = [row for row in rows if row["network"] == name]
        ops: dict[OpClass, dict[str, None]] = {}
        for row in own:
            ops.setdefault(OpClass(row["class"]), {})[row["op"]] = None
        yield Set(
            name, {of: tuple(keys) for of, keys in ops.items()},
            {OpClass(row["class"]): float(row["share"]) for row in own}, 1, float(own[0]["bandwidth_bound"]),
            {(row["op"], row["beside"]): float(row["slowdown"]) for row in own},
        )  # fmt: skip


def phi_limits() -> ClassLimits:
    """What separates op classes on the simulated Xeon Phi."""
    return ClassLimits(min(CALIBRATED.flops_per_s.values()), MEMORY_BYTES_PER_S / CORES, DISPATCH_S)


def simulated(name: str) -> Set:
    """A paper's training step on the two halves of the simulated Xeon Phi, with 2 % noise in each slow-down."""
    graph = paper_networks.load(name)
    chosen = representatives(graph.ops, phi_limits(), each=PAIRED)
    flat = [op for found in chosen.values() for op in found]
    left, right = tuple(range(CORES // 2)), tuple(range(CORES // 2, CORES))
    beside = XeonPhiCoRun(XeonPhi(), OpGraph(tuple(op.key for op in flat), tuple(flat)))
    random, slowdown = np.random.default_rng(zlib.crc32(name.encode())), {}
    for i, j in product(range(len(flat)), repeat=2):
        running = Running(i, left, len(left), 0.0, 1.0), Running(j, right, len(right), 0.0, 1.0)
        by = beside.slowdowns(running)[0] * math.exp(random.normal(0.0, NOISE))
        slowdown[flat[i].key, flat[j].key] = by
    ops = {of: tuple(op.key for op in found) for of, found in chosen.items()}
    bound = bandwidth_bound(CORE_BYTES_PER_S, MEMORY_BYTES_PER_S, cores=len(left))
    return Set(name, ops, work_shares(graph.ops, phi_limits()), len(left), bound, slowdown)


@dataclass(frozen=True)
class Draw:
    """Some ops of a set: the prior, all pairs' slow-downs, and by pair of classes the median of its pairs."""

    prior: CoRunForecast
    slowdown: Mapping[Keys, float]
    truth: Mapping[Classes, float]

    @classmethod
    def of(cls, whole: Set, seed: int) -> Draw:
        """Two ops of each class, drawn at random."""
        random = np.random.default_rng(seed)
        ops = {of: [keys[i] for i in sorted(random.permutation(len(keys))[:EACH])] for of, keys in whole.ops.items()}
        pairs = {(of, beside): list(product(ops[of], ops[beside])) for of, beside in product(ops, ops)}
        slowdown = {pair: whole.slowdown[pair] for both in pairs.values() for pair in both}
        truth = {classes: median(slowdown[pair] for pair in both) for classes, both in pairs.items()}
        return cls(CoRunForecast.of(ops, cores=whole.cores, bandwidth_bound=whole.bandwidth_bound), slowdown, truth)


def measured_in_turn(draw: Draw, share: Mapping[OpClass, float], most: int) -> Iterator[CoRunForecast]:
    """The forecast after 0, 1, 2, ... `most` measured pairs, chosen as `profile --corun` chooses them."""
    forecast, left = draw.prior, dict(draw.slowdown)
    yield forecast
    while left and len(forecast.measured) < most:
        pair = forecast.next_pair(left, share)
        forecast = forecast.with_measured(pair, left.pop(pair))
        yield forecast


def judged(title: str, sets: Sequence[Set], draws: int) -> Iterator[dict[str, object]]:
    """A row for each number of measured pairs, on the pairs of classes of which none was measured."""
    found: dict[int, list[tuple[float, ...]]] = defaultdict(list)
    for whole, seed in product(sets, range(draws)):
        draw = Draw.of(whole, seed)
        for n, forecast in enumerate(measured_in_turn(draw, whole.share, max(STEPS))):
            known = {forecast.classes[i] for i in forecast.measured}
            mean = fmean(map(math.exp, forecast.measured.values())) if n else 1.0
            for classes, by in forecast.by_class().items():
                if classes in draw.truth and classes not in known:
                    real = draw.truth[classes]
                    errors = abs(by.median - real), abs(1.0 - real), abs(mean - real)
                    found[n].append((*errors, by.low <= real <= by.high, by.high / by.low))
    for n in STEPS:
        cells = [fmean(column) for column in zip(*found[n], strict=True)]
        left = len(found[n]) / len(sets) / draws
        yield {
            "set": title, "pairs": n, "classes_left": f"{left:.1f}", "error": f"{cells[0]:.3f}",
            "error_of_none": f"{cells[1]:.3f}", "error_of_mean": f"{cells[2]:.3f}",
            "inside_percent": f"{100 * cells[3]:.0f}", "width": f"{cells[4]:.2f}",
        }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measure", action="store_true", help="time the pairs of ops on this machine again")
    parser.add_argument("--draws", type=int, default=20)
    parser.add_argument("--write", action="store_true", help=f"{CORUN.writes}")
    chosen = parser.parse_args()
    if chosen.measure:
        measure()
    run, real = RunFacts.now(), list(recorded())
    by_network = {one.name: one for one in real}
    others = [one for one in real if one.name not in CHOSEN_WITH]
    rows = [
        *judged("real, chosen with", [by_network[name] for name in CHOSEN_WITH], chosen.draws),
        *judged("real, others", others, chosen.draws),
        *judged("simulated", [simulated(name) for name in SIMULATED], chosen.draws),
    ]
    print(CORUN.printed(rows))
    if chosen.write:
        CORUN.store(rows, run)


if __name__ == "__main__":
    main()
