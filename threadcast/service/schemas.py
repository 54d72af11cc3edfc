"""The members of each request; the documents in them are read by `service.documents`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, Strict, WithJsonSchema

from threadcast.core.machine import MAX_CORES
from threadcast.service.formats import ref

_NULL = {"type": "null"}

Ops = Annotated[
    list[Any], WithJsonSchema({"type": "array", "items": {"anyOf": [ref("Op"), {"type": "string"}]}, "minItems": 1})
]
Cases = Annotated[list[Any], WithJsonSchema({"type": "array", "items": ref("Case"), "minItems": 1})]
MachineOrFingerprint = Annotated[Any, WithJsonSchema({"anyOf": [ref("Machine"), {"type": "string"}, _NULL]})]
GraphOrName = Annotated[Any, WithJsonSchema({"anyOf": [ref("Graph"), {"type": "string"}]})]
OptionalGraphOrName = Annotated[Any, WithJsonSchema({"anyOf": [ref("Graph"), {"type": "string"}, _NULL]})]
OptionalPlan = Annotated[Any, WithJsonSchema({"anyOf": [ref("Plan"), _NULL]})]
MachineDocument = Annotated[Any, WithJsonSchema(ref("Machine"))]
DenseEntries = Annotated[list[Any], WithJsonSchema({"type": "array", "items": ref("Measurement"), "minItems": 1})]
Rows = Annotated[list[Any], WithJsonSchema({"type": "array", "items": ref("MeasurementRow"), "minItems": 1})]

Name = Annotated[str, Strict(), Field(min_length=1, max_length=200)]
Options = Annotated[dict[str, Any], Field(max_length=50)]


class Body(BaseModel):
    """A request body. Unknown members are refused: they are mostly misspelt ones."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


def _one_of(**kinds: Any) -> ConfigDict:
    """Require exactly one of these members; `kinds` are the JSON types of their values."""
    choices: list[Any] = [{"required": [name], "properties": {name: {"type": kind}}} for name, kind in kinds.items()]
    return ConfigDict(json_schema_extra={"oneOf": choices})


class PredictionRequest(Body):
    """Whose curves are wanted: `ops` or `graph`, one of them."""

    model_config = _one_of(ops="array", graph=["object", "string"])

    ops: Ops | None = Field(None, description="ops in full, or keys of measured ops")
    graph: OptionalGraphOrName = Field(None, description="a whole graph, or the name of a stored one")
    machine: MachineOrFingerprint = Field(None, description="may be left out where the store knows just one")
    cases: Cases | None = Field(None, description="columns of the answer; all cases of the machine if left out")
    model: Name | None = Field(None, description='alias or "name@version"; the default model if left out')


class Planned(Body):
    """The members that say how a graph is planned."""

    cores: Annotated[int, Field(ge=1, le=MAX_CORES)] | None = Field(
        None, description="all of the machine's if left out"
    )
    machine: MachineOrFingerprint = Field(
        None, description="with curves in the graph: equal cores that share one cache if left out"
    )
    policy: Name | None = Field(None, description="as listed by /v1/info; the service's choice if left out")
    options: Options = Field(default_factory=dict, description="options of the policy")
    model: Name | None = Field(None, description="predicts where the graph brings no curves")


class PlanRequest(Planned):
    """What is to be planned: a graph on some cores."""

    graph: GraphOrName = Field(description="a graph, with or without curves, or the name of a stored one")


class RunningOp(Body):
    """An op that runs at the moment of the decision."""

    id: str
    cores: Annotated[list[int], Field(min_length=1, max_length=MAX_CORES)]
    remaining_s: Annotated[float, Field(ge=0, description="predicted seconds until it finishes")]
    threads: Annotated[int, Field(ge=1, le=65536)] | None = Field(None, description="one a core if left out")
    hardware_thread: Annotated[int, Field(ge=0, le=7)] = 0


class DecisionRequest(Planned):
    """The ops that are ready and running and the idle cores; and one of `graph`, `context` and `plan`."""

    model_config = _one_of(graph=["object", "string"], context="string", plan="object")

    graph: OptionalGraphOrName = Field(None, description="a graph, with or without curves, or the name of a stored one")
    context: Name | None = Field(None, description="from an earlier answer, in place of the graph and its options")
    plan: OptionalPlan = Field(None, description="launch what this plan puts next on its cores")
    ready: list[str] = Field(description="ids of ops whose predecessors have finished, first come first")
    running: list[RunningOp] = Field(default_factory=list)
    idle: list[int] | None = Field(
        None, description="ids of cores that launches may use; all that no running op uses if left out"
    )


class MeasurementsRequest(Body):
    """Samples, dense or in long form; entries name ops by key or by position in `ops`."""

    model_config = _one_of(measurements="array", rows="array")

    machine: MachineOrFingerprint = Field(None, description="of every entry that names no other")
    machines: Annotated[list[MachineDocument], Field(max_length=1000)] = Field(
        default_factory=list, description="others that entries name by fingerprint"
    )
    ops: Ops | None = Field(None, description="ops that the store does not know yet")
    measurements: DenseEntries | None = Field(None, description="dense: one entry an op and case")
    rows: Rows | None = Field(None, description="long form: one row a sample")


class MeasurementsQuery(BaseModel):
    """Which measurements, and which page of them."""

    model_config = ConfigDict(extra="forbid")

    machine: Name | None = Field(None, description="fingerprint")
    op: Name | None = Field(None, description="key of an op")
    kind: Name | None = Field(None, description="kind of op")
    network: Name | None = Field(None, description="name of a stored graph")
    form: Literal["dense", "long"] = Field("dense", description="one entry an op and case, or one row a sample")
    after: Annotated[int, Field(ge=0, le=2**53)] = Field(0, description="`next` of the page before")
    limit: Annotated[int, Field(ge=1, le=2**53)] = Field(100, description="measurements in the page, at most max_page")


class AliasMove(Body):
    """Where an alias is to point."""

    version: Annotated[str, Field(pattern="^[a-z][a-z0-9_]{0,63}@[1-9][0-9]{0,8}$", description="name@number")]
