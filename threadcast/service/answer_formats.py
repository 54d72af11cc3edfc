"""The documents that only answers have, as pydantic models, from which the description is made."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired

from pydantic import ConfigDict, Field, with_config
from typing_extensions import TypedDict

from threadcast.service.formats import (
    CLOSED,
    Case,
    CoreIds,
    Count,
    Machine,
    Measurement,
    Op,
    Seconds,
    SourceName,
)  # fmt: skip

Fingerprint = Annotated[str, Field(description="fingerprint")]
Version = Annotated[str, Field(description="name@number")]
Aliases = Annotated[dict[str, str], Field(description="name@number by alias")]
SecondsTable = list[list[Seconds] | None]


@with_config(CLOSED)
class OpProblem(TypedDict):
    """Why there is no forecast of an op (RFC 9457)."""

    type: str
    title: str
    status: int
    detail: str
    pointer: Annotated[str, Field(description="JSON pointer to the op in the request")]


@with_config(CLOSED)
class CurveTable(TypedDict):
    """Curves: one row an op, one column a case; low and high bound a 90 % interval."""

    machine: Fingerprint
    model: Annotated[str, Field(description="name@version of what answered, or what stands in for a model")]
    ops: Annotated[list[str], Field(description="key of each row's op")]
    cases: list[Case]
    seconds: SecondsTable
    low: SecondsTable
    high: SecondsTable
    source: Annotated[list[list[SourceName] | None], Field(description="where each predicted time comes from")]
    errors: NotRequired[
        Annotated[
            list[OpProblem | None],
            Field(description="where an op has no forecast: its problem, null for each other op; its rows are null"),
        ]
    ]


@with_config(CLOSED)
class Launch(TypedDict):
    """Start this op now."""

    id: str
    cores: CoreIds
    threads: Count
    predicted_s: Seconds
    hardware_thread: NotRequired[Annotated[int, Field(ge=1)]]
    source: NotRequired[SourceName]


@with_config(CLOSED)
class Decision(TypedDict):
    """What to launch now, in order."""

    policy: str
    curves_from: Annotated[str, Field(description="name@version, or file")]
    launches: list[Launch]
    context: NotRequired[Annotated[str, Field(description="send it in place of the graph next time")]]


@with_config(CLOSED)
class KnownMachine(TypedDict):
    """A machine that requests may name."""

    fingerprint: str
    name: str
    cores: Annotated[int, Field(ge=1)]
    local: Annotated[bool, Field(description="whether it is that of the service, as far as the service may use it")]
    names: Annotated[list[str], Field(description="what requests may call it, without meaning another machine")]
    known_from: list[Literal["this machine", "measurements"]]


@with_config(CLOSED)
class Machines(TypedDict):
    """The machines that requests may name."""

    machines: list[KnownMachine]


@with_config(CLOSED)
class Measurements(TypedDict):
    """A page of measurements, with the machines and ops that it names."""

    total: Annotated[int, Field(ge=0)]
    next: Annotated[int | None, Field(description="`after` of the next page")]
    machines: list[Machine]
    ops: list[Op]
    measurements: list[Measurement]


@with_config(CLOSED)
class Stored(TypedDict):
    """How much was stored, now or under this Idempotency-Key before."""

    measurements: Annotated[int, Field(ge=0)]
    samples: Annotated[int, Field(ge=0)]


@with_config(CLOSED)
class Health(TypedDict):
    """What a health check answers."""

    status: Literal["live", "ready"]
    model: NotRequired[Annotated[str, Field(description="name@version that answered the readiness probe")]]
    planner: NotRequired[
        Annotated[Literal["ready", "compiling"], Field(description="Plans wait while the planner is compiling.")]
    ]


@with_config(CLOSED)
class Limit(TypedDict):
    """A limit."""

    value: float
    unit: str
    meaning: str


@with_config(CLOSED)
class Info(TypedDict):
    """What the service is and allows."""

    version: str
    limits: dict[str, Limit]
    policies: Annotated[list[str], Field(description="names for plans; for decisions all but auto and search")]
    default_model: str
    formats: list[str]


@with_config(ConfigDict(strict=True))
class Model(TypedDict):
    """A registered version."""

    schema: Literal["threadcast.model/1"]
    version: Version
    model: Annotated[str, Field(description="kind of model")]
    created: Annotated[str, Field(description="ISO 8601, UTC")]
    trained_on: dict[str, Any]
    metrics: dict[str, Any]
    libraries: dict[str, Any]
    files: Annotated[dict[str, Any], Field(description="sha256 and bytes by name")]


@with_config(CLOSED)
class Models(TypedDict):
    """What is registered."""

    models: list[Model]
    aliases: Aliases


@with_config(CLOSED)
class AliasTable(TypedDict):
    """What every alias stands for."""

    aliases: Aliases


@with_config(CLOSED)
class Move(TypedDict):
    """A move of an alias."""

    version: str
    time: str
    rollback: bool
    by: Annotated[str, Field(description="who moved it; empty where that was not recorded")]


@with_config(CLOSED)
class Alias(TypedDict):
    """What an alias stands for and has stood for."""

    alias: str
    version: Version
    history: list[Move]


@with_config(CLOSED)
class Finding(TypedDict):
    """One of several things that are wrong."""

    detail: str
    pointer: str


Problem = TypedDict(
    "Problem",
    {
        "type": str,
        "title": str,
        "status": int,
        "detail": str,
        "pointer": Annotated[str, Field(description="JSON pointer to the wrong field; empty for the whole")],
        "in": Annotated[Literal["body", "query", "path", "header"], Field(description="what the pointer points into")],
        "errors": NotRequired[Annotated[list[Finding], Field(description="all of several findings")]],
        "reference": Annotated[str, Field(description="the request's id, which its lines in the log have")],
    },
)
Problem.__pydantic_config__ = CLOSED  # type: ignore[attr-defined]
Problem.__doc__ = "An error (RFC 9457)."
