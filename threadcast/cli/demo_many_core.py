"""The demo's larger machine: a simulated Xeon Phi, where few cases of each op are measured and the rest is forecast."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from threadcast.cli.charts import CurvePlot
from threadcast.cli.output import Output
from threadcast.core import CurveTable, Machine, Measurement, OpGraph, Plan, Trace

if TYPE_CHECKING:
    from threadcast.store import Store

NETWORK = ("googlenet", "paper", "forward")
"""Network, size and mode of the step that is planned: branches that can run side by side."""
KNOWN = (("resnet50", "large", "forward"),)
"""The steps whose ops the model has learned from, at every case."""
SAMPLES = 3
"""Cases measured of each op of the new step."""
TITLE = " ".join(NETWORK)
ALIAS = "many_core"
"""Alias by which the service is asked for this machine's model."""
PLOTS = 8


@dataclass(frozen=True, slots=True)
class ManyCoreReport:
    """What came of it: forecasts, the plan by them, and what the simulator says of both."""

    machine: str
    graph: OpGraph
    model: str
    """Version of the model that forecast, as the service named it."""
    known_ops: int
    """Ops that the model has learned from, none of them one of the graph's."""
    cases_measured: int
    cases: int
    """All legal cases of the graph's different ops."""
    cases_per_op: int
    curves_fetched: int
    regret_mean: float
    """Mean over the different ops of how much longer the case chosen by forecast takes than the best one."""
    regret_all_cores: float
    """The same for the case with all cores."""
    plan: Plan
    trace: Trace
    """The plan with the simulator's true times and slow-downs."""
    default_step_s: float
    """The step with every op on all cores, one after the other, with true times."""
    plots: Sequence[CurvePlot]

    def to_json(self) -> dict[str, Any]:
        """The member `many_core` of summary.json."""
        return {
            "machine": self.machine,
            "simulated": True,
            "network": TITLE,
            "ops": len(self.graph),
            "distinct_ops": len(self.graph.distinct_ops()),
            "known_ops": self.known_ops,
            "model_served": self.model,
            "cases_measured": self.cases_measured,
            "cases_measured_share": self.cases_measured / self.cases,
            "regret_mean": self.regret_mean,
            "regret_all_cores": self.regret_all_cores,
            "predicted_step_s": self.plan.makespan_s,
            "planned_step_s": self.trace.makespan_s,
            "default_step_s": self.default_step_s,
            "predictions_over_http": self.curves_fetched,
        }


@dataclass(frozen=True, slots=True)
class Sampled:
    """The step of the larger machine and the few measurements of its ops, by op key."""

    machine: Machine
    graph: OpGraph
    known_ops: int
    observed: dict[str, tuple[Measurement, ...]]


def sample(output: Output, store: Store, models: Path, *, jobs: int) -> Sampled:
    """Learn from the known steps, register the model as `ALIAS`, and measure what it asks for of the new step.

    The measurements of the new step are stored, so that the service has them.
    """
    from threadcast.collector.campaign import Campaign
    from threadcast.collector.simulated.source import SimulatedXeonPhi
    from threadcast.models.learned_curve import LearnedCurve
    from threadcast.models.registry import ModelRegistry

    graph = _graph(*NETWORK)
    new = graph.distinct_ops()
    known = {key: op for which in KNOWN for key, op in _graph(*which).distinct_ops().items() if key not in new}
    phi = SimulatedXeonPhi(samples=1, count=False)
    output.note(f"{phi.machine.name}: learning from {len(known)} operations of other networks, sampling {TITLE}")
    model = LearnedCurve(samples=SAMPLES, jobs=jobs)
    model.fit([phi(op, case) for op in known.values() for case in phi.machine.cases()])
    registry = ModelRegistry(models)
    version = registry.save(model, trained_on={"ops": len(known), "simulated": True}, metrics={})
    registry.set_alias(ALIAS, version)
    report = Campaign(phi, model, store, busy_limit=None).run(graph)
    return Sampled(phi.machine, graph, len(known), dict(report.observed))


def fetch(url: str, sampled: Sampled, *, deadline_s: float) -> CurveTable:
    """The forecast curve of each op of the step, fetched from the service at `url`; ServiceError where it fails."""
    from threadcast.prediction.remote import RemotePredictor

    with RemotePredictor(url, sampled.machine, deadline_s=deadline_s, last_resort=False, model=ALIAS) as predictor:
        return predictor.curves(sampled.graph.ops)


def judge(sampled: Sampled, curves: CurveTable) -> ManyCoreReport:
    """Plan by the forecast `curves`, one row for each op of the graph, and judge both by the simulator's true times."""
    from threadcast.collector.simulated.co_run import XeonPhiCoRun
    from threadcast.collector.simulated.xeon_phi import XeonPhi
    from threadcast.scheduler.planner import plan
    from threadcast.scheduler.policies.plan_replay import PlanReplay
    from threadcast.scheduler.policies.registry import create
    from threadcast.scheduler.problem import Problem
    from threadcast.scheduler.simulation.simulator import simulate

    phi, graph = XeonPhi(), sampled.graph
    true = CurveTable.of([phi.exact_curve(op) for op in graph.ops])
    interference = XeonPhiCoRun(phi, graph)
    problem = Problem(graph, curves, phi.machine)
    planned = plan(problem)
    trace = simulate(PlanReplay(problem, plan=planned), true_curves=true, interference=interference)
    cores = len(phi.machine)
    default = create("uniform", Problem(graph, true, phi.machine), inter=1, intra=cores)
    rows = list({op.key: row for row, op in enumerate(graph.ops)}.values())
    best = true.seconds[rows].min(axis=1)
    chosen = [float(true[row].at(curves[row].best())) for row in rows]
    every = [float(true.seconds[row].item(_all_cores(true))) for row in rows]
    return ManyCoreReport(
        machine=phi.machine.name, graph=graph, model=curves.model, known_ops=sampled.known_ops,
        cases_measured=sum(len({m.case for m in found}) for found in sampled.observed.values()),
        cases=len(rows) * len(phi.machine.cases()), cases_per_op=len(phi.machine.cases()), curves_fetched=len(rows),
        regret_mean=fmean(s / b - 1 for s, b in zip(chosen, best, strict=True)),
        regret_all_cores=fmean(s / b - 1 for s, b in zip(every, best, strict=True)),
        plan=planned, trace=trace,
        default_step_s=simulate(default, interference=interference).makespan_s,
        plots=_plots(sampled, curves),
    )  # fmt: skip


def _graph(network: str, size: str, mode: Any) -> OpGraph:
    """The step's graph without views; nothing is computed for it."""
    from threadcast.capture.workloads import capture_workload
    from threadcast.core.real_ops import without_views
    from threadcast.networks import load

    return without_views(capture_workload(load(network, size), mode).graph)


def _all_cores(table: CurveTable) -> int:
    return max(range(len(table.cases)), key=lambda i: table.cases[i].threads)


def _plots(sampled: Sampled, curves: CurveTable) -> list[CurvePlot]:
    """Plots of the ops that take most of the step."""
    graph = sampled.graph
    seconds: dict[str, float] = {}
    first: dict[str, int] = {}
    for row, op in enumerate(graph.ops):
        seconds[op.key] = seconds.get(op.key, 0.0) + float(curves.seconds[row].min())
        first.setdefault(op.key, row)
    heaviest = sorted(seconds, key=seconds.__getitem__, reverse=True)[:PLOTS]
    return [
        CurvePlot(graph.ids[first[key]], curves[first[key]],
                  {m.case.threads: m.seconds for m in sampled.observed.get(key, ())})
        for key in heaviest
    ]  # fmt: skip
