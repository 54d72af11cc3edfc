"""`threadcast run`: a network by a plan, beside the framework's default, on the real cores."""

from __future__ import annotations

from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np
from click.core import ParameterSource

from threadcast.cli.corun_tables import interference_of, learn
from threadcast.cli.network_choice import NetworkChoice, network_options
from threadcast.cli.options import NewFile, common, predictor_options, setting
from threadcast.cli.output import Output, table
from threadcast.cli.plan_input import (
    chosen_machines,
    chosen_predictor,
    chosen_store,
    remote_remarks,
    unmeasured_remarks,
)
from threadcast.core import Case, Machine, Measurement, OpGraph, Plan, Trace, read_machine
from threadcast.core.errors import ModelError, NoStore, PlanError
from threadcast.core.figures import duration
from threadcast.core.gains import Gain
from threadcast.core.json_writing import write_json
from threadcast.core.measurement import mostly_disturbed
from threadcast.core.settings import Settings
from threadcast.drawing import timeline
from threadcast.scheduler.planner import plan as make_plan
from threadcast.scheduler.policies import Problem
from threadcast.scheduler.problem.engine_costs import NATIVE_ENGINE
from threadcast.store.holding import all_that_holds

if TYPE_CHECKING:
    from threadcast.cli.comparison import Comparison

TRACED = 10
"""Number of steps that are traced to find pairs of ops that slow each other down; medians over them tolerate a few
disturbed steps."""

_PLANNING = {"policy": "--policy", "model": "--model", "_predictor_url": "--url"}
"""Options that say how a plan is made, by the name of the parameter."""


@click.command()
@network_options()
@setting("cores", "--cores")
@click.option("--policy", default="auto", show_default=True, help="Name of a policy, or auto: the best of several.")
@click.option(
    "--plan",
    "plan_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Run this plan in place of making one.",
)
@click.option(
    "--steps", type=click.IntRange(3, 100_000), default=30, show_default=True, help="Steps timed of each kind."
)
@click.option(
    "--model",
    help="Registered model, its alias, or a kind [default: the champion, else joint_process].",
)
@click.option("--no-corun", is_flag=True, help="Plan as if ops did not slow each other down, and note none that do.")
@setting("corun", "--corun-dir")
@predictor_options
@click.option(
    "--timeline",
    "timeline_file",
    type=NewFile(),
    help="Write predicted and actual here, as a timeline that ui.perfetto.dev opens.",
)
@click.option("--trace", "trace_file", type=NewFile(), help="Write the trace here.")
@common
def command(
    output: Output, settings: Settings, network: NetworkChoice, policy: str, plan_file: Path | None, steps: int,
    no_corun: bool, model: str | None, timeline_file: Path | None, trace_file: Path | None,
) -> None:  # fmt: skip
    """Run NETWORK, a built-in one's name or FILE.py:function, by a plan and by PyTorch's default, in turns.

    Times of ops that were not measured (threadcast profile) are rough forecasts, unless --plan gives a plan. Default is
    eager PyTorch with all threads; sequential is the captured graph op by op on 1, 2, 4, ... and all cores. The guard
    keeps the plan where it is clearly faster in these turns. Pairs of ops that were much slower side by side than alone
    are stored, and later plans keep them apart. Where others use the cores, up to 30 s are waited for a quiet moment,
    rounds that they disturbed are run again, and what is still disturbed is called so, with wider intervals. The plan
    and its trace are stored with the measurements, for the pages of `threadcast serve`.
    """
    if plan_file is not None:
        _refuse_planning(click.get_current_context())
    from threadcast.capture.workloads import capture_workload, default_mode, eager_step, graph_name
    from threadcast.cli.comparison import compare
    from threadcast.collector.busy import LoadWatch, load_document
    from threadcast.runtime.engine.engine import Engine
    from threadcast.runtime.plans.sequential import sequential

    watch = LoadWatch.of(read_machine(cores=settings["cores"]))
    workload = network.load()
    mode = network.mode or default_mode(workload)
    captured = capture_workload(workload, mode, optimizer=network.optimizer)
    if plan_file is not None:
        (planned, machine), problem = _read_plan(plan_file, captured.graph, settings), None
        forecast_disturbed = False
    else:
        problem, forecast_disturbed = _problem(network, model, captured.graph, settings, output)
        machine = problem.machine
        interference = interference_of(problem, settings, output, off=no_corun)
        planned = make_plan(problem, policy=policy, interference=interference)
    eager = eager_step(network.load(), mode, optimizer=network.optimizer)
    bad = None
    watch.wait(output.note)
    with ExitStack() as engines, output.progress("running steps", total=steps) as bar:
        engine = engines.enter_context(Engine(captured, planned, machine))
        others = {
            f"sequential, {threads} threads": engines.enter_context(
                Engine(captured, sequential(captured.graph, machine, Case(threads)), machine)
            )
            for threads in _thread_counts(machine)
        }
        inputs = captured.bind()
        result = compare(
            engine, inputs, eager, others=others, steps=steps, watch=watch, progress=lambda done, _: bar.update(done)
        )
        if problem is not None and not no_corun and not result.disturbed:
            traces = [engine.run_traced(inputs)[1] for _ in range(TRACED)]
            bad = learn(problem, traces, settings)
    if problem is not None and not settings["predictor.url"]:
        _store_run(graph_name(workload, mode, optimizer=network.optimizer), planned, result.trace, machine, settings)
    if timeline_file is not None:
        timeline.write(timeline_file, plan=planned, trace=result.trace, graph=captured.graph)
    if trace_file is not None:
        write_json(trace_file, result.trace.to_json())
    load = load_document(watch.overall(), disturbed=result.disturbed)
    document = {**_document(captured.graph, planned, machine, result), **load, "bad_pairs": bad}
    document["forecast_disturbed"] = forecast_disturbed
    output.result(document, *_shown(document))


def _refuse_planning(context: click.Context) -> None:
    """Raise UsageError for an option that would have no effect, since no plan is made."""
    for name, flag in _PLANNING.items():
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise click.UsageError(f"{flag} says how a plan is made, and --plan gives one; leave out one of them")


def _problem(
    network: NetworkChoice, model: str | None, graph: OpGraph, settings: Settings, output: Output
) -> tuple[Problem, bool]:
    """The problem, and whether most of the measurements by which its times are forecast here are disturbed."""
    with ExitStack() as stores:
        measured, machine = chosen_machines(None, settings, stores)
        predictor = chosen_predictor(model, measured, settings, stores)
        try:
            curves = predictor.curves(graph.ops)
        except ModelError as error:
            raise ModelError(f"{error}; `{network.profiling}` measures its ops") from error
        for remark in [*remote_remarks(predictor), *unmeasured_remarks(graph.ops, curves, network.profiling)]:
            output.warn(remark)
        held: list[Measurement] = []
        if not settings["predictor.url"]:
            with suppress(NoStore):
                store, keys = chosen_store(settings, stores), graph.distinct_ops()
                held = all_that_holds(store.measurements(machine=measured.fingerprint, keys=keys), store.changes)
        return Problem(graph, NATIVE_ENGINE.added(curves), machine), mostly_disturbed(held)


def _store_run(graph: str, planned: Plan, trace: Trace, machine: Machine, settings: Settings) -> None:
    """Store the run for the service's pages, if there is a store and it has the graph."""
    from threadcast.store import Store

    with suppress(NoStore), Store.open(settings["store"], create=False) as store:
        if graph in store.graphs():
            store.add_run(graph, machine, plan=planned, trace=trace)


def _read_plan(path: Path, graph: OpGraph, settings: Settings) -> tuple[Plan, Machine]:
    from threadcast.scheduler import check_schedule

    planned = Plan.read(path)
    machine = read_machine(cores=settings["cores"])
    try:
        check_schedule(graph, planned, machine=machine, oversubscribed=True)
    except PlanError as error:
        raise PlanError(f"{path} is no plan of this network's graph for {len(machine)} cores: {error}") from error
    return planned, machine


def _thread_counts(machine: Machine) -> list[int]:
    """Thread counts: the powers of two up to the number of cores, and that number."""
    return sorted({2**i for i in range(len(machine).bit_length())} | {len(machine)})


def _document(graph: OpGraph, planned: Plan, machine: Machine, result: Comparison) -> dict[str, Any]:
    contenders = []
    for name, times_s in result.seconds.items():
        low, median, high = np.quantile(times_s, [0.25, 0.5, 0.75])
        gain = result.gain(name)
        contenders.append({
            "what": name, "median_s": median, "low_s": low, "high_s": high,
            "gain": gain.gain, "gain_low": gain.low, "gain_high": gain.high,
        })  # fmt: skip
    verdict = result.verdict
    return {
        "machine": machine.fingerprint, "ops": len(graph), "policy": planned.policy, "cores": planned.cores,
        "curves_from": planned.curves_from, "contenders": contenders, "predicted_s": planned.makespan_s,
        "lower_bound_s": planned.lower_bound_s, "guard_keeps": verdict.kept,
        "gain": {"median": verdict.gain, "low": verdict.low, "high": verdict.high},
        "why": f"the plan was {verdict.against('the default')}", "interval": result.interval,
        "repeated_rounds": result.repeated,
    }  # fmt: skip


def _shown(document: dict[str, Any]) -> list[Any]:
    rows = [
        [c["what"], c["median_s"], c["low_s"], c["high_s"], str(Gain(c["gain"], c["gain_low"], c["gain_high"], 0))]
        for c in document["contenders"]
    ]
    return [
        f"{document['ops']} ops by {document['policy']} on {document['cores']} cores of {document['machine']}",
        table(("step", "median_s", "25 %_s", "75 %_s", "gain"), rows),
        f"predicted {duration(document['predicted_s'])}, lower bound "
        + (duration(document["lower_bound_s"]) if document["lower_bound_s"] else "not known")
        + ("; disturbed: others used the CPUs while most ops were measured" if document["forecast_disturbed"] else ""),
        f"the guard keeps the {document['guard_keeps']}: {document['why']}; in brackets the {document['interval']}",
        document["load"],
    ]
