"""JSON schemas of the documents in requests and answers, for the OpenAPI description.

Threadcast's own readers in `core` decide what is valid. Tests compare these schemas with the documents that the readers
accept, and with the answers of the service.
"""

from __future__ import annotations

from typing import Any

from threadcast.core import Affinity, Source
from threadcast.core.tensor import DTYPE_BYTES
from threadcast.models.measured import LONGEST_S, SHORTEST_S

REF = "x-component"
"""Key that replaces "$ref" until the description is complete: pydantic would resolve "$ref" among its own schemas."""

_SECONDS = {"type": "number", "minimum": 0, "description": "seconds"}
_SAMPLE = {"type": "number", "minimum": SHORTEST_S, "maximum": LONGEST_S, "description": "seconds"}
_SECONDS_TABLE = {"type": "array", "items": {"type": "array", "items": _SECONDS}}
_SOURCE = {"enum": [source.value for source in Source], "description": "where the predicted time comes from"}
_COUNT = {"type": "integer", "minimum": 1}
_SIDES = {"type": "array", "items": {"type": "integer", "minimum": 0}}
_CORE_IDS = {"type": "array", "items": {"type": "integer"}, "minItems": 1, "uniqueItems": True}
_OP_REFERENCE = {"type": ["string", "integer"], "description": "key of the op, or its position in `ops`"}
_ALIASES = {"type": "object", "additionalProperties": {"type": "string"}, "description": "name@number by alias"}
_ID_PAIRS = {"type": "array", "items": {"type": "array", "items": {"type": "string"}, "minItems": 2, "maxItems": 2}}


def _object(
    required: dict[str, Any], optional: dict[str, Any] | None = None, *, description: str, closed: bool = False
) -> dict[str, Any]:
    return {
        "type": "object", "description": description, "required": list(required),
        "properties": {**required, **(optional or {})}, **({"additionalProperties": False} if closed else {}),
    }  # fmt: skip


def ref(name: str) -> dict[str, str]:
    """Return a reference to one of `COMPONENTS`, in the form that `api_description` replaces."""
    return {REF: name}


_OP_MEMBERS = (
    {"kind": {"type": "string", "minLength": 1}},
    {
        "inputs": {"type": "array", "items": ref("Tensor")},
        "outputs": {"type": "array", "items": ref("Tensor")},
        "attributes": {"type": "object"},
        "flops": {"type": "number", "minimum": 0},
        "bytes": {"type": "number", "minimum": 0},
    },
)

COMPONENTS: dict[str, dict[str, Any]] = {
    "Case": _object(
        {"threads": _COUNT}, {"affinity": {"enum": [a.value for a in Affinity], "default": "compact"}},
        description="One way to run an op.", closed=True,
    ),
    "Tensor": {
        "type": "array", "description": "[shape, dtype?, strides?]; a bare shape is float32 and contiguous.",
        "anyOf": [
            {"items": {"type": "integer", "minimum": 0}},
            {"prefixItems": [_SIDES, {"enum": list(DTYPE_BYTES)}, _SIDES], "minItems": 1, "maxItems": 3},
        ],
    },
    "Op": _object(
        _OP_MEMBERS[0],
        {"key": {"type": "string", "description": "in answers; follows from the rest"}, **_OP_MEMBERS[1]},
        description="One operation.",
    ),
    "Machine": _object(
        {
            "name": {"type": "string"},
            "cores": {
                "type": "array", "minItems": 1, "items": {"type": "array", "minItems": 6, "maxItems": 6},
                "description": "[id, [cpu numbers], cache group, NUMA node, socket, max_hz] of each core",
            },
            "caches": {
                "type": "array", "items": {"type": "array", "minItems": 3, "maxItems": 3},
                "description": "[level, size_bytes, [core ids]] of each cache",
            },
        },
        {"fingerprint": {"type": "string", "description": "in answers; follows from the rest"}},
        description="A machine (docs/formats.md).",
    ),
    "Graph": _object(
        {
            "schema": {"const": "threadcast.graph/1"},
            "ops": {
                "type": "array",
                "items": _object(
                    {"id": {"type": "string"}, **_OP_MEMBERS[0]},
                    {
                        **_OP_MEMBERS[1],
                        "curve": {
                            "type": "object", "minProperties": 1, "additionalProperties": _SECONDS,
                            "propertyNames": {"pattern": "^[1-9][0-9]{0,8}$"},
                            "description": "seconds by thread count",
                        },
                    },
                    description="An op of the graph.",
                ),
            },
        },
        {"edges": _ID_PAIRS, "ordering_edges": _ID_PAIRS},
        description="A directed acyclic graph of ops (docs/formats.md).",
    ),
    "Plan": _object(
        {
            "schema": {"const": "threadcast.plan/1"},
            "cores": _COUNT,
            "policy": {"type": "string"},
            "ops": {
                "type": "array",
                "items": _object(
                    {
                        "id": {"type": "string"}, "cores": _CORE_IDS, "threads": _COUNT,
                        "start_s": _SECONDS, "finish_s": _SECONDS,
                    },
                    {"hardware_thread": {"type": "integer", "minimum": 0}, "source": _SOURCE},
                    description="Where and when an op runs.",
                ),
            },
        },
        {
            "makespan_s": _SECONDS, "lower_bound_s": _SECONDS, "gap": {"type": ["number", "null"]},
            "guarded": {"type": "array", "items": {"type": "string"}}, "curves_from": {"type": "string"},
        },
        description="When and where each op is to run (docs/formats.md).",
    ),
    "Decision": _object(
        {
            "policy": {"type": "string"},
            "curves_from": {"type": "string", "description": "name@version, or file"},
            "launches": {
                "type": "array",
                "items": _object(
                    {"id": {"type": "string"}, "cores": _CORE_IDS, "threads": _COUNT, "predicted_s": _SECONDS},
                    {"hardware_thread": {"type": "integer", "minimum": 1}, "source": _SOURCE},
                    description="Start this op now.", closed=True,
                ),
            },
        },
        {"context": {"type": "string", "description": "send it in place of the graph next time"}},
        description="What to launch now, in order.", closed=True,
    ),
    "CurveTable": _object(
        {
            "machine": {"type": "string", "description": "fingerprint"},
            "model": {"type": "string", "description": "name@version of what answered"},
            "ops": {"type": "array", "items": {"type": "string"}, "description": "key of each row's op"},
            "cases": {"type": "array", "items": ref("Case")},
            "seconds": _SECONDS_TABLE, "low": _SECONDS_TABLE, "high": _SECONDS_TABLE,
            "source": {"type": "array", "items": {"type": "array", "items": _SOURCE}},
        },
        description="Curves: one row an op, one column a case; low and high bound a 90 % interval.", closed=True,
    ),
    "MeasurementRow": {
        **_object(
            {"op": _OP_REFERENCE, "threads": _COUNT, "seconds": _SAMPLE},
            {
                "machine": {"type": "string", "description": "fingerprint"},
                "affinity": {"enum": [a.value for a in Affinity], "default": "compact"},
                "repeat": {"type": "integer", "minimum": 0, "description": "order of the samples of one case"},
            },
            description="One sample in long form.",
        ),
        "patternProperties": {r"^counter\..": {"type": ["number", "null"], "minimum": 0}},
    },
    "Measurement": _object(
        {
            "op": _OP_REFERENCE, "threads": _COUNT,
            "seconds": {"type": "array", "items": _SAMPLE, "minItems": 1, "description": "samples, as taken"},
        },
        {
            "machine": {"type": "string", "description": "fingerprint"},
            "affinity": {"enum": [a.value for a in Affinity], "default": "compact"},
            "counters": {
                "type": "object", "description": "counts a run, one a sample; null where it could not be read",
                "additionalProperties": {"type": "array", "items": {"type": ["number", "null"], "minimum": 0}},
            },
            "conditions": {
                "type": "object", "description": "how it was measured",
                "additionalProperties": {"type": ["string", "number", "boolean", "null"]},
            },
        },
        description="All samples of an op in a case on a machine.", closed=True,
    ),
    "Measurements": _object(
        {
            "total": {"type": "integer", "minimum": 0},
            "next": {"type": ["integer", "null"], "description": "`after` of the next page"},
            "machines": {"type": "array", "items": ref("Machine")},
            "ops": {"type": "array", "items": ref("Op")},
        },
        {
            "measurements": {"type": "array", "items": ref("Measurement")},
            "rows": {"type": "array", "items": ref("MeasurementRow")},
        },
        description="A page of measurements, with the machines and ops that it names.", closed=True,
    ),
    "Stored": _object(
        {"measurements": {"type": "integer", "minimum": 0}, "samples": {"type": "integer", "minimum": 0}},
        description="How much was stored, now or under this Idempotency-Key before.", closed=True,
    ),
    "Health": _object(
        {"status": {"enum": ["live", "ready"]}},
        {
            "model": {"type": "string", "description": "name@version that answered the readiness probe"},
            "planner": {"enum": ["ready", "compiling"], "description": "Plans wait while the planner is compiling."},
        },
        description="What a health check answers.", closed=True,
    ),
    "Info": _object(
        {
            "version": {"type": "string"},
            "limits": {
                "type": "object",
                "additionalProperties": _object(
                    {"value": {"type": "number"}, "unit": {"type": "string"}, "meaning": {"type": "string"}},
                    description="A limit.", closed=True,
                ),
            },
            "policies": {"type": "array", "items": {"type": "string"}},
            "default_model": {"type": "string"},
            "formats": {"type": "array", "items": {"type": "string"}},
        },
        description="What the service is and allows.", closed=True,
    ),
    "Model": _object(
        {
            "schema": {"const": "threadcast.model/1"},
            "version": {"type": "string", "description": "name@number"},
            "model": {"type": "string", "description": "kind of model"},
            "created": {"type": "string", "description": "ISO 8601, UTC"},
            "trained_on": {"type": "object"}, "metrics": {"type": "object"}, "libraries": {"type": "object"},
            "files": {"type": "object", "description": "sha256 and bytes by name"},
        },
        description="A registered version.",
    ),
    "Models": _object(
        {"models": {"type": "array", "items": ref("Model")}, "aliases": _ALIASES},
        description="What is registered.", closed=True,
    ),
    "Aliases": _object({"aliases": _ALIASES}, description="What every alias stands for.", closed=True),
    "Alias": _object(
        {
            "alias": {"type": "string"}, "version": {"type": "string", "description": "name@number"},
            "history": {
                "type": "array",
                "items": _object(
                    {
                        "version": {"type": "string"}, "time": {"type": "string"}, "rollback": {"type": "boolean"},
                        "by": {"type": "string", "description": "who moved it; empty where that was not recorded"},
                    },
                    description="A move.", closed=True,
                ),
            },
        },
        description="What an alias stands for and has stood for.", closed=True,
    ),
    "Problem": _object(
        {
            "type": {"type": "string"}, "title": {"type": "string"}, "status": {"type": "integer"},
            "detail": {"type": "string"},
            "pointer": {"type": "string", "description": "JSON pointer to the wrong field; empty for the whole"},
            "in": {"enum": ["body", "query", "path", "header"], "description": "what the pointer points into"},
        },
        {
            "errors": {"type": "array", "items": {"type": "object"}, "description": "all of several findings"},
            "reference": {"type": "string", "description": "where to look in the server's log"},
        },
        description="An error (RFC 9457).",
    ),
}  # fmt: skip


def answers(component: str, description: str, *, status: int = 200) -> dict[int | str, Any]:
    """Return the argument of `doc(responses=...)` for an answer that is one of `COMPONENTS`."""
    return {status: {"description": description, "content": {"application/json": {"schema": ref(component)}}}}
