"""`threadcast plan`: decide cores, threads and order for every op of a graph."""

from __future__ import annotations

import inspect
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import click
from rich.console import RenderableType
from rich.table import Table

from threadcast.cli.corun_tables import interference_of
from threadcast.cli.explain import explained
from threadcast.cli.network_choice import NetworkChoice, network_options
from threadcast.cli.options import NewFile, common, predictor_options, setting
from threadcast.cli.output import Output, table
from threadcast.cli.plan_input import Question, read_problem
from threadcast.core import Plan
from threadcast.core.settings import Settings
from threadcast.drawing import timeline
from threadcast.scheduler.bounds.speedup_bound import ceiling
from threadcast.scheduler.planner import BUDGET_S, plan_each
from threadcast.scheduler.planner import plan as make_plan
from threadcast.scheduler.policies import PLANNERS, without_options

Row = dict[str, Any]


class OptionType(click.ParamType[tuple[str, Any]]):
    """An option NAME=VALUE; the value is a number, true, false, or several numbers with commas between them."""

    name = "name=value"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, Any]:
        """The name and the value."""
        name, _, text = str(value).partition("=")
        try:
            return name, json.loads(f"[{text}]" if "," in text else text)
        except json.JSONDecodeError:
            self.fail(f"{value!r} must be NAME=VALUE, the value a number, true, false or numbers with commas")


@click.command()
@network_options()
@setting("cores", "--cores")
@click.option("--machine", help="Fingerprint of a machine in the store, or a machine's file.")
@click.option("--policy", default="auto", show_default=True, help="Name of a policy, or auto: the best of several.")
@click.option(
    "--option", "options", type=OptionType(), multiple=True,
    help="An option of the policy, as inter=2; may be repeated.",
)  # fmt: skip
@click.option(
    "--budget-s",
    type=click.FloatRange(min=0, min_open=True),
    help=f"Seconds after which the search ends; it mostly needs less. [default: {BUDGET_S:g}]",
)
@click.option("--seed", type=click.IntRange(0), help="Seed of the search's random numbers. [default: 0]")
@click.option("--explain", is_flag=True, help="Say what scheduling can gain at most, and what limits it.")
@click.option("--compare", is_flag=True, help="Plan with every policy and show them in one table.")
@click.option(
    "--model",
    help="Registered model, its alias, or a kind [default: the champion, else joint_process].",
)
@click.option("--no-corun", is_flag=True, help="Plan as if ops did not slow each other down.")
@setting("corun", "--corun-dir")
@predictor_options
@click.option("--output", "plan_file", type=NewFile(), help="Write the plan here.")
@click.option("--timeline", "timeline_file", type=NewFile(), help="Write a timeline here that ui.perfetto.dev opens.")
@common
def command(
    output: Output,
    settings: Settings,
    network: NetworkChoice,
    machine: str | None,
    policy: str,
    options: tuple[tuple[str, Any], ...],
    compare: bool,
    budget_s: float | None,
    seed: int | None,
    explain: bool,
    no_corun: bool,
    model: str | None,
    plan_file: Path | None,
    timeline_file: Path | None,
) -> None:
    """Decide cores, threads and order for every operation of NETWORK.

    NETWORK is a graph file (name.json), a graph of the store (network/size/b8/training), a built-in network or
    FILE.py:function. A graph file with curves needs no model, no measurements and no store. --json prints the plan
    itself. Ops slow each other down as `threadcast run` has observed it.
    """
    question = Question(network, machine, model)
    problem, remarks = read_problem(question, settings)
    for remark in remarks:
        output.warn(remark)
    searching: Row = {"budget_s": budget_s, "seed": seed}
    given = {name: value for name, value in searching.items() if value is not None}
    _check_options(policy, options, given)
    interference = interference_of(problem, settings, output, off=no_corun)
    chosen = make_plan(problem, policy=policy, interference=interference, **given, **dict(options))
    every = without_options() if compare else ()
    others = plan_each(problem, every, interference=interference)
    compared = [chosen, *others] if compare else []
    if plan_file is not None:
        chosen.write(plan_file)
    if timeline_file is not None:
        timeline.write(timeline_file, plan=chosen, graph=problem.graph)
    document = chosen.to_json()
    shown: list[RenderableType] = [
        f"{len(chosen.ops)} ops, cores: {chosen.cores}, curves from: {chosen.curves_from}"
        + (", slowed down side by side as known of this machine" if interference else ""),
        _table([chosen]),
    ]
    if compared:
        document["compared"] = [summary(candidate) for candidate in compared]
        shown.append(_table(sorted(compared, key=lambda candidate: candidate.makespan_s), title="every policy"))
    shown.append(thread_counts(chosen))
    if explain:
        limits = ceiling(problem)
        document["explain"] = {"verdict": limits.verdict(), **limits.to_json()}
        shown += explained(limits)
    output.result(document, *shown)


def _check_options(policy: str, options: Sequence[tuple[str, Any]], searching: Row) -> None:
    """Raise UsageError for options of a policy, or of the search, that do not fit `policy`."""
    if policy == "auto" and options:
        raise click.UsageError("--option needs --policy: auto tries several, which have other options")
    if searching and policy not in PLANNERS:
        named = next(iter(searching)).replace("_", "-")
        raise click.UsageError(f"--{named} needs the search: --policy {' or '.join(PLANNERS)}")
    twice = [name for name, times in Counter(name for name, _ in options).items() if times > 1]
    if twice:
        raise click.UsageError(f"--option {twice[0]} is given twice; once is enough")
    reserved = inspect.signature(make_plan).parameters.keys() & dict(options).keys()
    if reserved:
        raise click.UsageError(f"--option {min(reserved)}=... is no option of a policy")


def summary(plan: Plan) -> Row:
    """The main figures of a plan, by name: times in seconds, gap and busy share as fractions."""
    return {
        "policy": plan.policy,
        "makespan_s": plan.makespan_s,
        "lower_bound_s": plan.lower_bound_s,
        "gap": plan.gap,
        "busy_share": plan.busy_share,
        "most_at_once": most_at_once(plan),
    }


def most_at_once(plan: Plan) -> int:
    """The most ops (without those that take no time) that run at the same moment."""
    timed = [op for op in plan.ops if op.duration_s]
    changes = [(op.start_s, 1) for op in timed] + [(op.finish_s, -1) for op in timed]
    most = now = 0
    for _, change in sorted(changes):
        now += change
        most = max(most, now)
    return most


def thread_counts(plan: Plan) -> Table:
    """A table with the number of ops that run with each thread count, and their share of the core time."""
    count: Counter[int] = Counter()
    core_s: dict[int, float] = defaultdict(float)
    for op in plan.ops:
        count[op.threads] += 1
        core_s[op.threads] += len(op.cores) * op.duration_s
    total_s = sum(core_s.values()) or 1.0
    rows = [(threads, count[threads], f"{core_s[threads] / total_s:.1%}") for threads in sorted(count)]
    return table(("threads", "ops", "core time"), rows)


def _table(plans: Iterable[Plan], *, title: str | None = None) -> Table:
    rows = []
    for row in map(summary, plans):
        gap = "-" if row["gap"] is None else f"{row['gap']:.1%}"
        rows.append((*list(row.values())[:3], gap, f"{row['busy_share']:.1%}", row["most_at_once"]))
    return table(("policy", "makespan_s", "bound_s", "gap", "busy", "at once"), rows, title=title)
