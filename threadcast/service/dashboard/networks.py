"""Networks: what each consists of, how it would be planned and how far any plan can reach, and how it last ran."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from flask import Response, current_app, jsonify, render_template, request

from threadcast.core import Machine, OpGraph, Plan, Trace, timeline
from threadcast.core.errors import FormatError, ModelError, NotFound, PlanError
from threadcast.service.context import context
from threadcast.service.dashboard.frame import blueprint, chosen_machine, known_machines
from threadcast.service.dashboard.plan_cache import Made, PlanCache
from threadcast.service.dashboard.timeline import Strip, strips
from threadcast.service.planning import read_problem
from threadcast.service.problems import Problem
from threadcast.service.schemas import Planned

COLOURED = 8
"""Kinds that get a colour of their own, by the time that they take; the rest is grey."""
EXTENSION = "threadcast-dashboard-plans"


@dataclass(frozen=True, slots=True)
class Schedule:
    """A plan or a trace as it is shown."""

    title: str
    schedule: Plan | Trace
    strips: list[Strip]


@blueprint.record_once
def _prepare(state: Any) -> None:
    state.app.extensions[EXTENSION] = PlanCache()


@blueprint.get("/networks")
def networks() -> str:
    """Every stored graph."""
    return render_template("dashboard/networks.html", networks=context().store.browse.networks())


@blueprint.get("/networks/<path:name>")
def network(name: str) -> str:
    """One graph on one machine."""
    here = context()
    graph = here.store.graph(name)
    known = known_machines()
    machine = chosen_machine(known)
    run = here.store.browse.last_run(name, machine.fingerprint) if machine else None
    made, problem = (None, "") if machine is None else _planned(name, machine)
    kinds = {op_id: op.kind for op_id, op in zip(graph.ids, graph.ops)}
    shown: list[Plan | Trace] = [run.plan, run.trace] if run else []
    tones = _tones([*shown, *([made.plan] if made else [])], kinds)
    span_s = max((s.makespan_s for s in shown), default=0.0)
    last = [
        Schedule(title, s, strips(s, kinds, tones, span_s=span_s)) for title, s in zip(("predicted", "actual"), shown)
    ]
    planned = (
        Schedule("planned", made.plan, strips(made.plan, kinds, tones, span_s=made.plan.makespan_s)) if made else None
    )
    return render_template(
        "dashboard/network.html", name=name, graph=graph, known=known, machine=machine, run=run, last=last, made=made,
        planned=planned, tones=tones, problem=problem, kinds=Counter(kinds.values()).most_common(),
        reaches=_reaches(made), edges=len(graph.edges),
    )  # fmt: skip


@blueprint.get("/networks/<path:name>/timeline.json")
def timeline_file(name: str) -> Response:
    """The last run, else the plan, as ui.perfetto.dev opens it."""
    here = context()
    graph: OpGraph = here.store.graph(name)
    machine = chosen_machine(known_machines())
    run = here.store.browse.last_run(name, machine.fingerprint) if machine else None
    made = here_plans().get(_key(name, machine)) if machine and not run else None
    if run is None and made is None:
        raise NotFound(f"{name} has no timeline yet: plan it on its page, or run it with `threadcast run`")
    plan, trace = (run.plan, run.trace) if run else (made.plan if made else None, None)
    response = jsonify(timeline.perfetto(plan, trace, graph=graph))
    response.headers["Content-Disposition"] = "attachment; filename=timeline.json"
    return response


def here_plans() -> PlanCache:
    """The plans that this process keeps for its pages."""
    return cast(PlanCache, current_app.extensions[EXTENSION])


def _planned(name: str, machine: Machine) -> tuple[Made | None, str]:
    """The plan if it is there or was asked for, and why it cannot be made."""
    key = _key(name, machine)
    if key is None:
        return None, f"No model is registered as {context().models.default}: `threadcast train` makes one."
    kept = here_plans()
    made = kept.get(key)
    if made is None and request.args.get("plan") == "now":
        try:
            made = kept.make(
                key, read_problem(name, Planned.model_validate({"machine": machine.fingerprint}), context())
            )
        except (FormatError, ModelError, PlanError) as error:
            return None, str(error)
        except Problem as error:
            return None, error.detail
    return made, ""


def _key(name: str, machine: Machine | None) -> Hashable:
    """What a plan follows from; None where no model answers. Measurements and models only become more."""
    here = context()
    try:
        version = here.models.registry.manifest(here.models.default).version
    except NotFound:
        return None
    fingerprint = machine.fingerprint if machine else ""
    return name, fingerprint, version, here.store.browse.newest_id(fingerprint), len(here.store.graph(name).ops)


def _tones(schedules: list[Plan | Trace], kinds: Mapping[str, str]) -> dict[str, int]:
    """A colour for the kinds that take longest."""
    taken: Counter[str] = Counter()
    for schedule in schedules:
        for op in schedule.ops:
            taken[kinds.get(op.id, "?")] += op.duration_s  # type: ignore[assignment]  # a counter of seconds
    return {kind: tone for tone, (kind, _) in enumerate(taken.most_common(COLOURED))}


def _reaches(made: Made | None) -> list[tuple[str, Any]]:
    if made is None:
        return []
    report = made.ceiling
    return [("as it is", report.reach), *([("without split", report.without_split)] if report.without_split else [])]
