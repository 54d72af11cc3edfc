"""Pages of networks: the ops of each, a plan and the least time that any plan could reach, and the last run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any, Self, cast

from flask import Response, current_app, jsonify, render_template, request
from markupsafe import Markup

from threadcast.core import Machine, OpGraph, Plan, Trace
from threadcast.core.errors import FormatError, ModelError, NotFound, PlanError
from threadcast.drawing import timeline, timeline_svg
from threadcast.service.context import context
from threadcast.service.dashboard.frame import blueprint, chosen_machine, known_machines
from threadcast.service.dashboard.plan_cache import PlanCache, PlannedNetwork
from threadcast.service.deadlines import deadline
from threadcast.service.planning import read_problem
from threadcast.service.problems import Problem
from threadcast.service.schemas import Planned

COLOURED = 8
"""Number of kinds of op with a colour of their own, those that take longest; the others are grey."""
EXTENSION = "threadcast-dashboard-plans"


@dataclass(frozen=True, slots=True)
class Schedule:
    """A plan or a trace with its title and its drawing."""

    title: str
    schedule: Plan | Trace
    drawing: Markup

    @classmethod
    def drawn(
        cls, title: str, schedule: Plan | Trace, kinds: Mapping[str, str], tones: Mapping[str, int], *, span_s: float
    ) -> Self:
        """The schedule from 0 to `span_s` seconds; `tones` are the numbers of colours by kind, other kinds are grey."""
        paints = {kind: f'class="tone-{tone}"' for kind, tone in tones.items()}
        image = timeline_svg.timeline(schedule, kinds, span_s=span_s, paints=paints, rest='class="tone-rest"')
        return cls(title, schedule, Markup(image))


@blueprint.record_once
def _prepare(state: Any) -> None:
    state.app.extensions[EXTENSION] = PlanCache()


@blueprint.get("/networks")
def networks() -> str:
    """The page with every stored graph."""
    return render_template("dashboard/networks.html", networks=context().store.browse.networks())


@blueprint.get("/networks/<path:name>")
def network(name: str) -> str:
    """The page of one graph on one machine."""
    here = context()
    graph = here.store.graph(name)
    known = known_machines()
    machine = chosen_machine(known)
    run = here.store.browse.last_run(name, machine.fingerprint) if machine else None
    found, problem = (None, "") if machine is None else _planned(name, machine)
    kinds = timeline_svg.kinds_of(graph)
    shown: list[Plan | Trace] = [run.plan, run.trace] if run else []
    tones = tones_of([*shown, *([found.plan] if found else [])], kinds)
    span_s = max((s.makespan_s for s in shown), default=0.0)
    titles = ("predicted", "one traced step")
    last = [Schedule.drawn(title, s, kinds, tones, span_s=span_s) for title, s in zip(titles, shown)]
    planned = Schedule.drawn("planned", found.plan, kinds, tones, span_s=found.plan.makespan_s) if found else None
    return render_template(
        "dashboard/network.html", name=name, graph=graph, known=known, machine=machine, run=run, last=last, found=found,
        planned=planned, tones=tones, problem=problem, kinds=Counter(kinds.values()).most_common(),
        edges=len(graph.edges),
    )  # fmt: skip


@blueprint.get("/networks/<path:name>/timeline.json")
def timeline_file(name: str) -> Response:
    """The last run, or else the plan, as a file for ui.perfetto.dev."""
    here = context()
    graph: OpGraph = here.store.graph(name)
    machine = chosen_machine(known_machines())
    run = here.store.browse.last_run(name, machine.fingerprint) if machine else None
    found = _plan_cache().get(_key(name, machine)) if machine and not run else None
    if run is None and found is None:
        raise NotFound(f"{name} has no timeline yet: plan it on its page, or run it with `threadcast run`")
    plan, trace = (run.plan, run.trace) if run else (found.plan if found else None, None)
    response = jsonify(timeline.perfetto(plan, trace, graph=graph))
    response.headers["Content-Disposition"] = "attachment; filename=timeline.json"
    return response


def _plan_cache() -> PlanCache:
    """The plans that this process has made for its pages."""
    return cast(PlanCache, current_app.extensions[EXTENSION])


def _planned(name: str, machine: Machine) -> tuple[PlannedNetwork | None, str]:
    """The plan of a network, and a text that says why there is none.

    A plan that is not cached is made only if the query has `plan=now`.
    """
    key = _key(name, machine)
    if key is None:
        return None, f"No model is registered as {context().models.default}: `threadcast train` makes one."
    plans, here = _plan_cache(), context()
    found = plans.get(key)
    if found is None and request.args.get("plan") == "now":
        asked = Planned.model_validate({"machine": machine.fingerprint})
        until = deadline(here.settings.deadline_s)
        try:
            found = plans.plan(key, read_problem(name, asked, here), until, most_planners=here.settings.max_planners)
        except (FormatError, ModelError, PlanError) as error:
            return None, str(error)
        except Problem as error:
            return None, error.detail
    return found, ""


def _key(name: str, machine: Machine | None) -> Hashable:
    """A key with everything that determines a plan; None where there is no default model.

    The number of the newest measurement and the model's version are enough, as stored measurements and models never
    change.
    """
    here = context()
    try:
        _, version = here.models.get()
    except NotFound:
        return None
    fingerprint = machine.fingerprint if machine else ""
    return name, fingerprint, version, here.store.browse.newest_id(fingerprint), len(here.store.graph(name).ops)


def tones_of(schedules: list[Plan | Trace], kinds: Mapping[str, str]) -> dict[str, int]:
    """The number of a colour for each of the kinds of op that take longest."""
    return {kind: tone for tone, kind in enumerate(timeline_svg.kinds_by_time(schedules, kinds)[:COLOURED])}
