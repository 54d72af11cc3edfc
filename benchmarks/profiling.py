"""How few measurements decide well: campaigns replayed on many-core machines.

    python benchmarks/profiling.py [--curves FOLDER] [--seeds 3] [--only resnet50,sgemm] [--rivals NAMES]
        [--enough 0.02] [--write]

Networks are measured on the simulated Xeon Phi (68 cores, 68 cases), the ops of ADSALA's sets on their recorded curves
(96 cases); these are not part of the project, and without --curves they are left out. A measurement is the median of
five runs: simulated ones, or recorded ones drawn at random of nine. Choices are judged by the medians of
all samples, or by the times without noise.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import paper_networks
from adsala import adsala_wide
from figures.forecasts import PROFILING
from run_facts import RunFacts

from threadcast.collector.campaign import MEAN_S, Campaign
from threadcast.collector.campaign_report import CampaignReport
from threadcast.collector.proposers import EvenlySpread, EveryCase, Proposer
from threadcast.collector.simulated.source import SimulatedXeonPhi
from threadcast.collector.timing import Goal
from threadcast.core import Case, Curve, Machine, Measurement, Op, OpGraph
from threadcast.models import registry_of_kinds
from threadcast.models.following import FollowedModel
from threadcast.models.interpolation import curve_through, knots_of
from threadcast.models.measured import by_case, group
from threadcast.store import Store

SAMPLES = 5
"""Samples behind a measurement of a recorded op. Campaigns time at least six batches."""

CHECK = 5
"""Ops whose choices are checked at the end, as `threadcast profile` does by default."""

NETWORKS = (*paper_networks.LIU, "phased_lstm_medium", "pathnet_medium", "googlenet_medium")
ADSALA = {"sgemm": "sgemm_mkl_cascadelake.csv.gz", "sdot": "sdot_mkl_cascadelake.csv.gz"}


@dataclass
class Replay:
    """Measures ops from a table, on a clock that goes on by `MEAN_S` with each measurement and with real time."""

    machine: Machine
    measured: Mapping[tuple[str, Case], Measurement] | Callable[[Op, Case], Measurement]
    conditions: Mapping[str, Any] = field(default_factory=dict)
    spent_s: float = 0.0

    @contextmanager
    def at(self, case: Case) -> Iterator[Callable[[Op, Goal], Measurement]]:
        """A function that returns the measurement of an op in `case`."""

        def measure(op: Op, goal: Goal) -> Measurement:
            self.spent_s += MEAN_S
            return self.measured(op, case) if callable(self.measured) else self.measured[op.key, case]

        yield measure

    def clock(self) -> float:
        """Seconds."""
        return time.perf_counter() + self.spent_s


@dataclass(frozen=True)
class Workload:
    """Ops and how long they really take, (n_ops, n_cases) seconds in the machine's cases."""

    name: str
    graph: OpGraph
    machine: Machine
    truth: np.ndarray
    replay: Callable[[int], Replay]
    """The measurer of a seed."""

    @property
    def ops(self) -> list[Op]:
        return list(self.graph.distinct_ops().values())


def simulated(name: str) -> Workload:
    """A paper's training step on the simulated Xeon Phi."""
    graph, exact = paper_networks.load(name), SimulatedXeonPhi(samples=1, noise=0.0, count=False)
    cases = exact.machine.cases()
    truth = np.array([[exact.model.seconds(op, case) for case in cases] for op in graph.distinct_ops().values()])

    def replay(seed: int) -> Replay:
        phi = SimulatedXeonPhi(exact.model, samples=5, seed=seed, count=False)
        return Replay(phi.machine, phi, phi.conditions)

    return Workload(name, graph, exact.machine, truth, replay)


def recorded(name: str, path: Path, *, samples: int = SAMPLES, ops: int | None = None) -> Workload:
    """The ops of one of ADSALA's sets, or so many of them drawn at random; a measurement is that many samples."""
    entries = group(adsala_wide(path))
    if ops is not None:
        entries = tuple(entries[i] for i in np.random.default_rng(0).permutation(len(entries))[:ops])
    machine = entries[0].machine
    cases = machine.cases()
    entries = tuple(entry for entry in entries if all(case in entry.by_case for case in cases))
    graph = OpGraph(tuple(f"op{i}" for i in range(len(entries))), tuple(entry.op for entry in entries))
    truth = np.array([[entry.by_case[case].seconds for case in cases] for entry in entries])

    def replay(seed: int) -> Replay:
        random = np.random.default_rng(seed)

        def some(measured: Measurement) -> Measurement:
            chosen = random.permutation(len(measured.samples))[:samples]
            return replace(measured, samples=tuple(measured.samples[i] for i in chosen))

        drawn = {(entry.op.key, case): some(m) for entry in entries for case, m in entry.by_case.items()}
        return Replay(machine, drawn)

    return Workload(name, graph, machine, truth, replay)


@dataclass(frozen=True)
class Rival:
    """A way to decide what is measured, and the choice that follows from what was measured."""

    name: str
    proposer: Callable[[float], Proposer]
    curve: Callable[[Op, Sequence[Measurement], Machine], Curve] | None = None
    """None where the proposer itself chooses."""


def _interpolated(op: Op, observed: Sequence[Measurement], machine: Machine) -> Curve:
    return curve_through(knots_of(by_case(observed)), machine.cases(), between="log")


def _by_model(name: str) -> Callable[[Op, Sequence[Measurement], Machine], Curve]:
    model = registry_of_kinds.create(name)
    return lambda op, observed, machine: model.predict(op, observed, machine.cases(), machine=machine)


def rivals() -> list[Rival]:
    """All ways that are compared."""
    create = registry_of_kinds.create
    followed = [
        Rival("joint_process", lambda enough: FollowedModel(create("joint_process", enough=enough))),
        Rival("learned_curve", lambda enough: FollowedModel(create("learned_curve", samples=4, enough=enough))),
    ]
    spread = [
        Rival(f"{n} evenly spread, interpolated", lambda enough, n=n: EvenlySpread(n), _interpolated) for n in (4, 6)
    ]
    climb = Rival("hill_climb", lambda enough: create("hill_climb"), _by_model("hill_climb"))
    return [*followed, *spread, climb, Rival("all cases", lambda enough: EveryCase(), _interpolated)]


def campaign(
    workload: Workload, rival: Rival, *, seed: int, enough: float, check: int = CHECK
) -> dict[str, float | None]:
    """The figures of one campaign."""
    replay, started_s, proposer = workload.replay(seed), time.perf_counter(), rival.proposer(enough)
    with TemporaryDirectory() as folder, Store.open(Path(folder) / "store.db") as store:
        report = Campaign(
            replay, proposer, store, enough=enough, check=check,
            clock=replay.clock,
        ).run(workload.graph)  # fmt: skip
    cases = workload.machine.cases()
    chosen = np.array([cases.index(_choice(op, rival, report, workload.machine)) for op in workload.ops])
    best = workload.truth.min(axis=1)
    found = workload.truth[np.arange(len(chosen)), chosen] / best - 1
    runs = np.array([sum(op.key == own.key for own in workload.graph.ops) for op in workload.ops])
    weights = best * runs / (best * runs).sum()
    return {
        "measured_share": report.measured / workload.truth.size, "cases_an_op": report.measured / len(chosen),
        "expected_regret": report.expected.mean if report.expected else None,
        "expected_step_regret": report.expected.step if report.expected else None,
        "checked_regret": report.checked.mean if report.checked else None,
        "widened": proposer.widened if isinstance(proposer, FollowedModel) else None,
        "regret_mean": float(found.mean()), "regret_p95": float(np.quantile(found, 0.95)),
        "step_regret": float(weights @ found), "learning_s": time.perf_counter() - started_s,
        "campaign_s": report.elapsed_s,
    }  # fmt: skip


def _choice(op: Op, rival: Rival, report: CampaignReport, machine: Machine) -> Case:
    if rival.curve is None:
        return report.choices[op.key].case
    return rival.curve(op, report.observed[op.key], machine).best()


def workloads(curves: Path | None) -> dict[str, Callable[[], Workload]]:
    """What campaigns are replayed on, by name."""
    found: dict[str, Callable[[], Workload]] = {name: lambda name=name: simulated(name) for name in NETWORKS}
    for name, file in ADSALA.items() if curves is not None else ():
        found[name] = lambda name=name, file=file: recorded(name, curves / file)
        found[f"{name}_single"] = lambda name=name, file=file: recorded(f"{name}_single", curves / file, samples=1)
        found[f"{name}_150"] = lambda name=name, file=file: recorded(f"{name}_150", curves / file, ops=150)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--curves", type=Path, help="folder of the ADSALA curves; --write then stores nothing")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--enough", type=float, default=0.02)
    parser.add_argument("--only", default="", help="names of workloads, separated by commas")
    parser.add_argument("--rivals", default="", help="beginnings of rivals' names, separated by commas [default: all]")
    parser.add_argument(
        "--write", action="store_true", help=f"{PROFILING.writes}; with --only or --rivals in place of these rows"
    )
    chosen = parser.parse_args()
    run, rows = RunFacts.now(), []
    for name, make in workloads(chosen.curves).items():
        if chosen.only and name not in chosen.only.replace("+", ",").split(","):
            continue
        workload = make()
        for rival in rivals():
            if rival.name.startswith(tuple(chosen.rivals.split(","))):
                runs = [campaign(workload, rival, seed=seed, enough=chosen.enough) for seed in range(chosen.seeds)]
                rows.append(_row(workload, rival, runs))
                print(PROFILING.printed(rows[-1:]).splitlines()[2], flush=True)
    if chosen.write and not chosen.curves:
        some = ("network", "rival") if chosen.only or chosen.rivals else ()
        PROFILING.store(rows, run, replaces=some)


def _row(workload: Workload, rival: Rival, runs: Sequence[Mapping[str, float | None]]) -> dict[str, object]:
    """A row of data/studies/profiling.csv: means over seeds."""

    def mean(name: str) -> str | None:
        values = [value for one in runs if (value := one[name]) is not None]
        return f"{100 * fmean(values):.2g}" if values else None

    names = {
        "measured_percent": "measured_share", "expected_regret_percent": "expected_regret",
        "checked_percent": "checked_regret", "regret_percent": "regret_mean", "regret_p95_percent": "regret_p95",
        "step_percent": "step_regret",
    }  # fmt: skip
    learning = None if rival.curve else f"{fmean(one['learning_s'] or 0.0 for one in runs):.1f}"
    return {
        "network": workload.name, "ops": len(workload.ops), "rival": rival.name,
        "cases_an_op": f"{fmean(one['cases_an_op'] or 0.0 for one in runs):.1f}",
        **{column: mean(name) for column, name in names.items()}, "learning_s": learning,
    }  # fmt: skip


if __name__ == "__main__":
    main()
