"""`threadcast profile`: capture a network and time its ops at sampled thread counts."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Any

import click

from threadcast.cli import corun_tables
from threadcast.cli.counter_choice import chosen_counters, counters_option
from threadcast.cli.network_choice import NetworkChoice, network_options
from threadcast.cli.options import common, setting
from threadcast.cli.output import Output, table
from threadcast.core.figures import duration
from threadcast.core.settings import Settings

if TYPE_CHECKING:
    from threadcast.capture.capture import Captured
    from threadcast.collector.campaign import CampaignReport
    from threadcast.collector.counters.op_counters import CounterChoice
    from threadcast.collector.lone import CacheState, LoneOps
    from threadcast.collector.proposers import FixedProposer
    from threadcast.collector.timing import Goal
    from threadcast.core import Case, Machine, OpGraph

STEP_MEANS = 20
"""Time budget for timing the sequential step in one case, as a multiple of the mean budget for an op."""

SHOWN_FAILURES = 5


def _count_of_cases(context: click.Context, parameter: click.Parameter, value: str) -> int | None:
    if value == "all":
        return None
    if value.isascii() and value.isdigit() and int(value) > 0:
        return int(value)
    raise click.BadParameter(f"{value!r} must be all or a whole number of at least 1")


@click.command()
@network_options()
@click.option(
    "--cases", metavar="all|N", default="all", show_default=True, callback=_count_of_cases,
    help="How many thread counts and affinities to time, evenly spread.",
)  # fmt: skip
@setting("cores", "--cores")
@setting("profile.budget_s", "--budget-s")
@setting("profile.tolerance", "--tolerance")
@click.option(
    "--cache", type=click.Choice(["rotated", "warm", "cold"]), default="rotated", show_default=True,
    help="What ops find in the caches: their code, as in a step; their data too; or nothing.",
)  # fmt: skip
@counters_option
@click.option("--corun", is_flag=True, help="Also measure how much ops slow each other down side by side.")
@setting("corun", "--corun-dir")
@click.option("--allow-busy", is_flag=True, help="Time even while others use the cores.")
@setting("store", "--store")
@common
def command(
    output: Output,
    settings: Settings,
    network: NetworkChoice,
    cases: int | None,
    cache: CacheState,
    counter_choice: CounterChoice | None,
    corun: bool,
    allow_busy: bool,
) -> None:
    """Time the operations of NETWORK, a built-in one's name or FILE.py:function, each alone at sampled thread counts.

    Measurements and the graph are stored as they are made. What the store has already is not measured again, so an
    interrupted profile continues where it stopped. Freed memory stays in the process while it is timed, since how much
    of it the system would have to provide again differs from step to step. With --corun, some ops bound by memory, by
    arithmetic and by the call itself are timed beside each other on the two halves of the machine; plans then take it
    into account.
    """
    from threadcast.capture.workloads import capture_workload, default_mode, graph_name
    from threadcast.collector.corun import halves
    from threadcast.collector.lone import LoneOps
    from threadcast.collector.proposers import EvenlySpread, EveryCase
    from threadcast.collector.timing import Goal
    from threadcast.core.topology import read_machine
    from threadcast.threads.memory import keep_freed_memory

    keep_freed_memory()
    machine = read_machine(cores=settings["cores"])
    if corun:
        halves(machine)  # an error about a single core comes now, not after its ops are timed
    workload = network.load()
    mode = network.mode or default_mode(workload)
    captured = capture_workload(workload, mode, optimizer=network.optimizer)
    name = graph_name(workload, mode, optimizer=network.optimizer)
    output.note(f"{name}: {len(captured.graph)} ops, {len(captured.graph.distinct_ops())} distinct")
    counters = chosen_counters(output, settings, counter_choice, captured.graph, machine)
    lone = LoneOps(machine, cache=cache, counters=counters)
    proposer = EveryCase() if cases is None else EvenlySpread(cases)
    report = _measured(output, settings, name, captured.graph, lone, proposer, allow_busy=allow_busy)
    beside = None
    if corun:
        beside = corun_tables.measure(captured.graph, machine, settings, output, allow_busy=allow_busy)
    step_goal = Goal(settings["profile.tolerance"], budget_s=STEP_MEANS * settings["profile.budget_s"])
    rows = [_case_row(captured, report, machine, case, step_goal) for case in proposer.cases(machine)]
    document = {"graph": name, "machine": machine.fingerprint, **_summary(captured, report), "cases": rows}
    _warn(output, report, busy_limit=settings["profile.busy_limit"])
    tables = _shown(document)
    if beside is not None:
        document["corun"] = corun_tables.rows(beside)
        tables.append(corun_tables.shown(document["corun"]))
    output.result(document, *tables)


def _measured(
    output: Output, settings: Settings, name: str, graph: OpGraph, measurer: LoneOps, proposer: FixedProposer,
    *, allow_busy: bool,
) -> CampaignReport:  # fmt: skip
    """Store the graph under `name`, measure its ops while a progress bar is shown, and return the report."""
    from threadcast.collector.campaign import Campaign, CampaignProgress
    from threadcast.store import Store

    with Store.open(settings["store"]) as store, output.progress("timing ops") as bar:
        store.add_graph(name, graph)

        def show(progress: CampaignProgress) -> None:
            bar.update(progress.done - progress.reused, total=progress.total - progress.reused)

        campaign = Campaign(
            measurer, proposer, store,
            mean_s=settings["profile.budget_s"], tolerance=settings["profile.tolerance"],
            confidence=settings["profile.confidence"], counters=measurer.counters,
            busy_limit=None if allow_busy else settings["profile.busy_limit"], on_progress=show,
        )  # fmt: skip
        try:
            return campaign.run(graph)
        except KeyboardInterrupt:
            output.note("what was measured is kept; the same command goes on from here")
            raise


def _warn(output: Output, report: CampaignReport, *, busy_limit: float) -> None:
    for key, reason in list(report.failed.items())[:SHOWN_FAILURES]:
        output.warn(f"{key} was left out: {reason}")
    if report.load and report.load.share > busy_limit:
        output.warn(f"others used {report.load.share:.0%} of the cpus meanwhile: times are too long and scatter")


def _case_row(captured: Captured, report: CampaignReport, machine: Machine, case: Case, goal: Goal) -> dict[str, Any]:
    from threadcast.collector.steps import lone_sum_s, time_step

    step = time_step(captured.run, machine, case, goal=goal)
    step_s = median(sample.seconds for sample in step.samples)
    sum_s = lone_sum_s(captured.graph, report.observed, case)
    return {
        "threads": case.threads, "affinity": case.affinity.value, "ops_alone_s": sum_s, "step_s": step_s,
        "ratio": None if sum_s is None else sum_s / step_s, "step_converged": step.converged,
    }  # fmt: skip


def _summary(captured: Captured, report: CampaignReport) -> dict[str, Any]:
    found = [measurement for known in report.observed.values() for measurement in known]
    converged = sum(bool(measurement.conditions.get("converged")) for measurement in found)
    return {
        "ops": len(captured.graph), "distinct_ops": len(report.observed), "measured": report.measured,
        "reused": report.reused, "failed": dict(report.failed),
        "converged_share": converged / len(found) if found else None, "timing_s": report.elapsed_s,
        "others_share": report.load.share if report.load else None,
    }  # fmt: skip


def _shown(document: dict[str, Any]) -> list[Any]:
    columns = ("threads", "affinity", "ops_alone_s", "step_s", "ratio")
    share = document["converged_share"]
    lines = [
        f"{document['graph']} on {document['machine']}",
        f"{document['ops']} ops, {document['distinct_ops']} distinct: {document['measured']} measurements in "
        f"{duration(document['timing_s'])}, {document['reused']} known before, {len(document['failed'])} ops failed"
        + ("" if share is None else f"; {share:.0%} within the tolerance"),
    ]
    return [*lines, table(columns, [[row[column] for column in columns] for row in document["cases"]])]
