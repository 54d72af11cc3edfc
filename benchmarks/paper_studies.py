"""The papers' experiments, repeated on the simulated Xeon Phi: numbers only, no tables.

Nothing here or below it is tuned on what it is compared with; the machine's constants come from two other tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from statistics import fmean

import numpy as np
import paper_networks

from threadcast.collector.simulated.co_run import XeonPhiCoRun
from threadcast.collector.simulated.demand import Library, demand
from threadcast.collector.simulated.source import SimulatedXeonPhi
from threadcast.collector.simulated.xeon_phi import XeonPhi
from threadcast.core import Affinity, Case, Curve, CurveTable, Measurement, Op, OpGraph
from threadcast.models.hill_climb import HillClimb
from threadcast.models.metrics import accuracy
from threadcast.scheduler.policies import Policy, Problem, create
from threadcast.scheduler.simulation.simulator import simulate

INTERVAL = 4
"""The hill climb's step for the strategies, as in the paper (III-C)."""
RECOMMENDED = {"inter": 1, "intra": 68}
"""TensorFlow's guide for one socket of 68 cores: the paper's baseline."""

model = XeonPhi()
CASES = model.machine.cases()
PROFILES = tuple(SimulatedXeonPhi(model, samples=1, seed=seed, count=False) for seed in range(5))
"""One training step per case, as the paper profiles; five times, since the choices of the strategies hang on noise."""
run_again = SimulatedXeonPhi(model, samples=1, seed=len(PROFILES), count=False)


@dataclass(frozen=True)
class Network:
    """A training step and its curves on the simulated machine."""

    name: str

    @cached_property
    def graph(self) -> OpGraph:
        return paper_networks.load(self.name)

    @cached_property
    def true_curves(self) -> CurveTable:
        """What an op takes, without noise, at every case; (n_ops, 68)."""
        return self._table({key: model.exact_curve(op) for key, op in self.graph.distinct_ops().items()})

    def climbed_curves(self, profile: SimulatedXeonPhi) -> CurveTable:
        """What the hill climb knows after profiling. Eigen's ops offer one case only: the paper leaves theirs alone."""
        curves = {}
        for key, op in self.graph.distinct_ops().items():
            if demand(op).library is Library.EIGEN:
                curves[key] = model.exact_curve(op)
            else:
                curves[key] = HillClimb().predict(op, climb(op, INTERVAL, profile), CASES, machine=model.machine)
        table = self._table(curves)
        for row, op in enumerate(self.graph.ops):
            if demand(op).library is Library.EIGEN:
                others = [i for i, case in enumerate(CASES) if case != eigen_case(op)]
                table.seconds[row, others] = np.inf
        return table

    def step_s(self, policy: Policy) -> float:
        """Simulated seconds of one training step."""
        co_run = XeonPhiCoRun(model, self.graph)
        return simulate(policy, true_curves=self.true_curves, interference=co_run).makespan_s

    @cache  # noqa: B019 - networks live as long as the process
    def uniform_s(self, inter: int, intra: int) -> float:
        """Simulated seconds with one setting for all ops."""
        problem = Problem(self.graph, self.true_curves, model.machine)
        return self.step_s(create("uniform", problem, inter=inter, intra=intra))

    def strategies_s(self, profile: SimulatedXeonPhi) -> list[float]:
        """Simulated seconds under strategies 1 and 2, 1 to 3, and all four, decided on what the hill climb knows."""
        problem = Problem(self.graph, self.climbed_curves(profile), model.machine)
        return [self.step_s(create(name, problem)) for name in ("strategies_1_2", "strategies_1_2_3", "strategies")]

    def _table(self, curves: dict[str, Curve]) -> CurveTable:
        return CurveTable.of([curves[op.key] for op in self.graph.ops])


@cache
def network(name: str) -> Network:
    return Network(name)


def eigen_case(op: Op) -> Case:
    """The case that stands for the part of Eigen's pool of 68 that the op takes."""
    threads = model.active_threads(op, 68)
    return Case(threads, Affinity.SPREAD) if threads <= 34 else Case(threads + threads % 2)


def climb(op: Op, interval: int, profile: SimulatedXeonPhi) -> list[Measurement]:
    """What the hill climb measures of an op, in its order."""
    climber, observed = HillClimb(interval=interval), []
    while (case := climber.propose(op, observed, model.machine)) is not None:
        observed.append(profile(op, case))
    return observed


def openmp_ops(name: str) -> list[Op]:
    """The different ops of a network whose thread counts the paper changes."""
    distinct = network(name).graph.distinct_ops().values()
    return [op for op in distinct if demand(op).library is not Library.EIGEN]


def climb_accuracy(name: str, interval: int) -> tuple[float, float]:
    """Table V: mean accuracy over ops on the cases that the climb did not run; of all such cases, and of those that
    lie between two that it ran."""
    climber, everywhere, between = HillClimb(interval=interval), [], []
    for op in openmp_ops(name):
        observed = climb(op, interval, PROFILES[0])
        ran = {measurement.case for measurement in observed}
        rest = [case for case in CASES if case not in ran]
        curve = climber.predict(op, observed, CASES, machine=model.machine)
        last = {affinity: max((c.threads for c in ran if c.affinity is affinity), default=0) for affinity in Affinity}
        for chosen, found in ((rest, everywhere), ([c for c in rest if c.threads < last[c.affinity]], between)):
            predicted = np.array([curve.at(case) for case in chosen])
            actual = np.array([judged_by(op)[case] for case in chosen])
            value = accuracy(actual, predicted)
            if value is not None:
                found.append(value)
    return fmean(everywhere), fmean(between)


@cache
def judged_by(op: Op) -> dict[Case, float]:
    """Seconds at every case in another run than those that the climb sees."""
    return {case: run_again(op, case).seconds for case in CASES}


def strategy_gains(name: str) -> dict[str, float]:
    """Gain of strategies 1 and 2 over the recommendation, of 3 over these, of 4 over those; and of all together.

    Means over `PROFILES`.
    """
    step = network(name)
    base = step.uniform_s(**RECOMMENDED)
    times = [[base, *step.strategies_s(profile)] for profile in PROFILES]
    stages = [fmean(run[i] / run[i + 1] - 1 for run in times) for i in range(3)]
    names = ("strategies_1_2", "strategy_3", "strategy_4")
    return {**dict(zip(names, stages)), "all": fmean(run[0] / run[3] - 1 for run in times)}


def lone_ms(name: str, kinds: Sequence[str]) -> float:
    """Milliseconds that all ops of these kinds take in one step, each alone with 68 threads."""
    step = network(name)
    column = CASES.index(Case(68))
    rows = [i for i, op in enumerate(step.graph.ops) if op.kind in kinds]
    return float(step.true_curves.seconds[rows, column].sum()) * 1e3


@cache
def graphi_step_s(name: str, executors: int) -> tuple[float, float]:
    """Step times of critical path first and of a shared queue, on equal executors that take 64 cores together."""
    step = network(name)
    problem = Problem(step.graph, step.true_curves, model.machine.limited_to(range(64)))
    first = step.step_s(create("critical_path", problem, executors=executors))
    queue = step.step_s(create("uniform", problem, inter=executors, intra=64 // executors))
    return first, queue
