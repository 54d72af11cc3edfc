"""Pages of networks: the ops of each, and the last run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from flask import Response, jsonify, render_template
from markupsafe import Markup

from threadcast.core import OpGraph, Plan, Trace
from threadcast.core.errors import NotFound
from threadcast.drawing import timeline, timeline_svg
from threadcast.service.context import context
from threadcast.service.dashboard.frame import blueprint, chosen_machine, known_machines

COLOURED = 8
"""Number of kinds of op with a colour of their own, those that take longest; the others are grey."""


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
    kinds = timeline_svg.kinds_of(graph)
    shown: list[Plan | Trace] = [run.plan, run.trace] if run else []
    tones = tones_of(shown, kinds)
    span_s = max((s.makespan_s for s in shown), default=0.0)
    titles = ("predicted", "one traced step")
    last = [Schedule.drawn(title, s, kinds, tones, span_s=span_s) for title, s in zip(titles, shown)]
    return render_template(
        "dashboard/network.html", name=name, graph=graph, known=known, machine=machine, run=run, last=last,
        tones=tones, kinds=Counter(kinds.values()).most_common(), edges=len(graph.edges),
    )  # fmt: skip


@blueprint.get("/networks/<path:name>/timeline.json")
def timeline_file(name: str) -> Response:
    """The last run as a file for ui.perfetto.dev."""
    here = context()
    graph: OpGraph = here.store.graph(name)
    machine = chosen_machine(known_machines())
    run = here.store.browse.last_run(name, machine.fingerprint) if machine else None
    if run is None:
        raise NotFound(f"{name} has no timeline yet: run it with `threadcast run`")
    response = jsonify(timeline.perfetto(run.plan, run.trace, graph=graph))
    response.headers["Content-Disposition"] = "attachment; filename=timeline.json"
    return response


def tones_of(schedules: list[Plan | Trace], kinds: Mapping[str, str]) -> dict[str, int]:
    """The number of a colour for each of the kinds of op that take longest."""
    return {kind: tone for tone, kind in enumerate(timeline_svg.kinds_by_time(schedules, kinds)[:COLOURED])}
