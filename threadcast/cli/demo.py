"""`threadcast demo`: all stages once, with real measurements, on networks small enough for any machine."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from threadcast.cli.demo_report import STEP_COLUMNS, RunReport, page, summary, verdict
from threadcast.cli.demo_service import service
from threadcast.cli.followed_model import CHAMPION, LEARNING_KIND
from threadcast.cli.options import common
from threadcast.cli.output import Output, table
from threadcast.core import CurveTable, Machine, Measurement, Source, read_machine
from threadcast.core.json_writing import write_json
from threadcast.core.measurement import mostly_disturbed
from threadcast.core.settings import Settings

if TYPE_CHECKING:
    from threadcast.capture.graph.captured import Captured
    from threadcast.capture.workloads import Mode
    from threadcast.collector.busy import LoadWatch
    from threadcast.store import Store

WORKLOADS: tuple[tuple[str, str, Mode], ...] = (
    ("lstm", "tiny", "training"),
    ("inception_block", "small", "training"),
    ("inception_block", "small", "forward"),
)
"""An op-rich recurrent step, a step with branches, and an inference: (network, size, mode)."""

MOST_CORES = 8
"""Most cores that are used: every op is timed at every case, and the demo has to end within minutes."""
MEAN_S = 0.04
"""Mean seconds for one op in one case: 140 ops at 2 cases take a quarter of a minute."""
RUN_S = 5.0
"""Seconds after which no more steps of a network are begun once there are enough; on two cores they take a second."""
DEADLINE_S = 10.0
"""Longest wait for the service's answer; a scheduler that runs a network would wait far less."""


@dataclass(frozen=True, slots=True)
class _Network:
    name: str
    graph_name: str
    captured: Captured
    eager: Callable[[], object]
    """Runs the same step by eager PyTorch, on a model of its own."""


@click.command()
@click.option(
    "--output", "folder", type=click.Path(file_okay=False, path_type=Path), default=Path("build/demo"),
    show_default=True, help="Folder for report.html, summary.json, measurements and models.",
)  # fmt: skip
@click.option(
    "--steps", type=click.IntRange(3, 1000), default=30, show_default=True, help="Most steps timed of each kind."
)
@common
def command(output: Output, settings: Settings, folder: Path, steps: int) -> None:
    """Measure, learn, serve, plan and run small networks, and write a report of the gains.

    Earlier measurements and models in the folder are replaced. Where others use the cores, up to 30 s are waited for a
    quiet moment; then what they disturb is measured again, and else called disturbed.
    """
    from threadcast.collector.busy import LoadWatch, load_document
    from threadcast.store import Store

    machine = read_machine(cores=min(MOST_CORES, len(read_machine())))
    watch = LoadWatch.of(machine)
    folder.mkdir(parents=True, exist_ok=True)
    store_path, models = folder / "measurements.db", folder / "models"
    for old in folder.glob("measurements.db*"):
        old.unlink()
    if models.exists():
        shutil.rmtree(models)
    with Store.open(store_path) as store:
        output.note("recording the networks")
        networks = [_capture(*which) for which in WORKLOADS]
        observed, measuring = _measure(output, machine, store, networks, watch)
        version = _learn(store, models, machine)
        output.note("starting the prediction service")
        with service(store_path, models, log=folder / "service.log") as url:
            curves = _fetch(url, machine, networks)
        watch.wait(output.note)
        runs = [_run(output, machine, one, curves[one.name], observed, watch, steps=steps) for one in networks]
        for one, run in zip(networks, runs, strict=True):
            store.add_run(one.graph_name, machine, plan=run.plan, trace=run.trace)
    load = load_document(watch.overall(), disturbed=any(run.disturbed for run in runs), what="times")
    document = summary(machine, observed, version, runs) | load | measuring
    document = {"verdict": verdict(runs, machine, load["load"]), **document}
    write_json(folder / "summary.json", document)
    (folder / "report.html").write_text(page(machine, runs, document), encoding="utf-8")
    said = f"{document['predictions_over_http']} curves came over HTTP from {version}. Report: {folder / 'report.html'}"
    steps_table = table(STEP_COLUMNS, [run.row() for run in runs], unneeded=(("ops", "lower bound"),))
    output.result(
        document, document["verdict"], "", steps_table, *filter(None, [run.why_default for run in runs]),
        f"{document['measuring']}. {said}",
    )  # fmt: skip


def _capture(name: str, size: str, mode: Mode) -> _Network:
    from threadcast.capture.workloads import capture_workload, eager_step, graph_name
    from threadcast.networks import load

    batch = 1 if name == "inception_block" else None
    work = load(name, size, batch=batch)
    captured = capture_workload(work, mode)
    return _Network(f"{name} {mode}", graph_name(work, mode), captured, eager_step(load(name, size, batch=batch), mode))


def _measure(
    output: Output, machine: Machine, store: Store, networks: Sequence[_Network], watch: LoadWatch
) -> tuple[dict[str, list[Measurement]], dict[str, Any]]:
    """Measure every op of every network in every case; return the measurements by op key, and what the document says of
    how they were made."""
    from threadcast.collector.campaign import Campaign
    from threadcast.collector.campaign_checks import disturbed_cases
    from threadcast.collector.campaign_report import CampaignProgress
    from threadcast.collector.lone import LoneOps
    from threadcast.collector.proposers import EveryCase

    observed: dict[str, list[Measurement]] = {}
    repeated = 0
    for network in networks:
        store.add_graph(network.graph_name, network.captured.graph)
        with output.progress(f"timing {network.name}") as bar:

            def tell(progress: CampaignProgress, bar: Any = bar) -> None:
                bar.update(progress.done, total=progress.total)

            campaign = Campaign(
                LoneOps(machine), EveryCase(), store, mean_s=MEAN_S, watch=watch, say=output.note, on_progress=tell,
            )  # fmt: skip
            report = campaign.run(network.captured.graph)
        for key, reason in report.failed.items():
            output.warn(f"{key} was left out: {reason}")
        observed.update({key: list(found) for key, found in report.observed.items() if found})
        repeated += report.repeated
        output.note(f"{network.name}: {len(network.captured.graph)} ops, {report.measured} measurements")
    disturbed, cases = len(disturbed_cases(observed)), len(observed) * len(machine.cases())
    said = f"{disturbed} of {cases} times of ops are disturbed, after {repeated} were measured again"
    return observed, {
        "disturbed_cases": disturbed, "repeated": repeated, "measuring": said if disturbed or repeated else
        f"none of {cases} times of ops is disturbed",
    }  # fmt: skip


def _learn(store: Store, models: Path, machine: Machine) -> str:
    """Let a model learn what was measured here; register it, and return its version."""
    from threadcast.models import registry_of_kinds
    from threadcast.models.registry import ModelRegistry

    measurements, registry = store.measurements(machine=machine.fingerprint), ModelRegistry(models)
    version = registry.save(
        registry_of_kinds.create(LEARNING_KIND).fit(measurements),
        trained_on={"measurements": len(measurements)}, metrics={},
    )  # fmt: skip
    registry.set_alias(CHAMPION, version)
    return version


def _fetch(url: str, machine: Machine, networks: Sequence[_Network]) -> dict[str, CurveTable]:
    """The networks' curves by name, fetched over HTTP from the service at `url`."""
    from threadcast.prediction.remote import RemotePredictor

    with RemotePredictor(url, machine, deadline_s=DEADLINE_S, last_resort=False) as predictor:
        return {one.name: predictor.curves(one.captured.graph.ops) for one in networks}


def _run(
    output: Output, machine: Machine, network: _Network, curves: CurveTable,
    observed: Mapping[str, Sequence[Measurement]], watch: LoadWatch, *, steps: int,
) -> RunReport:  # fmt: skip
    """Plan the network, then run eager steps and planned steps in turn on the real cores."""
    from threadcast.cli.comparison import compare
    from threadcast.runtime.engine.engine import Engine
    from threadcast.scheduler.planner import plan
    from threadcast.scheduler.problem import Problem
    from threadcast.scheduler.problem.engine_costs import NATIVE_ENGINE

    graph = network.captured.graph
    planned = plan(Problem(graph, NATIVE_ENGINE.added(curves), machine))
    output.note(f"running {network.name} by a plan of {planned.policy}")
    captured = network.captured
    with Engine(captured, planned, machine) as engine:
        result = compare(engine, captured.bind(), network.eager, steps=steps, watch=watch, most_s=RUN_S)
    measured = [m for key in graph.distinct_ops() for m in observed.get(key, ())]
    return RunReport(
        name=network.name, graph=graph, plan=planned, trace=result.trace, verdict=result.verdict,
        default_step_s=result.median_s("default"), planned_step_s=result.median_s("plan"),
        disturbed=result.disturbed, interval=result.interval,
        forecast_disturbed=mostly_disturbed(measured),
        rough=bool((curves.source == list(Source).index(Source.EXTRAPOLATED)).mean() > 0.5),
    )  # fmt: skip
