"""How long models take: the learned curve to learn and to forecast, and each in a comparison of all of them.

    python benchmarks/model_speed.py [--million] [--compare] [--write]

Times of ops are by a formula: how they come about does not matter here. Minutes.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from collections.abc import Callable
from statistics import median

import numpy as np
from figures.forecasts import SPEED
from run_facts import RunFacts
from threadpoolctl import threadpool_limits

from threadcast.cli.model_table import compared_samples, make_models
from threadcast.core import Case, Machine, Measurement, Op, Sample, TensorSpec, read_machine
from threadcast.models.evaluation import evaluate
from threadcast.models.learned_curve import LearnedCurve
from threadcast.models.measured import group
from threadcast.models.point_trees import Points, PointTrees, Shape
from threadcast.models.registry_of_kinds import names
from threadcast.models.splits import new_shape
from threadcast.models.static_features import joint_features

MACHINE = Machine.uniform("ninety-six", 96)
SAMPLED = (Case(10), Case(33), Case(87))
KNOWN = 1000
"""Ops that are learned from, at 96 cases each."""
MILLION = 10_417
"""Ops with a million samples, one for each of 96 cases."""

COMPARED = 300
"""Ops at 96 cases that models are compared on."""


def speed(*, million: bool = False) -> dict[str, float]:
    """Seconds to learn and to forecast, and bytes of memory.

    Learned are `KNOWN` ops at 96 cases, with `million` also `MILLION` ops; forecast are 10,000 curves, 1,000, and one,
    from three samples each. "xgboost_1000_s" is one call of XGBoost for as many points as 1,000 curves have, with as
    many trees of the same depth, on one thread. Forecasts are timed after the loop over trees was compiled
    (`tree_tables.WORTH_COMPILING`).
    """
    ops, measured = products(MILLION)
    cases = MACHINE.cases()
    found: dict[str, float] = {}

    def note(name: str, value: float) -> None:
        found[name] = value
        print(f"  {name}: {value:.4g}", file=sys.stderr, flush=True)

    known = [measured(op, case) for op in ops[:KNOWN] for case in cases]
    model = LearnedCurve(samples=3, jobs=len(read_machine()))
    note("fit_s", _seconds(lambda: model.fit(known), 1))
    note("fit_peak_bytes", _peak_bytes())
    observed = [[measured(op, case) for case in SAMPLED] for op in ops[:10_000]]
    for _ in range(2):
        model.predict_many(ops[:10_000], observed, cases, machine=MACHINE)
    for count, times in ((10_000, 3), (1000, 10)):
        note(
            f"predict_{count}_s",
            _seconds(lambda n=count: model.predict_many(ops[:n], observed[:n], cases, machine=MACHINE), times),
        )
    note("predict_one_s", _seconds(lambda: model.predict(ops[0], observed[0], cases, machine=MACHINE), 200))
    points = Points.of(group(known[: 100 * len(cases)]))
    trees = PointTrees(Shape(trees=model.shape.trees, depth=model.shape.depth))
    trees.fit(points.features, points.targets, jobs=1)
    features = joint_features(ops[:1000], MACHINE, cases)
    flat = features.reshape(-1, features.shape[2])
    note("xgboost_1000_s", _seconds(lambda: trees.forecast(flat), 10))
    if million:
        del known, observed
        samples = [measured(op, case) for op in ops for case in cases]
        note("million_samples_bytes", _peak_bytes())
        note("million_fit_s", _seconds(lambda: LearnedCurve(samples=3, jobs=len(read_machine())).fit(samples), 1))
        note("million_peak_bytes", _peak_bytes())
    return found


def products(count: int) -> tuple[list[Op], Callable[[Op, Case], Measurement]]:
    """So many matrix products of random sizes, and a function that measures one with 5 % noise."""
    random = np.random.default_rng(0)
    sides = np.exp(random.uniform(np.log(16), np.log(8192), (count, 3))).astype(int)
    ops = [
        Op("mm", (TensorSpec((m, k)), TensorSpec((k, n))), outputs=(TensorSpec((m, n)),)) for m, k, n in sides.tolist()
    ]

    def measured(op: Op, case: Case) -> Measurement:
        seconds = op.flops / 2e10 / case.threads + 1e-6 * case.threads
        return Measurement(op, MACHINE, case, (Sample(seconds * float(np.exp(0.05 * random.standard_normal()))),))

    return ops, measured


def compare_speed() -> dict[str, float]:
    """CPU seconds that each kind of model takes in one of the five folds of `threadcast compare`, in one process with
    one thread, as its workers have."""
    ops, measured = products(COMPARED)
    measurements = [measured(op, case) for op in ops for case in MACHINE.cases()]
    found: dict[str, float] = {}
    for name in names():
        models = make_models([name], compared_samples(measurements), measurements)
        started_s = time.process_time()
        with threadpool_limits(1):
            evaluate(measurements, models, split=lambda entries: new_shape()(entries)[:1], split_name="new_shape")
        found[name] = time.process_time() - started_s
        print(f"  {name}: {found[name]:.1f} s", file=sys.stderr, flush=True)
    return found


def described(took: dict[str, float]) -> list[dict[str, str]]:
    """The figures as rows of data/studies/model_speed.csv."""
    rows = [
        (f"{KNOWN:,} ops at 96 cases are learned", f"{took['fit_s']:.1f}", "s"),
        ("10,000 curves from 3 samples each", f"{took['predict_10000_s']:.2f}", "s"),
        ("one curve", f"{took['predict_one_s'] * 1e3:.2f}", "ms"),
        ("1,000 curves", f"{took['predict_1000_s'] * 1e3:.0f}", "ms"),
        ("XGBoost alone, as many points and trees", f"{took['xgboost_1000_s'] * 1e3:.0f}", "ms"),
    ]
    if "million_fit_s" in took:
        own = (took["million_peak_bytes"] - took["million_samples_bytes"]) / 2**20
        rows += [
            ("a million samples are learned", f"{took['million_fit_s']:.0f}", "s"),
            ("memory beside the million samples", f"{own:.0f}", "MiB"),
        ]
    return [dict(zip(SPEED.columns, row, strict=True)) for row in rows]


def _peak_bytes() -> float:
    """The largest resident memory of this process so far, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0


def _seconds(call: Callable[[], object], times: int) -> float:
    taken = []
    for _ in range(times):
        started_s = time.perf_counter()
        call()
        taken.append(time.perf_counter() - started_s)
    return median(taken)


def compared(by_model: dict[str, float]) -> list[dict[str, str]]:
    """The CPU seconds of a fold of `COMPARED` ops at 96 cases as rows, the slowest model first."""
    listed = sorted(by_model.items(), key=lambda item: -item[1])
    return [{"what": f"a fold, {name}", "value": f"{took:.1f}", "unit": "CPU s"} for name, took in listed]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--million", action="store_true", help="also learn from a million samples")
    parser.add_argument("--compare", action="store_true", help="also time each model in a comparison")
    parser.add_argument("--write", action="store_true", help=SPEED.writes)
    chosen = parser.parse_args()
    facts = RunFacts.now()
    print(facts)
    rows = described(speed(million=chosen.million))
    if chosen.compare:
        rows += compared(compare_speed())
    print(SPEED.printed(rows))
    if chosen.write:
        SPEED.store(rows, facts)
