"""Pages of what was planned: plans and decisions asked for over HTTP, and runs, each with its forecast times."""

from __future__ import annotations

import json

from flask import render_template

from threadcast.core import Plan, Trace
from threadcast.core.errors import NotFound
from threadcast.drawing.timeline_svg import kinds_of
from threadcast.scheduler.simulation.simulator import simulate
from threadcast.service.context import context
from threadcast.service.dashboard.frame import blueprint
from threadcast.service.dashboard.networks import Schedule, tones_of
from threadcast.service.deadlines import computed_in_time, deadline
from threadcast.store.browsing import Run
from threadcast.store.kept_documents import Kept

MOST, MOST_RUNS = 50, 20
"""Most lines of each kind; runs are read whole, some milliseconds each."""


@blueprint.get("/plans")
def plans() -> str:
    """The page with the plans, decisions and runs of last, the last one first."""
    browse = context().store.browse
    lines = [*browse.asked(limit=MOST), *map(_of_run, browse.runs(limit=MOST_RUNS))]
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
        kinds = kinds_of(graph)
    else:
        raise NotFound("no such plan is stored (any more)")
    tones = tones_of([schedule], kinds)
    drawn = Schedule.drawn("planned", schedule, kinds, tones, span_s=schedule.makespan_s)
    return render_template("dashboard/plan.html", name=name, drawn=drawn, tones=tones)


def _of_run(run: Run) -> Kept:
    """A run as the list shows it; `took_s` is what one traced step took."""
    about = {"graph": run.graph, "machine": run.machine, "policy": run.plan.policy, "forecast_s": run.plan.makespan_s}
    return Kept("runs", run.graph, run.time, {**about, "took_s": run.trace.makespan_s})
