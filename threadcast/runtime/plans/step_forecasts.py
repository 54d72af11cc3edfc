"""Forecasts of how long ops take within a step, from what was measured in steps on this machine, and a plan from them.

This runs in the planner's process (`forecasting_planner`), as models and stores take seconds to load.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from threadcast.core import Case, CurveTable, Machine, Measurement, Op, OpGraph, Plan
from threadcast.core.errors import ThreadcastError
from threadcast.core.settings import Settings
from threadcast.runtime.plans.step_rows import IN_STEP, Observed, measurements, service_of
from threadcast.scheduler.policies import Problem
from threadcast.scheduler.problem.engine_costs import EngineCosts

if TYPE_CHECKING:
    from threadcast.models.base import PerformanceModel
    from threadcast.store import Store

WORTH = 0.01
"""Share of a step by which a look must be expected to shorten it, to be worth its time. A convention."""

RECENT = 4_000
"""How many of the machine's last measurements are read beside those of the graph's own ops. A convention: forecasts of
300 ops take 3 s of a core with 1,000 to 16,000 of them, but 83,000 took 6.6 s to read."""

_SQLITE = "sqlite:///"


@dataclass(frozen=True, slots=True)
class Question:
    """Asks for the plan of a graph: with these `curves`, or with forecasts from what was `observed` and stored.

    `observed` has what was measured of the graph's distinct ops, by key. `store` is the URL of a store with further
    measurements, None for none. With `looks` the answer may be that operators must be looked at first.
    """

    graph: OpGraph
    machine: Machine
    costs: EngineCosts
    observed: Mapping[str, Observed]
    store: str | None = None
    looks: bool = False
    curves: CurveTable | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """A plan and the curves that it was made from; or the cases of the next look at the graph's ops, in its order.

    `pessimistic_s`: the 90th percentile of the plan's makespan over the curves' intervals. All are None where nothing
    is known of the machine's ops.
    """

    plan: Plan | None = None
    curves: CurveTable | None = None
    pessimistic_s: float | None = None
    look: tuple[Case, ...] | None = None


def store_of(settings: Settings) -> str | None:
    """Return the URL of the store of what steps show, as the setting `engine.feedback` says; None where it is off.

    It is the local store where the setting names a service.
    """
    feedback: str = settings["engine.feedback"]
    local: str = settings["store"]
    return local if service_of(settings) is not None else {"off": None, "local": local}.get(feedback, feedback)


def is_there(store: str | None) -> bool:
    """Return whether there may be a store at this URL; it is not opened, which takes long."""
    if store is None:
        return False
    if "://" not in store:
        return os.path.isfile(os.path.expanduser(store))
    path = unquote(store.removeprefix(_SQLITE), errors="surrogateescape")
    return not store.startswith(_SQLITE) or os.path.isfile(path)


def may_be_known(store: str | None) -> bool:
    """Return whether something may be known of operators: in this store, or by the service of `engine.feedback`."""
    return store is not None and (is_there(store) or service_of(Settings.read()) is not None)


def answered(question: Question) -> Answer:
    """Return the answer to a question."""
    if question.curves is not None:
        return _planned(question, question.curves)
    known = _known(question)
    if not known and not question.observed:
        return Answer()
    distinct = {op.key: op for op in question.graph.ops}
    model, observed = _model(distinct, known, question)
    if question.looks and (look := _look(model, list(distinct.values()), observed, question)) is not None:
        return Answer(look=look)
    cases = tuple(sorted(question.machine.cases()))
    table = model.predict_many(list(distinct.values()), observed, cases, machine=question.machine)
    row = {key: i for i, key in enumerate(distinct)}
    return _planned(question, table.take([row[op.key] for op in question.graph.ops]))


def _planned(question: Question, curves: CurveTable) -> Answer:
    from threadcast.scheduler.planner import plan
    from threadcast.scheduler.search.robust import percentiles_s, resampled

    problem = Problem(question.graph, question.costs.added(curves), question.machine)
    found = plan(problem, **question.options)
    (pessimistic_s,) = percentiles_s([found.ops], resampled(problem))
    return Answer(found, curves, max(pessimistic_s, found.makespan_s))


def _measurements(op: Op, question: Question) -> list[Measurement]:
    return measurements(op, question.machine, question.observed.get(op.key, {}))


def _known(question: Question) -> list[Measurement]:
    """What is known of steps on this machine: all of the graph's ops, and what was stored last of others.

    Nothing where there is no store, or one that cannot be read.

    Where the store has nothing of this machine, the service that `engine.feedback` names is asked, once.
    """
    from threadcast.store import Store

    if question.store is None:
        return []
    found: list[Measurement] = []
    try:
        if is_there(question.store):
            with Store.open(question.store, create=False) as store:
                found = _read(store, question)
        if not found and (found := _from_service(question.machine)):
            with Store.open(question.store) as store:
                store.add(found)
    except (ThreadcastError, OSError):
        return found
    in_step = [measured for measured in found if measured.conditions.get("cache") == IN_STEP]
    return in_step or found


def _read(store: Store, question: Question) -> list[Measurement]:
    machine, keys = question.machine.fingerprint, {op.key for op in question.graph.ops}
    own = store.measurements(machine=machine, keys=keys)
    recent = store.measurements(machine=machine, last=RECENT)
    return [*own, *(measured for measured in recent if measured.op.key not in keys)]


_asked: set[str] = set()
"""Fingerprints of the machines of which the service was asked in this process."""


def _from_service(machine: Machine) -> list[Measurement]:
    settings = Settings.read()
    url = service_of(settings)
    if url is None or machine.fingerprint in _asked:
        return []
    from threadcast.runtime.plans.service_feedback import fetched_rows

    _asked.add(machine.fingerprint)
    return fetched_rows(machine, url, settings)


def _model(
    distinct: Mapping[str, Op], known: Sequence[Measurement], question: Question
) -> tuple[PerformanceModel, list[list[Measurement]]]:
    """The model for what is known, and what was measured of each distinct op."""
    from threadcast.models.untrained import UntrainedModel

    own = {key: _measurements(op, question) for key, op in distinct.items()}
    stored: dict[str, list[Measurement]] = {key: [] for key in distinct}
    for measured in known:
        if measured.op.key in stored:
            stored[measured.op.key].append(measured)
    everything = [*known, *chain.from_iterable(own.values())]
    return UntrainedModel(lambda: everything), [[*stored[key], *own[key]] for key in distinct]


def _look(
    model: PerformanceModel, ops: Sequence[Op], observed: Sequence[Sequence[Measurement]], question: Question
) -> tuple[Case, ...] | None:
    """The cases of the next look, for each op of the graph; None where no look is worth its time.

    An op is looked at where its choice may cost more than `WORTH`; the others run at their best case.
    """
    cases = question.machine.cases()
    outlooks = dict(zip((op.key for op in ops), model.outlooks(ops, observed, question.machine), strict=True))
    step = [outlooks[op.key] for op in question.graph.ops]
    best_s = sum(one.seconds for one in step)
    gain_s = sum(one.seconds * one.expected_regret / (1 + one.expected_regret) for one in step)
    if gain_s < WORTH * best_s:
        return None
    return tuple(cases[one.best if one.ask is None or one.expected_regret <= WORTH else one.ask] for one in step)
