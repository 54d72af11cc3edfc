"""`threadcast profile`: capture a network and time its ops at sampled thread counts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from threadcast.cli.counter_choice import chosen_counters, counters_option, counters_read
from threadcast.cli.network_choice import NetworkChoice, network_options
from threadcast.cli.options import common, setting
from threadcast.cli.output import Output
from threadcast.cli.profile_tables import case_row, choice_rows, shown, summary
from threadcast.cli.timed_cases import FixedCases, cases_option, either_cases_or_model, fixed_proposer
from threadcast.collector.campaign_checks import DRIFT
from threadcast.core.errors import ModelError
from threadcast.core.figures import percent
from threadcast.core.settings import Settings

if TYPE_CHECKING:
    from threadcast.cli.followed_model import Followed
    from threadcast.collector.busy import LoadWatch
    from threadcast.collector.campaign_report import CampaignReport
    from threadcast.collector.counters.op_counters import CounterChoice
    from threadcast.collector.lone import LoneOps
    from threadcast.collector.proposers import Proposer
    from threadcast.core import CurveTable, Machine, OpGraph
    from threadcast.store import Store

STEP_MEANS = 20
"""Time budget for timing the sequential step in one case, as a multiple of the mean budget for an op."""

STEP_CASES = 4
"""Cases in which the whole step is timed where the model decides what is measured, and there are more."""

SHOWN_FAILURES = 5

UNEXPECTED = 0.05
"""Regret of checked choices from which on a warning says so, if less was expected."""


@click.command()
@network_options()
@cases_option
@click.option(
    "--model",
    help="Model that decides what is timed: a registered one, its alias, or a kind [default: the champion, else one "
    "that learns from the store and from this profile].",
)  # fmt: skip
@setting("profile.enough", "--enough")
@setting("profile.check", "--check")
@setting("profile.max_age_days", "--max-age-days")
@setting("cores", "--cores")
@setting("profile.budget_s", "--budget-s")
@setting("profile.tolerance", "--tolerance")
@counters_option
@setting("store", "--store")
@setting("models", "--models")
@common
def command(
    output: Output,
    settings: Settings,
    network: NetworkChoice,
    cases: FixedCases | None,
    model: str | None,
    counter_choice: CounterChoice | None,
) -> None:
    """Time the operations of NETWORK, a built-in one's name or FILE.py:function, each alone at a few thread counts.

    A model forecasts the other thread counts, and says what its choice of the best one may cost. Operations are timed
    where that cost is highest, until it is at most --enough for the whole step and on average. --cases chooses without
    a model.

    At the end a few choices are checked by more measurements (--check). Measurements and the graph are stored as they
    are made. What the store has already is not measured again unless it is old (--max-age-days) or the machine has
    become faster or slower, so an interrupted profile continues where it stopped. Freed memory stays in the process
    while it is timed, since how much of it the system would have to provide again differs from step to step.

    Where others use the cores, up to 30 s are waited for a quiet moment. What they disturbed is measured again and, if
    it is disturbed once more, called so, and forecasts by it are less certain.
    """
    from threadcast.capture.workloads import capture_workload, default_mode, graph_name
    from threadcast.cli.followed_model import followed_model
    from threadcast.collector.busy import LoadWatch
    from threadcast.collector.lone import LoneOps
    from threadcast.collector.proposers import EvenlySpread
    from threadcast.collector.timing import Goal
    from threadcast.core.topology import read_machine
    from threadcast.store import Store
    from threadcast.threads.memory import keep_freed_memory

    either_cases_or_model(cases, model)
    keep_freed_memory(one_heap=True)
    machine = read_machine(cores=settings["cores"])
    watch = LoadWatch.of(machine)
    workload = network.load()
    mode = network.mode or default_mode(workload)
    captured = capture_workload(workload, mode, optimizer=network.optimizer)
    graph, name = captured.graph, graph_name(workload, mode, optimizer=network.optimizer)
    output.note(f"{name}: {len(graph)} ops, {len(graph.distinct_ops())} distinct")
    counters = chosen_counters(output, settings, counter_choice, graph, machine)
    followed, curves = None, None
    with Store.open(settings["store"]) as store:
        if cases is None:
            followed = followed_model(model, settings, store, without=graph.distinct_ops())
            if followed.remark:
                output.warn(followed.remark)
            proposer: Proposer = followed.proposer
            step_cases = EvenlySpread(STEP_CASES).cases(machine)
        else:
            fixed = fixed_proposer(cases)
            proposer, step_cases = fixed, fixed.cases(machine)
        store.add_graph(name, graph)
        lone = LoneOps(machine, counters=counters)
        report = _measured(output, settings, store, graph, lone, proposer, watch)
    if followed is not None:
        curves = _curves(output, followed, report, graph, machine)
    step_goal = Goal(settings["profile.tolerance"], budget_s=STEP_MEANS * settings["profile.budget_s"])
    rows = [case_row(captured, report, machine, case, step_goal, curves, watch) for case in step_cases]
    document = {
        "graph": name, "machine": machine.fingerprint, "model": followed.name if followed else None,
        **summary(graph, report, machine), "counters": counters_read(report), "cases": rows,
        "choices": choice_rows(graph, report),
    }  # fmt: skip
    _warn(output, report)
    output.result(document, *shown(document))


def _curves(
    output: Output, followed: Followed, report: CampaignReport, graph: OpGraph, machine: Machine
) -> CurveTable | None:
    """The forecast of all ops at all cases; None, with a warning, where the model cannot forecast one."""
    ops = graph.distinct_ops()
    if not ops:
        return None
    try:
        return followed.proposer.curves(list(ops.values()), [report.observed[key] for key in ops], machine)
    except ModelError as error:
        output.warn(f"{followed.name} cannot forecast all ops: {error}")
        return None


def _measured(
    output: Output, settings: Settings, store: Store, graph: OpGraph, lone: LoneOps, proposer: Proposer,
    watch: LoadWatch,
) -> CampaignReport:  # fmt: skip
    """Measure the graph's ops while a progress bar is shown, and return the report."""
    from threadcast.collector.campaign import Campaign
    from threadcast.collector.campaign_report import CampaignProgress

    with output.progress("timing ops") as bar:

        def show(progress: CampaignProgress) -> None:
            doing = "timing ops"
            if progress.expected_regret is not None:
                doing += f", expected regret {percent(progress.expected_regret, 2)} %"
            bar.update(progress.done - progress.reused, total=progress.total - progress.reused, doing=doing)

        campaign = Campaign(
            lone, proposer, store, enough=settings["profile.enough"], check=settings["profile.check"],
            max_age_days=settings["profile.max_age_days"], counters=lone.counters,
            mean_s=settings["profile.budget_s"], tolerance=settings["profile.tolerance"],
            watch=watch, say=output.note, on_progress=show,
        )  # fmt: skip
        try:
            return campaign.run(graph)
        except KeyboardInterrupt:
            output.note("what was measured is kept; the same command goes on from here")
            raise


def _warn(output: Output, report: CampaignReport) -> None:
    if report.drift is not None and report.drift > DRIFT:
        output.warn(f"times have changed by a factor of {report.drift:.2g} since they were stored: all were made again")
    if report.checked and report.expected and report.checked.mean > max(2 * report.expected.mean, UNEXPECTED):
        output.warn(
            f"on a check the chosen cases of {report.checked.ops} ops took {report.checked.mean:.0%} longer than the "
            "best measured ones, more than expected: a smaller --enough measures more, --cases all everything"
        )
    for key, reason in list(report.failed.items())[:SHOWN_FAILURES]:
        output.warn(f"{key} was left out: {reason}")
