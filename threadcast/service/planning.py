"""Builds the planning problem of a request from its graph, machine and cores."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from threadcast.core import Case, CurveTable, Machine, OpGraph
from threadcast.core.errors import FormatError, PlanError
from threadcast.scheduler.policies import PLANNERS, Policy, Problem, names, plan_names
from threadcast.scheduler.problem.graph_curves import curves_of
from threadcast.service.context import Context
from threadcast.service.deadlines import curves_of_each, deadline
from threadcast.service.decision_contexts import DecisionContext
from threadcast.service.documents import asked_machine, read_graph
from threadcast.service.problems import Problem as Refused
from threadcast.service.problems import all_of
from threadcast.service.schemas import Planned

MAX_OPTION = 4_096
"""Largest number in the options of a policy, which count cores, threads and executors."""


def read_problem(graph_or_name: Any, asked: Planned, here: Context) -> Problem:
    """Return the planning problem: the graph with its own or else predicted curves, on the cores of the request.

    FormatError or Problem where the request is wrong, with a pointer to the wrong member.
    """
    graph = read_graph(graph_or_name, here.store, here.settings)
    if not len(graph):
        raise FormatError("the graph has no ops to plan", pointer="/graph/ops")
    own_curves = len(graph.curves) == len(graph)
    machine = _machine(graph, asked, here)
    limited = _limited(machine, asked.cores)
    points = len(graph) * len((limited if own_curves else machine).cases())
    if points > here.settings.max_plan_points:
        raise FormatError(
            f"{len(graph)} ops make {points} points, more than max_plan_points={here.settings.max_plan_points}; "
            "plan for fewer cores or split the graph",
            pointer="/graph/ops",
        )
    try:
        forecast = partial(_forecast, graph, machine, asked.model, here)
        table = curves_of(graph, limited if own_curves else machine, forecast)
        return Problem(graph, table, limited)
    except PlanError as error:
        raise FormatError(str(error), pointer="/graph/ops") from error


def about_problem(problem: Problem, graph_or_name: Any, policy: str) -> dict[str, Any]:
    """What the dashboard's list says about a plan or decisions that were asked for."""
    graph = graph_or_name if isinstance(graph_or_name, str) else ""
    machine = problem.machine.fingerprint
    return {"graph": graph, "ops": len(problem.graph), "machine": machine, "policy": policy}


def _machine(graph: OpGraph, asked: Planned, here: Context) -> Machine:
    """Return the machine that a request names. Where it names none, and the graph brings curves, that is as many equal
    cores as it asks for, unless other ops are to be forecast and the store's only machine has so many."""
    if asked.machine is not None or not graph.curves:
        return asked_machine(asked.machine, here.stored)
    known = [*here.stored.machines().values()]
    if len(graph.curves) < len(graph) and len(known) == 1 and (asked.cores or 0) <= len(known[0]):
        return known[0]
    if asked.cores is None:
        raise FormatError("say how many cores, or which machine, to plan for", pointer="/cores")
    return Machine.uniform("cores", asked.cores)


def _limited(machine: Machine, cores: int | None) -> Machine:
    """Return the machine limited to its first `cores` cores, in whole cache groups where they fit."""
    if cores is None or cores == len(machine):
        return machine
    if cores > len(machine):
        raise FormatError(f"cores={cores} exceeds the {len(machine)} of {machine.fingerprint}", pointer="/cores")
    return machine.limited_to(machine.place(Case(cores)))


def _forecast(graph: OpGraph, machine: Machine, model: str | None, here: Context, rows: list[int]) -> CurveTable:
    """Return the curves of the ops at these positions; a Problem with what is wrong with each that has none."""
    ops, until = [graph.ops[row] for row in rows], deadline(here.settings.deadline_s)
    table, refused = curves_of_each(here.predictor_asked_for(machine, model), ops, None, until)
    if refused:
        found = ((f"/graph/ops/{rows[i]}", str(why)) for i, why in refused.items())
        raise all_of(Refused(422, why, pointer=pointer) for pointer, why in found)
    here.metrics.count_points(table.model, len({op.key for op in ops}) * len(table.cases))
    return table


def read_policy(asked: DecisionContext) -> Policy:
    """Return the policy that a request asks for; errors point to /policy or /options."""
    if (policy := asked.policy_name) in PLANNERS:
        raise FormatError(f"{policy} makes plans; decisions need one of {', '.join(names())}", pointer="/policy")
    check_policy(policy, asked.options)
    try:
        return asked.policy()
    except (TypeError, ValueError) as error:
        raise refused_options(error, asked.options) from error


def check_policy(name: str, options: Mapping[str, Any]) -> None:
    """Raise FormatError for a name by which no plan can be made, and for options of a wrong type.

    Options are null, booleans, numbers up to `MAX_OPTION`, or arrays of these.
    """
    if name not in plan_names():
        raise FormatError(f"no policy is called {name[:80]!r}; known are {', '.join(plan_names())}", pointer="/policy")
    for option, value in options.items():
        pointer = f"/options/{option}"
        if option == "interference":  # an object, for callers in process
            raise FormatError("interference cannot be given over HTTP", pointer=pointer)
        for part in value if isinstance(value, list) else [value]:
            if not (part is None or (isinstance(part, int | float) and abs(part) <= MAX_OPTION)):
                raise FormatError(
                    f"an option must be null, a boolean, a number up to {MAX_OPTION}, or an array of these",
                    pointer=pointer,
                )


def refused_options(error: TypeError | ValueError, options: Mapping[str, Any]) -> FormatError:
    """Return the FormatError for the client where a policy refuses its options.

    A TypeError without options is a fault of the program and is raised again.
    """
    if isinstance(error, TypeError) and not options:
        raise error
    return FormatError(f"{error}", pointer="/options" if options else "/policy")
