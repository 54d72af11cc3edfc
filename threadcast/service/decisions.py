"""POST /v1/decisions: what to launch now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from apiflask import APIBlueprint
from flask import Response

from threadcast.core.errors import FormatError, IllegalLaunch, InvalidInput, PlanError
from threadcast.scheduler.policies import Launch, Policy, Running, State
from threadcast.scheduler.simulation.occupancy import Occupancy
from threadcast.scheduler.simulation.ready_set import ReadyQueue
from threadcast.service.answer_formats import Decision
from threadcast.service.answers import Example, answer
from threadcast.service.context import Context, context, reply
from threadcast.service.deadlines import computed_in_time, deadline
from threadcast.service.decision_contexts import DecisionContext
from threadcast.service.documents import reading
from threadcast.service.planning import about_problem, read_policy, read_problem
from threadcast.service.plans import EXAMPLE
from threadcast.service.point_sources import PointSources
from threadcast.service.problems import Problem
from threadcast.service.schemas import DecisionRequest, Planned

DEFAULT_POLICY = "critical_path"

blueprint = APIBlueprint("decisions", __name__, url_prefix="/v1")


@blueprint.post("/decisions")
@blueprint.input(DecisionRequest, arg_name="asked")
@blueprint.doc(
    extensions=answer(
        Decision, "What to launch now.", problems=(404,), reads=("X-Deadline-S",), scope="read",
        example=Example({**EXAMPLE, "ready": ["left", "right"]}),
    )
)  # fmt: skip
def decide(asked: DecisionRequest) -> Response:
    """Decide what to launch now

    Give one of two: a graph (with what a plan takes), for which a policy is made and cached; or the `context` that
    such an answer named, which spares sending and preparing the graph again. The answer is the launches to make now,
    in order; none means wait. With nothing running, something ready and no `idle` there is one; a policy decides for
    the whole machine, and `idle` holds back its launches on other cores.
    """
    if (asked.graph is None) == (asked.context is None):
        raise FormatError("give either a graph or a context")
    for name in Planned.model_fields:
        if asked.graph is None and getattr(asked, name):
            raise FormatError(f"{name} goes with a graph; context has its own", pointer=f"/{name}")
    here = context()
    name, policy = _policy(asked, here)
    decided = computed_in_time(deadline(here.settings.deadline_s), lambda: _decide(policy, asked))
    return reply({"context": name, **decided})


def _policy(asked: DecisionRequest, here: Context) -> tuple[str, Policy]:
    contexts, until = here.decision_contexts, deadline(here.settings.deadline_s)
    if asked.context is None:
        named = DecisionContext(read_problem(asked.graph, asked, here), asked.policy or DEFAULT_POLICY, asked.options)
        policy = computed_in_time(until, lambda: read_policy(named))
        work_s = float(named.problem.curves.seconds.min(axis=1).sum())
        about = {**about_problem(named.problem, asked.graph, named.policy_name), "work_s": work_s}
        return contexts.add(named, policy, about), policy
    known = contexts.policy(asked.context)
    if known is not None:
        return asked.context, known
    stored = contexts.stored(asked.context)
    if stored is None:
        raise Problem(404, "no such context is stored (any more); send the graph", pointer="/context")
    policy = computed_in_time(until, stored.policy)
    contexts.keep(asked.context, policy)
    return asked.context, policy


def _decide(policy: Policy, asked: DecisionRequest) -> dict[str, Any]:
    graph, times = policy.problem.graph, policy.problem.times
    positions = {op_id: i for i, op_id in enumerate(graph.ids)}
    _check_ids(asked, positions)
    occupancy = Occupancy(policy.problem.machine)
    running = []
    for i, at in enumerate(asked.running):
        op, cores, threads = positions[at.id], tuple(at.cores), at.threads or len(at.cores)
        with reading(f"/running/{i}"):
            try:
                occupancy.take(Launch(op, cores, threads, at.hardware_thread))
                lone_s = times.on(op, cores, threads)
            except (IllegalLaunch, PlanError) as error:
                raise InvalidInput(f"op {at.id!r}: {error}") from error
        running.append(Running(op, cores, threads, at.remaining_s - lone_s, at.remaining_s, at.hardware_thread))
    free = occupancy.idle()
    given = set(_idle(asked, free))
    ready = ReadyQueue(policy.rank)
    for op_id in asked.ready:
        ready.add(positions[op_id])
    launches, sources = [], PointSources(policy.problem)
    for launch in policy.decide(State(0.0, ready, free, tuple(running))):
        if launch.hardware_thread or given.issuperset(launch.cores):
            try:
                occupancy.take(launch)
            except IllegalLaunch:  # the caller's cores are not those of the policy's teams
                continue
            predicted_s = times.on(launch.op, launch.cores, launch.threads)
            source = sources.of(launch.op, launch.cores, launch.threads)
            launches.append({**_launch(graph.ids[launch.op], launch, predicted_s), "source": source})
    return {"policy": policy.name, "curves_from": policy.problem.curves.model, "launches": launches}


def _idle(asked: DecisionRequest, free: Sequence[int]) -> tuple[int, ...]:
    """Return the free cores that launches may use, in the order of `free`; all of them where the request names none."""
    if asked.idle is None:
        return tuple(free)
    there, allowed = set(free), set(asked.idle)
    for i, core in enumerate(asked.idle):
        if core not in there:
            raise FormatError(f"core {core} is not there, or an op runs on it", pointer=f"/idle/{i}")
    return tuple(core for core in free if core in allowed)


def _check_ids(asked: DecisionRequest, known: Mapping[str, object]) -> None:
    """Raise FormatError unless every op is in the graph and is named once, as ready or as running."""
    found: set[str] = set()
    named = [(op_id, f"/ready/{i}") for i, op_id in enumerate(asked.ready)]
    named += [(op.id, f"/running/{i}/id") for i, op in enumerate(asked.running)]
    for op_id, pointer in named:
        if op_id not in known:
            raise FormatError(f"no op has the id {op_id[:80]!r}", pointer=pointer)
        if op_id in found:
            raise FormatError(f"op {op_id[:80]!r} is named twice", pointer=pointer)
        found.add(op_id)


def _launch(op_id: str, launch: Launch, predicted_s: float) -> dict[str, Any]:
    document = {"id": op_id, "cores": list(launch.cores), "threads": launch.threads, "predicted_s": predicted_s}
    return {**document, "hardware_thread": launch.hardware_thread} if launch.hardware_thread else document
