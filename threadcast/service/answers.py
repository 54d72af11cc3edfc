"""What an operation answers, for the description: a schema for every status, headers, and what else it reads."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from threadcast.prediction import arrow_curves

ANSWERS, PARAMETERS, EXAMPLE, DOCUMENT, SCOPE = "x-answers", "x-parameters", "x-example", "x-document", "x-scope"
"""Names of the extensions in which a route describes itself until the description is complete: its answers; the headers
that it reads and the variables of its path; an `Example`; the class of the document that it answers with; and the scope
of the keys that may ask, where it is not that of its method."""

HOST = "localhost:8321"
"""Where the examples of the description find the service."""

RATE_LIMIT, RATE_LIMIT_POLICY = "RateLimit", "RateLimit-Policy"
"""Headers of draft-ietf-httpapi-ratelimit-headers-10."""

JSON, PROBLEM = "application/json", "application/problem+json"
ARROW = arrow_curves.MEDIA_TYPE

PROBLEMS = {
    400: "The body is not JSON or no gzip, or the request is no HTTP.",
    401: "No key, or one that is not known.",
    403: "The key does not allow this.",
    404: "Something that the request names is not there.",
    406: "No form that the request accepts is offered.",
    409: "The alias cannot go back, or the idempotency key was used for another body.",
    412: "The answer is still the one with the entity tag that If-None-Match names.",
    413: "The body is too long.",
    414: "The request line is too long.",
    415: "The body is of another type, or compressed by something else than gzip.",
    421: "The request is for another host.",
    422: "A member is missing, unknown, of a wrong type, or does not go with the others.",
    429: "Too many requests, at once or over time.",
    431: "The request line and the headers are too long, together.",
    500: "A fault of the service.",
    503: "The store or the models cannot be read or written, the time was up, or planning took too much memory.",
}
"""Every status of a problem, with the reason."""

_RATES = (RATE_LIMIT, RATE_LIMIT_POLICY)
_ALWAYS = (400, 414, 421, 431, 500, 503)
_WITH_BODY = (413, 415, 422)
_WITH_HEADERS = {412: ("ETag",), 401: ("WWW-Authenticate",), 403: ("WWW-Authenticate",), 429: ("Retry-After",)}

HEADERS: dict[str, dict[str, Any]] = {
    "X-Request-Id": {"description": "the request's own, or a new one; the log has it", "schema": {"type": "string"}},
    "Server-Timing": {
        "description": "milliseconds: total, and of the parts that there were",
        "schema": {"type": "string"},
    },
    "ETag": {"description": "equal for equal answers, in every process", "schema": {"type": "string"}},
    "Cache-Control": {"description": "no-cache: a cache must ask each time", "schema": {"type": "string"}},
    "Vary": {"description": "Accept, where there are several forms", "schema": {"type": "string"}},
    "Content-Location": {"description": "where the plan is kept", "schema": {"type": "string"}},
    "Idempotency-Replayed": {
        "description": "true where an earlier answer is repeated and nothing was stored",
        "schema": {"enum": ["true"]},
    },
    "Retry-After": {"description": "seconds", "schema": {"type": "string"}},
    RATE_LIMIT: {
        "description": '"requests";r=99;t=12: 99 more are allowed at once, and all of a period in 12 seconds. '
        "Where the service, or the key, has a rate",
        "schema": {"type": "string"},
    },
    RATE_LIMIT_POLICY: {
        "description": '"requests";q=100;w=60: 100 requests in 60 seconds',
        "schema": {"type": "string"},
    },
    "WWW-Authenticate": {"description": "how to send a key", "schema": {"type": "string"}},
}
"""Headers of answers."""

READ: dict[str, dict[str, Any]] = {
    "X-Request-Id": {
        "name": "X-Request-Id", "in": "header", "schema": {"type": "string"},
        "description": "an id of the caller's: letters, digits and ._:/+=-, at most 128; others are replaced",
    },
    "If-None-Match": {
        "name": "If-None-Match", "in": "header", "schema": {"type": "string"},
        "description": "the ETag of an answer that the caller has",
    },
    "X-Deadline-S": {
        "name": "X-Deadline-S", "in": "header", "schema": {"type": "number", "exclusiveMinimum": 0},
        "description": "seconds after which the caller stops waiting; then the work is stopped",
    },
}  # fmt: skip
"""Headers of requests that several routes read."""


@dataclass(frozen=True, slots=True)
class Example:
    """A request that works on a service with nothing stored, which answers it with `status`.

    Where that is no good answer, `until` says what is missing; `then` is the status once the example before has made
    it. Values of the path may be functions that give them.
    """

    body: Any = None
    path: Mapping[str, str | Callable[[], str]] = field(default_factory=dict)
    query: str = ""
    status: int = 200
    until: str = ""
    then: int | None = None

    def address(self, path: str) -> str:
        """The path and the query of the request."""
        for name, value in self.path.items():
            path = path.replace(f"{{{name}}}", value if isinstance(value, str) else value())
        return path + self.query

    def text(self, method: str, path: str) -> str:
        """The request as a command, in Markdown, after a sentence about its status."""
        command = ["curl", *(() if method == "get" else ("-X", method.upper())), HOST + self.address(path)]
        if self.body is not None:
            command += ["-H", "Content-Type: application/json", "-d", json.dumps(self.body)]
        until = f" until {self.until}" if self.until else ""
        then = f", and {self.then} from then on" if self.then else ""
        return f"Example, answered by {self.status}{until}{then}:\n\n    {shlex.join(command)}"


def answer(
    document: type | None,
    description: str,
    *,
    status: int = 200,
    tagged: bool = False,
    forms: Sequence[str] = (JSON,),
    headers: Sequence[str] = (),
    optional: Sequence[str] = (),
    problems: Collection[int] = (),
    reads: Sequence[str] = (),
    parameters: Sequence[Mapping[str, Any]] = (),
    example: Example | None = None,
    scope: str | None = None,
) -> dict[str, Any]:
    """Return the argument of `doc(extensions=...)` for a route whose good answer is a document of this class, or text.

    `tagged`: the answer has an entity tag. `forms`: its media types; the document is what JSON has. `headers`: of the
    answer, `optional` ones only sometimes. `problems`: statuses beside those that every route has. `reads`: headers of
    `READ`; `parameters`: others, and variables of the path. `example`: by default a request without a body.
    `scope`: of the keys that may ask; None: `read` for GET, `admin` for all else.
    """
    schema = {"$ref": f"#/components/schemas/{document.__name__}"} if document else {"type": "string"}
    content = {form: {"schema": {"type": "string", "format": "binary"} if form == ARROW else schema} for form in forms}
    always = ["ETag", "Cache-Control"] if tagged else []
    always += ["Vary"] if len(forms) > 1 else []
    good = {"description": description, "content": content, "headers": _headers([*always, *headers], optional)}
    answers: dict[str, Any] = {str(status): good, "problems": sorted(problems)}
    named = [*(READ[name] for name in reads), *parameters]
    return {ANSWERS: answers, PARAMETERS: named, EXAMPLE: example or Example(), DOCUMENT: document, SCOPE: scope}


def complete(operation: dict[str, Any], method: str, path: str, *, open_to_all: bool) -> None:
    """Replace the extensions of an operation of the description by its parameters and all its answers."""
    answers, example = operation.pop(ANSWERS), operation.pop(EXAMPLE)
    operation.pop(SCOPE)
    operation["description"] = f"{operation.get('description', '')}\n\n{example.text(method, path)}".strip()
    named = [READ["X-Request-Id"], *operation.pop(PARAMETERS)]
    statuses = {*_ALWAYS, *answers.pop("problems")}
    under_v1 = path.startswith("/v1/")
    if not open_to_all:
        statuses |= {401, 403}
    if under_v1:
        statuses |= {429}
    if "requestBody" in operation:
        statuses |= set(_WITH_BODY)
        operation["requestBody"]["content"][JSON]["example"] = example.body
    (good,) = answers.values()
    if method == "get" and under_v1:
        good["headers"] |= _headers(["ETag", "Cache-Control"])
        answers["304"] = {"description": "Nothing has changed.", "headers": _headers(["X-Request-Id", "ETag"], _RATES)}
        named.append(READ["If-None-Match"])
    good["headers"] |= _headers(["X-Request-Id", "Server-Timing"], _RATES)
    known = {parameter["name"]: parameter for parameter in [*operation.get("parameters", []), *named]}
    operation["parameters"] = [_without_null(parameter) for parameter in known.values()]
    for parameter in operation["parameters"]:
        parameter.setdefault("required", parameter["in"] == "path")
    problems = {str(status): {"$ref": f"#/components/responses/{status}"} for status in sorted(statuses)}
    operation["responses"] = {**answers, **problems}


def problem_responses() -> dict[str, Any]:
    """Return the components of the description that are answers with a problem, by status."""
    return {
        str(status): {
            "description": description,
            "content": {PROBLEM: {"schema": {"$ref": "#/components/schemas/Problem"}}},
            "headers": _headers(_WITH_HEADERS.get(status, ()), ["X-Request-Id", "Retry-After", *_RATES]),
        }
        for status, description in PROBLEMS.items()
    }  # fmt: skip


def _headers(required: Sequence[str], optional: Sequence[str] = ()) -> dict[str, Any]:
    found = {name: {**HEADERS[name], "required": False} for name in optional}
    return found | {name: {**HEADERS[name], "required": True} for name in required}


def _without_null(parameter: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameter without the type null, which pydantic adds where a parameter may be left out."""
    choices = [choice for choice in parameter["schema"].get("anyOf", ()) if choice != {"type": "null"}]
    if len(choices) != 1:
        return dict(parameter)
    rest = {name: value for name, value in parameter["schema"].items() if name not in ("anyOf", "default")}
    return {**parameter, "schema": {**choices[0], **rest}}
