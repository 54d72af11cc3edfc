"""The demo's larger machine: a simulated Xeon Phi, where few cases of each op are measured and the rest is forecast."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from threadcast.cli.charts import CurvePlot
from threadcast.cli.followed_model import LEARNING_KIND
from threadcast.cli.output import Output
from threadcast.core import CurveTable, Machine, Measurement, OpGraph, Plan, Trace

if TYPE_CHECKING:
    from threadcast.collector.campaign_report import CampaignReport
    from threadcast.store import Store

NETWORK = ("googlenet", "paper", "forward")
"""Network, size and mode of the step that is planned: branches that can run side by side."""
ALIAS = "many_core"
"""Alias by which the service is asked for this machine's model."""
KINDS = ("roofline", "hill_climb", "patient_climb", "amdahl", "overhead_law", "universal_scalability")
"""Kinds of models that are judged on this machine where the real one has too few cases: those that take about a second
for its thousands of times."""
PLOTS = 8
"""Most curves shown, one of each kind of op: the one that takes most of the step."""


@dataclass(frozen=True, slots=True)
class ManyCoreReport:
    """The forecasts, the plan by them, and what the simulator says of both."""

    network: str
    """Name, size and mode."""
    machine: str
    graph: OpGraph
    model: str
    """Version of the model that forecast, as the service named it."""
    cases_measured: int
    cases: int
    """All legal cases of the graph's different ops."""
    cases_per_op: int
    curves_fetched: int
    expected_regret: float
    """The mean regret over the different ops that the campaign expected when it ended."""
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

    @property
    def cases_measured_share(self) -> float:
        """Measured cases over all legal cases of the different ops."""
        return self.cases_measured / self.cases

    @property
    def gain(self) -> float:
        """How many times as fast as the default the plan is, by true times."""
        return self.default_step_s / self.trace.makespan_s

    def to_json(self) -> dict[str, Any]:
        """The member `many_core` of summary.json."""
        return {
            "machine": self.machine,
            "simulated": True,
            "network": self.network,
            "ops": len(self.graph),
            "distinct_ops": len(self.graph.distinct_ops()),
            "model_served": self.model,
            "cases_measured": self.cases_measured,
            "cases_measured_share": self.cases_measured_share,
            "expected_regret": self.expected_regret,
            "regret_mean": self.regret_mean,
            "regret_all_cores": self.regret_all_cores,
            "predicted_step_s": self.plan.makespan_s,
            "planned_step_s": self.trace.makespan_s,
            "default_step_s": self.default_step_s,
            "predictions_over_http": self.curves_fetched,
        }


@dataclass(frozen=True, slots=True)
class Sampled:
    """The step of the larger machine, and the campaign that measured some cases of its ops."""

    network: str
    """Name, size and mode."""
    machine: Machine
    graph: OpGraph
    campaign: CampaignReport


def sample(output: Output, store: Store, models: Path) -> Sampled:
    """Measure the step's ops where a model asks for it, as `threadcast profile` does on a machine that nobody measured.

    The measurements are stored, and the model that learned from them is registered as `ALIAS`: the service has both.
    """
    from threadcast.collector.campaign import ENOUGH, MEAN_S, Campaign
    from threadcast.collector.campaign_report import CampaignProgress
    from threadcast.collector.simulated.source import SimulatedXeonPhi
    from threadcast.models import registry_of_kinds
    from threadcast.models.following import FollowedModel
    from threadcast.models.registry import ModelRegistry

    graph, network, phi = _graph(*NETWORK), " ".join(NETWORK), SimulatedXeonPhi(count=False)
    proposer = FollowedModel(registry_of_kinds.create(LEARNING_KIND, enough=ENOUGH))
    done = 0
    with output.progress(f"profiling {network} on {phi.machine.name}") as bar:

        def tell(progress: CampaignProgress) -> None:
            nonlocal done
            done = progress.done
            bar.update(progress.done, total=progress.total)

        # Simulated measurements take no time, so the campaign's clock counts what real ones would take on average.
        campaign = Campaign(phi, proposer, store, enough=ENOUGH, on_progress=tell, clock=lambda: done * MEAN_S)
        report = campaign.run(graph)
    registry = ModelRegistry(models)
    version = registry.save(
        proposer.model, trained_on={"measurements": report.measured, "simulated": True}, metrics={}
    )  # fmt: skip
    registry.set_alias(ALIAS, version)
    return Sampled(network, phi.machine, graph, report)


def measure_all(sampled: Sampled) -> list[Measurement]:
    """The simulated times of the step's different ops in every case."""
    from threadcast.collector.simulated.source import SimulatedXeonPhi
    from threadcast.collector.timing import Goal

    phi, measurements = SimulatedXeonPhi(count=False), []
    for case in sampled.machine.cases():
        with phi.at(case) as measure:
            measurements += [measure(op, Goal()) for op in sampled.graph.distinct_ops().values()]
    return measurements


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

    phi, graph, campaign = XeonPhi(), sampled.graph, sampled.campaign
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
    assert campaign.expected is not None  # as it followed a model
    return ManyCoreReport(
        network=sampled.network, machine=phi.machine.name, graph=graph, model=curves.model,
        cases_measured=sum(len({m.case for m in found}) for found in campaign.observed.values()),
        cases=len(rows) * len(phi.machine.cases()), cases_per_op=len(phi.machine.cases()), curves_fetched=len(rows),
        expected_regret=campaign.expected.mean,
        regret_mean=fmean(s / b - 1 for s, b in zip(chosen, best, strict=True)),
        regret_all_cores=fmean(s / b - 1 for s, b in zip(every, best, strict=True)),
        plan=planned, trace=trace,
        default_step_s=simulate(default, interference=interference).makespan_s,
        plots=_plots(sampled, curves, true),
    )  # fmt: skip


def _graph(network: str, size: str, mode: Any) -> OpGraph:
    """The step's graph without views; nothing is computed for it."""
    from threadcast.capture.workloads import capture_workload
    from threadcast.cli.real_ops import without_views
    from threadcast.networks import load

    return without_views(capture_workload(load(network, size), mode).graph)


def _all_cores(table: CurveTable) -> int:
    return max(range(len(table.cases)), key=lambda i: table.cases[i].threads)


def _plots(sampled: Sampled, curves: CurveTable, true: CurveTable) -> list[CurvePlot]:
    """The plot of the heaviest op of each kind, the kinds that take most of the step first."""
    graph, observed = sampled.graph, sampled.campaign.observed
    of_kind: dict[str, float] = defaultdict(float)
    of_op: dict[str, float] = defaultdict(float)
    rows: dict[str, int] = {}
    for row, op in enumerate(graph.ops):
        seconds = float(curves.seconds[row].min())
        of_kind[op.kind] += seconds
        of_op[op.key] += seconds
        rows.setdefault(op.key, row)
    chosen = [
        max((key for key, row in rows.items() if graph.ops[row].kind == kind), key=of_op.__getitem__)
        for kind in sorted(of_kind, key=of_kind.__getitem__, reverse=True)[:PLOTS]
    ]
    return [
        CurvePlot(
            graph.ids[rows[key]], curves[rows[key]], {m.case.threads: m.seconds for m in observed.get(key, ())},
            true[rows[key]], logarithmic=True,
        )
        for key in chosen
    ]  # fmt: skip
