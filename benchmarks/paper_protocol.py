"""Table IV of Liu et al. 2018 by the paper's own protocol.

    python benchmarks/paper_protocol.py [--only simulated|recorded] [--regressors NAMES] [--samples 1,4] [--write]

A regressor for each case of the machine learns from ResNet-50 (CIFAR-10 images), DCGAN (MNIST images) and Inception-v3
at several batch sizes, with counters at N sampled cases as features, and forecasts the ops of AlexNet, of which it gets
the same N cases. Once on the simulated Xeon Phi, once on recorded times of 2 cores, which have two cases and no
counters. `--write` replaces these rows in data/studies/paper_protocol.csv, from which notebook 2 draws its figures.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, dataclass

import click
import numpy as np
from figures.papers import PROTOCOL
from recorded_sets import recorded
from run_facts import RunFacts

from threadcast.collector.simulated.demand import Library, demand
from threadcast.collector.simulated.source import SimulatedXeonPhi
from threadcast.core import Measurement, Op
from threadcast.models import registry_of_kinds
from threadcast.models.base import PerformanceModel
from threadcast.models.evaluation import evaluate
from threadcast.models.learned_curve import LearnedCurve
from threadcast.models.measured import MeasuredOp
from threadcast.models.splits import Fold

LEARNED = ("resnet50", "dcgan_generator", "dcgan_discriminator", "inception_v3")
TESTED = "alexnet"
BATCHES = (16, 32, 64, 128, 256)
"""Batch sizes of the networks that are learned from: the paper's range, III-B."""
LEARNED_OPS = 400
"""Ops that are learned from, drawn from all of these networks: learning takes minutes with them, hours with all."""
SAMPLES = (1, 4, 8, 16)
RECORDED = "amd-epyc-2c"


@dataclass(frozen=True)
class Result:
    """One model on AlexNet's ops. `scale` is what it learned: "linear" seconds as the paper, or their "log"."""

    machine: str
    scale: str
    samples: int
    model: str
    accuracy: float | None
    r2: float | None
    regret: float | None
    ops: int
    learned_ops: int


def distinct_ops(network: str, size: str, batch: int | None = None) -> list[Op]:
    """The different ops of a network's training step, views left out. Nothing is computed for it."""
    from threadcast.capture.workloads import capture_workload
    from threadcast.networks import load

    graph = capture_workload(load(network, size, batch=batch)).graph
    return [op for op in graph.distinct_ops().values() if not op.is_view]


def openmp_ops(network: str, batch: int | None = None) -> list[Op]:
    """The ops at the paper's size whose thread counts the paper changes."""
    return [op for op in distinct_ops(network, "paper", batch) if demand(op).library is not Library.EIGEN]


def simulated() -> tuple[list[Measurement], set[str]]:
    """Ops at each of the 68 cases of the simulated Xeon Phi, with counters, and the keys of those to judge by."""
    tested = {op.key: op for op in openmp_ops(TESTED)}
    known = {op.key: op for network in LEARNED for batch in BATCHES for op in openmp_ops(network, batch)}
    rest = [op for key, op in known.items() if key not in tested]
    drawn = np.random.default_rng(0).permutation(len(rest))[:LEARNED_OPS]
    print(f"simulated: {len(drawn)} of {len(rest)} ops to learn from, {len(tested)} to judge by", file=sys.stderr)
    run = SimulatedXeonPhi(samples=1)
    ops = [*(rest[i] for i in sorted(drawn)), *tested.values()]
    return [run(op, case) for op in ops for case in run.machine.cases()], set(tested)


def measured() -> tuple[list[Measurement], set[str]]:
    """The same networks as recorded at size small, and the keys of the ops to judge by."""
    tested = {op.key for op in distinct_ops(TESTED, "small")}
    known = {op.key for network in LEARNED for op in distinct_ops(network, "small")}
    return [m for m in recorded(RECORDED) if m.op.key in known | tested], tested


def candidates(names: Collection[str], samples: int) -> list[tuple[str, str, PerformanceModel]]:
    """(name, scale, model): each regressor on seconds and on their logarithms, and the learned curve."""
    every = [*registry_of_kinds.REGRESSORS]
    found: list[tuple[str, str, PerformanceModel]] = [
        (name, scale, registry_of_kinds.create(name, samples=samples, scale=scale))
        for scale in ("linear", "log")
        for name in every
        if not names or name in names
    ]
    if not names or LearnedCurve.name in names:
        found.append((LearnedCurve.name, "log", LearnedCurve(samples=samples)))
    return found


def results(machine: str, names: Collection[str], counts: Sequence[int]) -> Iterator[Result]:
    """The scores of the models on the machine, as they come."""
    measurements, tested = simulated() if machine == "simulated" else measured()
    cases = len({m.case for m in measurements})

    def split(entries: Sequence[MeasuredOp]) -> tuple[Fold, ...]:
        own = [entry.op.key in tested for entry in entries]
        return (Fold(TESTED, tuple(i for i, o in enumerate(own) if not o), tuple(i for i, o in enumerate(own) if o)),)

    for samples in (count for count in counts if count < cases):
        for name, scale, model in candidates(names, samples):
            started_s = time.perf_counter()
            (row,) = evaluate(measurements, [(name, model)], split=split, split_name=TESTED).rows
            took_s = time.perf_counter() - started_s
            learned = len({m.op.key for m in measurements} - tested)
            found = Result(machine, scale, samples, name, row.accuracy, row.r2, row.regret_mean, row.ops, learned)
            print(f"{found} {took_s:.0f} s {row.problem or ''}", file=sys.stderr, flush=True)
            yield found


def stored() -> list[Result]:
    """The results of earlier runs."""
    return [_read(row) for row in PROTOCOL.rows()]


def _read(row: dict[str, str]) -> Result:
    score = {name: float(row[name]) if row[name] else None for name in ("accuracy", "r2", "regret")}
    count = {name: int(row[name]) for name in ("samples", "ops", "learned_ops")}
    return Result(row["machine"], row["scale"], model=row["model"], **score, **count)


def store(found: Result) -> None:
    """Add a result, in place of an earlier one of the same model."""
    PROTOCOL.store([asdict(found)], RunFacts.now(), replaces=("machine", "scale", "samples", "model"))


@click.command()
@click.option("--only", type=click.Choice(("simulated", "recorded")), help="One of the two sets of times.")
@click.option("--regressors", default="", help="Names, separated by commas [default: all].")
@click.option("--samples", default=",".join(map(str, SAMPLES)), show_default=True, help="Numbers of samples.")
@click.option("--write", is_flag=True, help=f"{PROTOCOL.writes}.")
def main(only: str | None, regressors: str, samples: str, write: bool) -> None:
    """Learn from three networks, forecast AlexNet, and print accuracy, R2 and regret of each model."""
    names = {name for name in regressors.split(",") if name}
    counts = [int(count) for count in samples.split(",")]
    for machine in (only,) if only else ("simulated", "recorded"):
        for found in results(machine, names, counts):
            if write:
                store(found)


if __name__ == "__main__":
    main()
