"""The bodies and queries of requests, as pydantic models; the documents in them are those of `service.formats`."""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, Strict, ValidationError

from threadcast.service.context import context
from threadcast.service.formats import (
    FIRST_WRONG,
    AnyMachine,
    Case,
    CoreId,
    CoreIds,
    Count,
    GraphOrName,
    HardwareThread,
    Machine,
    Measurement,
    OpKey,
    Ops,
    Threads,
    at_most,
)
from threadcast.service.problems import Problem

MOST_DESCRIBED = 10_000
"""A body with more findings is refused without them: to describe each takes a kilobyte."""

Name = Annotated[str, Strict(), Field(min_length=1, max_length=200)]
MACHINE = 'a number of cores, "local", a name of /v1/machines, or a document'
Options = Annotated[dict[str, Any], Field(max_length=50)]


class Body(BaseModel):
    """A request body. Unknown members are refused: they are mostly misspelt ones."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    @classmethod
    def model_validate(cls, obj: Any, **options: Any) -> Self:
        """The request in a document that is within the limits of the service; ValidationError, or Problem 422."""
        try:
            return super().model_validate(obj, context=context().settings, **options)
        except ValidationError as error:
            if error.error_count() > MOST_DESCRIBED:
                raise Problem(422, f"{error.error_count()} members are unknown or wrong") from None
            raise


def _one_of(**kinds: Any) -> ConfigDict:
    """Require exactly one of these members; `kinds` are the JSON types of their values."""
    choices: list[Any] = [{"required": [name], "properties": {name: {"type": kind}}} for name, kind in kinds.items()]
    return ConfigDict(json_schema_extra={"oneOf": choices})


class PredictionRequest(Body):
    """Whose curves are wanted: `ops` or `graph`, one of them."""

    model_config = _one_of(ops="array", graph=["object", "string"])

    ops: Ops | None = Field(None, description="ops in full, or keys of measured ops")
    graph: GraphOrName | None = Field(None, description="a whole graph, or the name of a stored one")
    machine: AnyMachine | None = Field(None, description=f"{MACHINE}; may be left out where the store knows just one")
    cases: Annotated[list[Case], Field(min_length=1), FIRST_WRONG, at_most("max_cases")] | None = Field(
        None, description="columns of the answer; all cases of the machine if left out"
    )
    model: Name | None = Field(None, description='alias or "name@version"; the default model if left out')


class Planned(Body):
    """The members that say how a graph is planned."""

    cores: Threads | None = Field(None, description="all of the machine's if left out")
    machine: AnyMachine | None = Field(
        None, description=f"{MACHINE}; if left out, with curves in the graph: `cores` equal ones that share one cache"
    )
    policy: Name | None = Field(None, description="as listed by /v1/info; auto if left out")
    options: Options = Field(
        default_factory=dict, description="options of the policy; of auto and search: budget_s, seed"
    )
    model: Name | None = Field(None, description="predicts where the graph brings no curves")


class PlanRequest(Planned):
    """What is to be planned: a graph on some cores."""

    graph: GraphOrName = Field(description="a graph, with or without curves, or the name of a stored one")


class RunningOp(Body):
    """An op that runs at the moment of the decision."""

    id: str
    cores: CoreIds
    remaining_s: Annotated[float, Field(ge=0, description="predicted seconds until it finishes")]
    threads: Count | None = Field(None, description="one a core if left out")
    hardware_thread: HardwareThread = 0


class DecisionRequest(Planned):
    """The ops that are ready and running and the idle cores; and either `graph` or `context`."""

    model_config = _one_of(graph=["object", "string"], context="string")

    graph: GraphOrName | None = Field(None, description="a graph, with or without curves, or the name of a stored one")
    context: Name | None = Field(None, description="from an earlier answer, in place of the graph and its options")
    ready: Annotated[list[str], FIRST_WRONG, at_most("max_ops")] = Field(
        description="ids of ops whose predecessors have finished, first come first"
    )
    running: Annotated[list[RunningOp], FIRST_WRONG, at_most("max_ops")] = Field(default_factory=list)
    idle: list[CoreId] | None = Field(
        None, description="ids of cores that launches may use; all that no running op uses if left out"
    )


class MeasurementsRequest(Body):
    """Samples; entries name ops by key or by position in `ops`."""

    machine: AnyMachine | None = Field(None, description=f"of every entry that names no other: {MACHINE}")
    machines: Annotated[list[Machine], Field(max_length=1000)] = Field(
        default_factory=list, description="others that entries name by fingerprint"
    )
    ops: Ops | None = Field(None, description="ops that the store does not know yet")
    measurements: Annotated[list[Measurement], Field(min_length=1), FIRST_WRONG, at_most("max_rows")] = Field(
        description="one entry for each measurement of an op in a case"
    )


class MeasurementsQuery(BaseModel):
    """Which measurements, and which page of them."""

    model_config = ConfigDict(extra="forbid")

    machine: Name | None = Field(None, description="'local', or a name of /v1/machines")
    op: OpKey | None = Field(None, description="key of an op")
    kind: Name | None = Field(None, description="kind of op")
    network: Name | None = Field(None, description="name of a stored graph")
    after: Annotated[int, Field(ge=0, le=2**53)] = Field(0, description="`next` of the page before")
    limit: Annotated[int, Field(ge=1, le=2**53)] = Field(100, description="measurements in the page, at most max_page")


class AliasMove(Body):
    """Where an alias is to point."""

    version: Annotated[str, Field(pattern="^[a-z][a-z0-9_]{0,63}@[1-9][0-9]{0,8}$", description="name@number")]


class Rollback(Body):
    """Nothing: an alias can go back in one way only. An empty object, as JSON, is sent all the same, so that no page of
    another site can make a browser send this."""
