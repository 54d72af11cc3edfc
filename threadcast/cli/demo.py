"""`threadcast demo`: all stages once, with real measurements, on networks small enough for any machine."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from threadcast.cli.charts import CurvePlot
from threadcast.cli.demo_report import RunReport, page
from threadcast.cli.demo_service import service
from threadcast.cli.options import common
from threadcast.cli.output import Output, table
from threadcast.core import CurveTable, Machine, Measurement, read_machine
from threadcast.core.figures import duration
from threadcast.core.json_writing import write_json
from threadcast.core.settings import Settings

if TYPE_CHECKING:
    from threadcast.capture.capture import Captured
    from threadcast.capture.workloads import Mode
    from threadcast.store import Store

WORKLOADS: tuple[tuple[str, str, Mode], ...] = (
    ("lstm", "tiny", "training"),
    ("inception_block", "small", "training"),
    ("inception_block", "small", "forward"),
)
"""An op-rich recurrent step, a step with branches, and an inference: (network, size, mode)."""

MOST_CORES = 8
"""Most cores that are used: every op is timed at every case, and the demo has to end within minutes."""
MEAN_S = 0.06
"""Mean seconds for one op in one case: 200 ops at 2 cases take half a minute."""
DEADLINE_S = 10.0
"""Longest wait for the service's answer; a scheduler that runs a network would wait far less."""
PLOTS = 8
"""Number of curves shown for each network: those of the ops with most time."""


@dataclass(frozen=True, slots=True)
class _Network:
    name: str
    graph_name: str
    captured: Captured
    eager: Callable[[], object]
    """Runs the same step by eager PyTorch, on a model of its own."""


@click.command()
@click.option(
    "--output",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("build/demo"),
    show_default=True,
    help="Folder for report.html, summary.json, measurements and models.",
)
@click.option("--steps", type=click.IntRange(3, 1000), default=30, show_default=True, help="Steps timed of each kind.")
@click.option("--allow-busy", is_flag=True, help="Time although others use the cores.")
@common
def command(output: Output, settings: Settings, folder: Path, steps: int, allow_busy: bool) -> None:  # fmt: skip
    """Measure, learn, serve, plan and run small networks, and write a report of the gains.

    Earlier measurements and models in the folder are replaced.
    """
    from threadcast.store import Store

    machine = read_machine(cores=min(MOST_CORES, len(read_machine())))
    folder.mkdir(parents=True, exist_ok=True)
    store_path, models = folder / "measurements.db", folder / "models"
    for old in folder.glob("measurements.db*"):
        old.unlink()
    if models.exists():
        shutil.rmtree(models)
    with Store.open(store_path) as store:
        networks = [_capture(*which) for which in WORKLOADS]
        observed = _measure(output, machine, store, networks, allow_busy=allow_busy)
        rows, version = _learn(output, store, models, jobs=len(machine))
        curves, over_http = _fetch(output, store_path, models, machine, networks, log=folder / "service.log")
        runs = [_run(output, machine, one, curves[one.name], observed, steps=steps) for one in networks]
    summary = _summary(machine, networks, observed, rows, version, over_http, runs)
    write_json(folder / "summary.json", summary)
    (folder / "report.html").write_text(_page(machine, runs, rows, summary), encoding="utf-8")
    output.result(
        summary,
        _models_table(rows),
        _runs_table(runs),
        f"{over_http} curves came over HTTP from {version}. Report: {folder / 'report.html'}",
    )


def _capture(name: str, size: str, mode: Mode) -> _Network:
    from threadcast.capture.workloads import capture_workload, eager_step, graph_name
    from threadcast.networks import load

    batch = 1 if name == "inception_block" else None
    work = load(name, size, batch=batch)
    captured = capture_workload(work, mode)
    return _Network(f"{name} {mode}", graph_name(work, mode), captured, eager_step(load(name, size, batch=batch), mode))


def _measure(
    output: Output, machine: Machine, store: Store, networks: Sequence[_Network], *, allow_busy: bool
) -> dict[str, list[Measurement]]:
    """Measure every op of every network in every case; return the measurements by op key."""
    from threadcast.collector.busy import LIMIT
    from threadcast.collector.campaign import Campaign, CampaignProgress
    from threadcast.collector.lone import LoneOps
    from threadcast.collector.proposers import EveryCase

    observed: dict[str, list[Measurement]] = {}
    for network in networks:
        store.add_graph(network.graph_name, network.captured.graph)
        with output.progress(f"timing {network.name}") as bar:

            def tell(progress: CampaignProgress, bar: Any = bar) -> None:
                bar.update(progress.done, total=progress.total)

            campaign = Campaign(
                LoneOps(machine), EveryCase(), store, mean_s=MEAN_S, busy_limit=None if allow_busy else LIMIT,
                on_progress=tell,
            )  # fmt: skip
            report = campaign.run(network.captured.graph)
        for key, reason in report.failed.items():
            output.warn(f"{key} was left out: {reason}")
        observed.update({key: list(found) for key, found in report.observed.items() if found})
        output.note(f"{network.name}: {len(network.captured.graph)} ops, {report.measured} measurements")
    return observed


def _learn(output: Output, store: Store, models: Path, *, jobs: int) -> tuple[list[dict[str, Any]], str]:
    """Compare every kind of model, register the one with the least regret, and return the table and the version."""
    from threadcast.models import registry_of_kinds
    from threadcast.models.evaluation import evaluate
    from threadcast.models.registry import ModelRegistry
    from threadcast.models.splits import new_network

    measurements = store.measurements()
    cases = len({measurement.case for measurement in measurements})
    samples = max(1, cases // 4)
    options = {name: {"samples": samples} for name in registry_of_kinds.REGRESSORS}
    candidates = [(name, registry_of_kinds.create(name, **options.get(name, {}))) for name in registry_of_kinds.names()]
    with output.progress("comparing models") as bar:
        evaluation = evaluate(
            measurements, candidates, split=new_network(store.networks_of()), split_name="new_network", jobs=jobs,
            progress=lambda done, total: bar.update(done, total=total),
        )  # fmt: skip
    rows = [row.to_json() for row in evaluation.rows]
    judged = [row for row in rows if row["regret_mean"] is not None and not row["unusable"]]
    best = min(judged, key=lambda row: (row["regret_mean"], row["samples"]))
    chosen = registry_of_kinds.create(best["model"], **options.get(best["model"], {})).fit(measurements)
    registry = ModelRegistry(models)
    version = registry.save(chosen, trained_on={"measurements": len(measurements)}, metrics={"new_network": best})
    registry.set_alias("champion", version)
    return rows, version


def _fetch(
    output: Output, store: Path, models: Path, machine: Machine, networks: Sequence[_Network], *, log: Path
) -> tuple[dict[str, CurveTable], int]:
    """The networks' curves by name, fetched over HTTP from a service that runs meanwhile, and the number of distinct
    ops."""
    from threadcast.prediction.remote import RemotePredictor

    output.note("starting the prediction service")
    with service(store, models, log=log) as url:
        predictor = RemotePredictor(url, machine, deadline_s=DEADLINE_S, last_resort=False)
        curves = {one.name: predictor.curves(one.captured.graph.ops) for one in networks}
    keys = {op.key for one in networks for op in one.captured.graph.ops}
    return curves, len(keys)


def _run(
    output: Output,
    machine: Machine,
    network: _Network,
    curves: CurveTable,
    observed: Mapping[str, Sequence[Measurement]],
    *,
    steps: int,
) -> RunReport:
    """Plan the network, then run eager steps and planned steps in turn on the real cores."""
    from threadcast.runtime.engines.open_engine import engine_costs, open_engine
    from threadcast.runtime.tuning.comparison import compare
    from threadcast.scheduler.planner import plan
    from threadcast.scheduler.problem import Problem

    graph = network.captured.graph
    planned = plan(Problem(graph, engine_costs().added(curves), machine))
    output.note(f"running {network.name} by a plan of {planned.policy}")
    captured = network.captured
    with open_engine(captured, planned, machine) as engine:
        result = compare(engine, captured.bind(), network.eager, steps=steps)
    weights: dict[int, float] = {}
    for i, op in enumerate(graph.ops):
        first = graph.ops.index(op)
        weights[first] = weights.get(first, 0.0) + float(curves.seconds[i].min())
    heaviest = sorted(weights, key=weights.__getitem__, reverse=True)[:PLOTS]
    plots = [
        CurvePlot(graph.ids[i], curves[i], {m.case.threads: m.seconds for m in observed.get(graph.ops[i].key, ())})
        for i in heaviest
    ]
    verdict = result.verdict
    return RunReport(
        name=network.name, graph=graph, plan=planned, trace=result.trace, plots=plots, kept=verdict.kept,
        default_step_s=result.median_s("default"), planned_step_s=result.median_s("plan"),
        spread=f"{verdict.low:.2f} to {verdict.high:.2f}",
    )  # fmt: skip


def _summary(
    machine: Machine,
    networks: Sequence[_Network],
    observed: Mapping[str, Sequence[Measurement]],
    rows: Sequence[dict[str, Any]],
    version: str,
    over_http: int,
    runs: Sequence[RunReport],
) -> dict[str, Any]:
    """The content of summary.json. Step times and bounds are given by network, and at the top their sums."""
    keys = {op.key for one in networks for op in one.captured.graph.ops}
    each: dict[str, dict[str, Any]] = {
        run.name: {
            "ops": len(run.graph), "lower_bound_s": run.plan.lower_bound_s, "predicted_step_s": run.plan.makespan_s,
            "default_step_s": run.default_step_s, "planned_step_s": run.planned_step_s, "policy": run.plan.policy,
            "guard_keeps": run.kept, "spread": run.spread,
        }
        for run in runs
    }  # fmt: skip
    summed = {
        name: sum(one[name] for one in each.values())
        for name in ("lower_bound_s", "predicted_step_s", "default_step_s", "planned_step_s")
    }
    return {
        "machine": machine.fingerprint,
        "cores": len(machine),
        "ops_measured": sum(key in observed for key in keys),
        "measured_share": sum(key in observed for key in keys) / len(keys),
        "models": {row["model"]: {"accuracy": row["accuracy"], "regret": row["regret_mean"]} for row in rows},
        "model_served": version,
        "predictions_over_http": over_http,
        **summed,
        "networks": each,
    }


def _models_table(rows: Sequence[dict[str, Any]]) -> Any:
    columns = ("model", "samples", "accuracy", "regret_mean", "fit_s", "predict_us")
    return table(columns, [[row[name] for name in columns] for row in rows], title="Models, one network left out")


def _runs_table(runs: Sequence[RunReport]) -> Any:
    columns = ("step", "default_s", "planned_s", "gain", "predicted_s", "bound_s", "keeps")
    lines = [
        [run.name, run.default_step_s, run.planned_step_s, run.default_step_s / run.planned_step_s,
         run.plan.makespan_s, run.plan.lower_bound_s, run.kept]
        for run in runs
    ]  # fmt: skip
    return table(columns, lines, title="Steps, medians")


def _page(
    machine: Machine, runs: Sequence[RunReport], rows: Sequence[dict[str, Any]], summary: Mapping[str, Any]
) -> str:
    facts = (
        f"{summary['ops_measured']} distinct operations measured, {summary['measured_share']:.0%} of all",
        f"{summary['predictions_over_http']} curves fetched over HTTP from {summary['model_served']}",
        f"all steps together: {duration(summary['default_step_s'])} by default, "
        f"{duration(summary['planned_step_s'])} planned, {duration(summary['predicted_step_s'])} predicted",
    )
    return page(machine=f"{machine.name}, {len(machine)} cores", runs=runs, models=rows, facts=facts)
