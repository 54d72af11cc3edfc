"""Reads the input of planning that the command line names: a graph, the curves of its ops, and the cores."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from threadcast import networks
from threadcast.cli.network_choice import NetworkChoice
from threadcast.core import Case, CurveTable, Machine, Measurement, Op, OpGraph, Source
from threadcast.core.errors import ArtefactError, InvalidInput, ModelError, NoStore, NotFound, PlanError, StoreError
from threadcast.core.json_reading import read_json
from threadcast.core.machine_names import find_machine
from threadcast.core.settings import Settings
from threadcast.core.topology import read_machine, usable_cores
from threadcast.networks.spec import without_function
from threadcast.scheduler.policies import Problem
from threadcast.scheduler.problem.graph_curves import curves_of, farthest_count
from threadcast.store.holding import all_that_holds

_TOLD = Source.MEASURED, Source.EXTRAPOLATED

if TYPE_CHECKING:
    from threadcast.models.base import PerformanceModel
    from threadcast.models.untrained import UntrainedModel
    from threadcast.prediction.predictor import LocalPredictor, Predictor
    from threadcast.store import Store


@dataclass(frozen=True, slots=True)
class Question:
    """The arguments of the command line that select the graph and the source of its curves; None where not given."""

    network: NetworkChoice
    machine: str | None = None
    model: str | None = None


def read_problem(question: Question, settings: Settings) -> tuple[Problem, list[str]]:
    """Return the planning problem, and remarks on it for the user, each a sentence.

    A graph that contains curves is planned for any number of cores. Curves that it lacks are predicted for this
    machine, or the one named, by the service at `predictor.url` or by a model in process.
    """
    network, machine = question.network, None
    with ExitStack() as open_stores:
        if network.spec.endswith(".json"):
            graph = OpGraph.read(Path(network.spec))
            if not len(graph):
                raise PlanError(f"{network.spec} has no ops: there is nothing to plan")
            if len(graph.curves) == len(graph):
                machine = _described_machine(question.machine, settings["cores"])
                table = curves_of(graph, machine)
                return Problem(graph, table, machine), _remarks(graph, table, machine)
            if graph.curves and question.machine is None and (settings["cores"] or 0) > usable_cores().cores:
                measured = machine = Machine.uniform("cores", settings["cores"])
        elif network.spec.endswith(".py") and Path(network.spec).expanduser().is_file():
            raise without_function(network.spec)
        elif not {"/", ":"} & set(network.spec):
            networks.options(network.spec, network.size or "tiny")  # raises for an unknown one
        if machine is None:
            measured, machine = chosen_machines(question.machine, settings, open_stores)
        predictor = chosen_predictor(question.model, measured, settings, open_stores)
        if not network.spec.endswith(".json"):  # only now: capturing takes long, and the rest may fail
            graph = _graph(network, settings, open_stores)
        profiling = None if network.spec.endswith(".json") else f"threadcast profile {network.spec}"
        try:
            table = curves_of(graph, measured, lambda rows: predictor.curves([graph.ops[row] for row in rows]))
        except ModelError as error:
            raise ModelError(f"{error}; `{profiling}` measures its ops" if profiling else str(error)) from error
        return Problem(graph, table, machine), [
            *remote_remarks(predictor), *unmeasured_remarks(graph.ops, table, profiling)
        ]  # fmt: skip


def _graph(network: NetworkChoice, settings: Settings, open_stores: ExitStack) -> OpGraph:
    """The graph of a network, or a graph of the store, whose name has slashes and no colon."""
    if "/" in network.spec and ":" not in network.spec:
        return chosen_store(settings, open_stores).graph(network.spec)
    from threadcast.capture.workloads import capture_workload  # needs torch, which graph files do not

    return capture_workload(network.load(), network.mode, optimizer=network.optimizer).graph


def _described_machine(named: str | None, cores: int | None) -> Machine:
    """The machine for a graph with curves: that in the file `named`, or `cores` equal cores that share one cache."""
    if named is not None:
        return _limited(read_json(Path(named), Machine.described), cores)
    return Machine.uniform("cores", usable_cores().cores if cores is None else cores)


def chosen_machines(named: str | None, settings: Settings, open_stores: ExitStack) -> tuple[Machine, Machine]:
    """The machine that measurements and predictions are for, and the part of it that is planned for.

    `named` is a file that describes a machine, or what `find_machine` takes.

    If `--cores` limits the machine, and the store has measurements of the limited machine, both are the limited
    machine.
    """
    cores = settings["cores"]
    if named is not None and named.endswith(".json"):
        described = read_json(Path(named), Machine.described)
        return described, _limited(described, cores)
    if named is not None:
        known = {machine.fingerprint: machine for machine in chosen_store(settings, open_stores).machines()}
        found = find_machine(named, known)
        return found, _limited(found, cores)
    machine = read_machine()
    if cores is None or cores == len(machine):
        return machine, machine
    limited = read_machine(cores=cores)
    try:
        known_here = limited in chosen_store(settings, open_stores).machines()
    except (StoreError, ImportError):  # without measurements the whole machine is as good
        known_here = False
    return (limited, limited) if known_here else (machine, _limited(machine, cores))


def _limited(machine: Machine, cores: int | None) -> Machine:
    if cores is None or cores == len(machine):
        return machine
    if cores > len(machine):
        raise InvalidInput(f"cores={cores} exceeds the {len(machine)} cores of {machine.fingerprint}")
    return machine.limited_to(machine.place(Case(cores)))


def chosen_predictor(named: str | None, machine: Machine, settings: Settings, open_stores: ExitStack) -> Predictor:
    """The predictor for `machine`: the service at `predictor.url`, or without one the model `named`, in process."""
    url = settings["predictor.url"]
    if not url:
        return _local_predictor(named, machine, settings, open_stores)
    from threadcast.prediction.remote import RemotePredictor

    try:
        fallback = _local_predictor(named, machine, settings, open_stores)
    except (StoreError, NotFound, ArtefactError, ImportError):  # no model here to fall back on
        fallback = None
    return RemotePredictor.from_settings(settings, machine, fallback=fallback, model=named)


def _local_predictor(named: str | None, machine: Machine, settings: Settings, open_stores: ExitStack) -> LocalPredictor:
    """The model `named`; a registered one is completed by the untrained joint process, for ops that it cannot
    forecast."""
    from threadcast.models.untrained import VERSION
    from threadcast.prediction.predictor import LocalPredictor

    model, version = _model(named, machine, settings, open_stores)
    try:
        store = chosen_store(settings, open_stores)
    except NoStore:
        if version != VERSION:
            raise
        return LocalPredictor(model, machine, {}, version=version)
    if model.adapts_to(machine):
        model = model.adapted(_holding(store, machine))
    if "@" not in version:
        return LocalPredictor(model, machine, store, version=version)
    otherwise = partial(_untrained, machine, settings, open_stores)
    completed = f"{version}, {VERSION} for ops that were not measured"
    return LocalPredictor(model, machine, store, version=version, otherwise=otherwise, completed=completed)


def _model(
    named: str | None, machine: Machine, settings: Settings, open_stores: ExitStack
) -> tuple[PerformanceModel, str]:
    """The registered model of this alias or version, or an untrained one of this kind; None: the best available."""
    from threadcast.models import registry_of_kinds
    from threadcast.models.registry import ModelRegistry
    from threadcast.models.untrained import VERSION, UntrainedModel

    registry = ModelRegistry(settings["models"])
    wanted = settings["service.model"] if named is None else named
    if "@" in wanted or registry.is_alias(wanted):
        version = wanted if "@" in wanted else registry.resolve(wanted)
        return registry.load(version), version
    if named is None and settings.origins.get("service.model", "default") != "default":
        registered = ", ".join(registry.versions()) or "none"
        raise NotFound(f"no model is called {wanted!r} (service.model); registered are {registered}")
    if named is not None and named not in registry_of_kinds.names():
        raise NotFound(
            f"no model is called {named!r}; registered are {', '.join(registry.versions()) or 'none'}, "
            f"kinds are {', '.join(registry_of_kinds.names())}"
        )
    if named is not None and named != UntrainedModel.name:
        return registry_of_kinds.create(named), f"{named} (untrained)"
    return _untrained(machine, settings, open_stores), VERSION


def _untrained(machine: Machine, settings: Settings, open_stores: ExitStack) -> UntrainedModel:
    from threadcast.models.untrained import UntrainedModel

    try:
        store = chosen_store(settings, open_stores)
    except NoStore:
        return UntrainedModel(list)
    return UntrainedModel(lambda: _holding(store, machine))


def _holding(store: Store, machine: Machine) -> list[Measurement]:
    return all_that_holds(store.measurements(machine=machine.fingerprint), store.changes)


def chosen_store(settings: Settings, open_stores: ExitStack) -> Store:
    """The store of the settings, closed with `open_stores`; StoreError where there is none."""
    from threadcast.store import Store  # needs SQLAlchemy

    return open_stores.enter_context(Store.open(settings["store"], create=False))


def _remarks(graph: OpGraph, table: CurveTable, machine: Machine) -> list[str]:
    reached, cores = farthest_count(table), len(machine)
    if reached < cores:
        return [f"no curve goes beyond {reached} threads: of {cores} cores one op uses at most {reached}"]
    short = sum(max(graph.curves[op_id]) < cores for op_id in graph.ids)
    if short:
        return [f"the curves of {short} of {len(graph)} ops end below {cores} threads: they run on what theirs offer"]
    return []


def unmeasured_remarks(ops: Sequence[Op], table: CurveTable, profiling: str | None) -> list[str]:
    """A warning for the user if some ops were not measured and are unlike all that was learned, and the command that
    measures them, if there is one."""
    from threadcast.models.untrained import VERSION

    measured, extrapolated = (table.source == list(Source).index(source) for source in _TOLD)
    rough = ~measured.any(axis=1) & (extrapolated.all(axis=1) | table.model.startswith(VERSION))
    every, unlike = {op.key for op in ops}, {op.key for op, is_rough in zip(ops, rough, strict=True) if is_rough}
    if not unlike:
        return []
    return [
        f"nothing was measured on this machine of {len(unlike)} of {len(every)} different ops: their times are "
        "rough forecasts, with wide intervals" + (f"; `{profiling}` measures some of them" if profiling else "")
    ]


def remote_remarks(predictor: Predictor) -> list[str]:
    """Warnings for the user where the service did not answer and something else predicted in its place."""
    from threadcast.prediction.fallback import ROOFLINE
    from threadcast.prediction.remote import RemotePredictor

    if not isinstance(predictor, RemotePredictor) or not predictor.status.fallbacks:
        return []
    status = predictor.status
    guess = "a guess from the number and clock of the cores" if status.model.startswith(ROOFLINE) else "the local model"
    return [f"{guess} answered: {status.last_error}"]
