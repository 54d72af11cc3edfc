"""The documents in requests and answers, as pydantic models: requests are checked by them, and described by them.

The readers in `core` check the rest, which no schema can say: that an edge names an op, or that core ids differ. All
are typed dictionaries, so that what was checked is still the document that those readers take.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Literal, NotRequired

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    GetCoreSchemaHandler,
    GetPydanticSchema,
    Strict,
    StringConstraints,
    Tag,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    WithJsonSchema,
    WrapValidator,
    with_config,
)
from pydantic_core import PydanticCustomError
from typing_extensions import TypeAliasType, TypedDict

from threadcast.core import Affinity, Source
from threadcast.core.graph import MAX_OPS
from threadcast.core.machine import LEAST_HZ, MAX_CORES, MOST_HZ
from threadcast.core.measurement import LONGEST_S, SHORTEST_S
from threadcast.core.op import MAX_KEY, MAX_KIND
from threadcast.core.tensor import DTYPE_BYTES, MAX_ELEMENTS
from threadcast.models.measured import MOST_WORK
from threadcast.service.plain_ops import plain_ops

OPEN = ConfigDict(strict=True, allow_inf_nan=False)
"""Of documents that may have further members, which are ignored: they come from files of other programs, too."""

CLOSED = ConfigDict(strict=True, allow_inf_nan=False, extra="forbid")
"""Of documents whose unknown members are refused: they are mostly misspelt ones."""

TEXT, NUMBER, DOCUMENT = "<text>", "<number>", "<document>"
"""Names of the choices of a union. They appear in the places of pydantic's findings; `problems` leaves them out."""


def is_choice(part: int | str) -> bool:
    """Whether a part of the place of a finding is no member of the document but a choice of a union, or "[key]"."""
    return part in (TEXT, NUMBER, DOCUMENT, "[key]")


def _text_or_document(value: Any) -> str:
    return TEXT if isinstance(value, str) else DOCUMENT


def _machine_form(value: Any) -> str | None:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return NUMBER
    return _text_or_document(value) if isinstance(value, str | dict) else None


def _or_say(message: str) -> GetPydanticSchema:
    """Have a union answer with this message, in place of what is wrong with each of its choices."""

    def schema(source: Any, handler: GetCoreSchemaHandler) -> Any:
        return {**handler(source), "custom_error_type": "form", "custom_error_message": message}

    return GetPydanticSchema(schema)


def _whole(value: float) -> int:
    if not value.is_integer():
        raise ValueError("no whole number")
    return int(value)


def whole(least: int, most: int) -> GetPydanticSchema:
    """Make an int a whole number in these limits. 2.0 is one to JSON, which has no integers; it becomes 2."""
    limits = Field(ge=least, le=most)
    kind: Any = Annotated[
        Annotated[int, limits] | Annotated[float, limits, AfterValidator(_whole)],
        Field(union_mode="left_to_right"),
        _or_say(f"must be a whole number from {least} to {most}"),
        WithJsonSchema({"type": "integer", "minimum": least, "maximum": most}),
    ]
    return GetPydanticSchema(lambda source, handler: handler.generate_schema(kind))


def one_of(names: Iterable[str]) -> GetPydanticSchema:
    """Make a str one of these names."""
    kind: Any = Literal[tuple(names)]
    return GetPydanticSchema(lambda source, handler: handler.generate_schema(kind))


def at_most(limit: str) -> BeforeValidator:
    """Refuse a list that is longer than this limit of the settings before its entries are looked at.

    The settings are the context of the validation; without one the list may have any length.
    """

    def check(value: Any, info: ValidationInfo) -> Any:
        most = None if info.context is None else getattr(info.context, limit)
        if most is not None and isinstance(value, list) and len(value) > most:
            raise PydanticCustomError("limit", f"{len(value)} entries; at most {limit}={most} are allowed")
        return value

    return BeforeValidator(check)


FIRST_WRONG = Field(fail_fast=True)
"""Of lists that may be long: of their findings only those of the first wrong entry are told."""

NAME = r"[^\x00-\x1f\x7f]+"
"""Pattern of names that tables and terminals show as they are: without control characters."""

Text = Annotated[str, Field(max_length=10_000)]
Kind = Annotated[
    str,
    StringConstraints(strip_whitespace=True),
    Field(min_length=1, max_length=MAX_KIND, pattern=f"^{NAME}$"),
]
CounterName = Annotated[str, Field(pattern=f"^{NAME}$")]
Key = Annotated[str, Field(min_length=1, max_length=200)]
OpKey = Annotated[str, Field(min_length=1, max_length=MAX_KEY)]
Count = Annotated[int, whole(1, 65_536)]
Threads = Annotated[int, whole(1, MAX_CORES)]
HardwareThread = Annotated[int, whole(0, 7)]
CoreId = Annotated[int, whole(0, 2**31 - 1)]
Place = Annotated[int, whole(-1, 2**31 - 1)]
Seconds = Annotated[float, Field(ge=0, description="seconds")]
CurveSeconds = Annotated[float, Field(ge=0, le=LONGEST_S, description="seconds")]
SampleSeconds = Annotated[float, Field(ge=SHORTEST_S, le=LONGEST_S, description="seconds")]
Amount = Annotated[float, Field(ge=0, le=MOST_WORK)]
AffinityName = Annotated[str, one_of(affinity.value for affinity in Affinity)]
SourceName = Annotated[str, one_of(source.value for source in Source)]
Dtype = Annotated[str, one_of(DTYPE_BYTES)]
CoreIds = Annotated[
    list[CoreId], Field(min_length=1, max_length=MAX_CORES, json_schema_extra={"uniqueItems": True})
]  # fmt: skip
Side = Annotated[int, whole(0, MAX_ELEMENTS)]
_QuickSide = Annotated[int, Field(ge=0, le=MAX_ELEMENTS)]
Sides = Annotated[
    Annotated[list[_QuickSide], Field(max_length=64)] | Annotated[list[Side], Field(max_length=64)],
    Field(union_mode="left_to_right"),
    WithJsonSchema(
        {"type": "array", "maxItems": 64, "items": {"type": "integer", "minimum": 0, "maximum": MAX_ELEMENTS}}
    ),
]
"""Sides of tensors; there are many, and those without a point are read in a third of the time."""

# A JSON array whose elements differ in type is a tuple to pydantic, which takes a list for one where it need not be
# strict; the readers get a list again.
Tensor = TypeAliasType(
    "Tensor",
    Annotated[
        Sides
        | Annotated[tuple[Sides], Strict(False), AfterValidator(list)]
        | Annotated[tuple[Sides, Dtype], Strict(False), AfterValidator(list)]
        | Annotated[tuple[Sides, Dtype, Sides | None], Strict(False), AfterValidator(list)],
        Field(union_mode="left_to_right"),
        _or_say("a tensor must be [shape, dtype?, strides?], with sides of at least 0 and a known dtype"),
        Field(description="[shape, dtype?, strides?]; a bare shape is float32 and contiguous."),
    ],
)
Core = Annotated[
    tuple[
        CoreId, Annotated[list[CoreId], Field(min_length=1, max_length=64)], Place, Place, Place,
        Annotated[float, Field(ge=LEAST_HZ, le=MOST_HZ)] | None,
    ],
    Strict(False), AfterValidator(list),
]  # fmt: skip
Level = Annotated[int, whole(1, 16)]
Bytes = Annotated[int, whole(0, 2**53)]
Cache = Annotated[tuple[Level, Bytes, list[CoreId]], Strict(False), AfterValidator(list)]
LegalCase = Annotated[tuple[Threads, AffinityName], Strict(False), AfterValidator(list)]
Scalar = Annotated[Text | bool | int | float, _or_say("a condition must be a JSON scalar")] | None
OpReference = Annotated[
    OpKey | Annotated[int, whole(0, 2**31 - 1)],
    _or_say("an op is named by its key, or by its position in ops"),
    Field(description="key of the op, or its position in `ops`"),
]


@with_config(CLOSED)
class Case(TypedDict):
    """One way to run an op."""

    threads: Threads
    affinity: NotRequired[Annotated[AffinityName, Field(description="compact if left out")]]


@with_config(OPEN)
class Op(TypedDict):
    """One operation."""

    kind: Kind
    inputs: NotRequired[Annotated[list[Tensor], FIRST_WRONG]]
    outputs: NotRequired[Annotated[list[Tensor], FIRST_WRONG]]
    attributes: NotRequired[dict[str, Any]]
    flops: NotRequired[Amount]
    bytes: NotRequired[Amount]
    key: NotRequired[Annotated[str, Field(description="in answers; follows from the rest")]]


@with_config(OPEN)
class Machine(TypedDict):
    """A machine (docs/formats.md)."""

    schema: NotRequired[Literal["threadcast.machine/1"]]
    name: Text
    cores: Annotated[
        list[Core],
        Field(
            min_length=1,
            max_length=MAX_CORES,
            description="[id, [cpu numbers], cache group, NUMA node, socket, max_hz] of each core",
        ),
    ]
    caches: NotRequired[Annotated[list[Cache], Field(description="[level, size_bytes, [core ids]] of each cache")]]
    cases: NotRequired[
        Annotated[
            list[LegalCase],
            Field(max_length=2 * MAX_CORES, description="[threads, affinity] of each, where only some are legal"),
        ]
    ]
    fingerprint: NotRequired[Annotated[str, Field(description="in answers; follows from the rest")]]


@with_config(OPEN)
class GraphOp(Op):
    """An op of a graph."""

    id: Key
    curve: NotRequired[
        Annotated[
            dict[Annotated[str, Field(pattern="^[1-9][0-9]{0,8}$")], CurveSeconds],
            Field(min_length=1, description="seconds by thread count"),
        ]
    ]


Edge = Annotated[tuple[str, str], Strict(False), AfterValidator(list), Field(description="from, to")]
Edges = Annotated[list[Edge], FIRST_WRONG, at_most("max_edges")]


@with_config(OPEN)
class Graph(TypedDict):
    """A directed acyclic graph of ops (docs/formats.md)."""

    schema: Literal["threadcast.graph/1"]
    ops: Annotated[list[GraphOp], Field(max_length=MAX_OPS), FIRST_WRONG, at_most("max_ops")]
    edges: NotRequired[Edges]
    ordering_edges: NotRequired[Edges]


@with_config(OPEN)
class PlannedOp(TypedDict):
    """Where and when an op runs."""

    id: str
    cores: CoreIds
    threads: Count
    start_s: Seconds
    finish_s: Seconds
    hardware_thread: NotRequired[HardwareThread]
    source: NotRequired[SourceName]


@with_config(OPEN)
class Plan(TypedDict):
    """When and where each op is to run (docs/formats.md)."""

    schema: Literal["threadcast.plan/1"]
    cores: Count
    policy: str
    ops: Annotated[list[PlannedOp], FIRST_WRONG, at_most("max_ops")]
    makespan_s: NotRequired[Seconds]
    lower_bound_s: NotRequired[Seconds]
    gap: NotRequired[Annotated[float, Field(description="makespan over lower bound, less one")] | None]
    guarded: NotRequired[list[str]]
    curves_from: NotRequired[Annotated[str, Field(description="name@version, or file")]]


@with_config(CLOSED)
class Measurement(TypedDict):
    """All samples of an op in a case on a machine."""

    op: OpReference
    threads: Threads
    seconds: Annotated[
        list[SampleSeconds],
        Field(min_length=1, description="samples, as taken"),
        FIRST_WRONG,
        at_most("max_rows"),
    ]
    machine: NotRequired[Annotated[Key, Field(description="name of a machine, as in /v1/machines")]]
    affinity: NotRequired[AffinityName]
    counters: NotRequired[
        Annotated[
            dict[CounterName, list[Amount | None]],
            Field(
                description="counts a run, one a sample; null where it could not be read",
                json_schema_extra={"additionalProperties": False},
            ),
        ]
    ]
    conditions: NotRequired[Annotated[dict[str, Scalar], Field(description="how it was measured")]]


OpOrKey = Annotated[Annotated[Op, Tag(DOCUMENT)] | Annotated[OpKey, Tag(TEXT)], Discriminator(_text_or_document)]


def _plain_or_checked_ops(value: Any, check: ValidatorFunctionWrapHandler) -> Any:
    """Ops of the plainest form become objects of `core` at once; where one is of another, all are checked."""
    return plain_ops(value, most_work=MOST_WORK) or check(value)


Ops = Annotated[
    list[OpOrKey], Field(min_length=1), FIRST_WRONG, WrapValidator(_plain_or_checked_ops), at_most("max_ops")
]
AnyMachine = Annotated[
    Annotated[Machine, Tag(DOCUMENT)] | Annotated[Key, Tag(TEXT)] | Annotated[Threads, Tag(NUMBER)],
    Discriminator(
        _machine_form, custom_error_type="form",
        custom_error_message='must be a number of cores, "local", a name of /v1/machines, or a machine document',
    ),
]  # fmt: skip
"""How a request may say which machine: a number of equal cores, "local", a known name, or a whole document."""
GraphOrName = Annotated[Annotated[Graph, Tag(DOCUMENT)] | Annotated[Key, Tag(TEXT)], Discriminator(_text_or_document)]
