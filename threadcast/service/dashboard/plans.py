"""Pages of what was planned: plans and decisions asked for over HTTP, and runs, each with its forecast times."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime

from flask import render_template, url_for

from threadcast.core import Plan, Trace
from threadcast.core.errors import NotFound
from threadcast.scheduler.simulation.simulator import simulate
from threadcast.service.context import context
from threadcast.service.dashboard.frame import blueprint
from threadcast.service.dashboard.networks import Schedule, tones_of
from threadcast.service.dashboard.timeline import strips
from threadcast.service.deadlines import computed_in_time, deadline
from threadcast.store.browsing import Run
from threadcast.store.kept_documents import Kept

MOST, MOST_RUNS = 50, 20
"""Most lines of each kind; runs are read whole, some milliseconds each."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the list. `forecast_s` is the predicted makespan; of decisions `work_s`, the sum of the ops' fastest
    forecasts, is known instead. `took_s` is what one traced step took."""

    time: str
    what: str
    of: str
    machine: str
    policy: str
    link: str
    forecast_s: float | None = None
    work_s: float | None = None
    took_s: float | None = None


@blueprint.get("/plans")
def plans() -> str:
    """The page with the plans, decisions and runs of last, the last one first."""
    browse = context().store.browse
    lines = [
        *(_line(kept, "plan") for kept in browse.plans(limit=MOST)),
        *(_line(kept, "decisions") for kept in browse.contexts(limit=MOST)),
        *map(_run_line, browse.runs(limit=MOST_RUNS)),
    ]
    return render_template("dashboard/plans.html", lines=sorted(lines, key=lambda line: line.time, reverse=True))


@blueprint.get("/plans/<name>")
def plan(name: str) -> str:
    """The page of a plan, or of the decisions that a policy makes when every op takes its forecast time."""
    here = context()
    schedule: Plan | Trace
    if (text := here.store.plan(name)) is not None:
        schedule = Plan.from_json(json.loads(text))
        kinds = {op.id: op.id for op in schedule.ops}
    elif (decided := here.decision_contexts.stored(name)) is not None:
        until, graph = deadline(here.settings.deadline_s), decided.problem.graph
        schedule = computed_in_time(until, lambda: simulate(decided.policy()))
        kinds = {op_id: op.kind for op_id, op in zip(graph.ids, graph.ops, strict=True)}
    else:
        raise NotFound("no such plan is stored (any more)")
    tones = tones_of([schedule], kinds)
    drawn = Schedule("planned", schedule, strips(schedule, kinds, tones, span_s=schedule.makespan_s))
    return render_template("dashboard/plan.html", name=name, drawn=drawn, tones=tones)


def _line(kept: Kept, kind: str) -> Line:
    about = kept.about
    of = about.get("graph") or (f"{about['ops']:,} op{'' if about['ops'] == 1 else 's'}" if "ops" in about else "–")
    return Line(
        datetime.fromtimestamp(kept.time_s, UTC).isoformat(timespec="seconds"),
        "decisions by a plan" if about.get("followed") else kind,
        of, about.get("machine", ""), about.get("policy", "–"), url_for("dashboard.plan", name=kept.name),
        about.get("forecast_s"), about.get("work_s"),
    )  # fmt: skip


def _run_line(run: Run) -> Line:
    link = url_for("dashboard.network", name=run.graph, machine=run.machine)
    forecast_s, took_s = run.plan.makespan_s, run.trace.makespan_s
    return Line(run.time, "run", run.graph, run.machine, run.plan.policy, link, forecast_s, took_s=took_s)
