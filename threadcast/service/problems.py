"""Answers errors with `application/problem+json` (RFC 9457), with a JSON pointer to the wrong field."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from http import HTTPStatus
from typing import Any, Literal

from apiflask import APIFlask
from apiflask.exceptions import HTTPError
from flask import Response, request
from pydantic import ValidationError
from werkzeug.exceptions import HTTPException

from threadcast.core.errors import (
    ArtefactError,
    FormatError,
    InvalidInput,
    ModelError,
    NotFound,
    StoreError,
    ThreadcastError,
    UnknownKind,
)
from threadcast.service.answers import PROBLEM
from threadcast.service.formats import is_choice
from threadcast.service.request_marks import request_id

MEDIA_TYPE = PROBLEM
Where = Literal["body", "query", "path", "header"]
Headers = Mapping[str, str] | Sequence[tuple[str, str]]

_SAID = {"missing": "this member is missing", "extra_forbidden": "unknown member"}
"""What findings of pydantic of these types are called here."""

MOST_FINDINGS = 50
"""Most findings about a body that a problem lists."""

MOST_DETAIL = 300
"""Most characters of what is wrong with one op of many: clients bound their answers (`prediction.answers`)."""

_STATUS: tuple[tuple[type[ThreadcastError], int], ...] = (
    (NotFound, 404),
    (InvalidInput, 422),
    (ModelError, 422),
    (StoreError, 503),
    (ArtefactError, 503),
)
"""Statuses of the errors that other parts of threadcast raise; any other error is a fault of the service: 500."""

_DETAIL = {
    404: "no such path; see /docs",
    405: "this path does not take that method; Allow names those that it takes",
    413: "the body is longer than max_body_bytes of /v1/info",
    415: "the body must be application/json",
}
_log = logging.getLogger(__name__)


class Problem(Exception):
    """An error that is answered with this HTTP status; `pointer` is a JSON pointer into `where`.

    `errors` are all findings, as `answer` takes them.
    """

    def __init__(
        self, status: int, detail: str, *, pointer: str = "", where: Where = "body", headers: Headers = (),
        errors: Sequence[Mapping[str, str]] = (),
    ) -> None:  # fmt: skip
        super().__init__(detail)
        self.status, self.detail, self.pointer, self.where = status, detail, pointer, where
        self.headers, self.errors = headers, errors

    def member(self) -> dict[str, Any]:
        """The problem of one op in an answer that has forecasts of others."""
        title = HTTPStatus(self.status).phrase
        return {
            "type": "about:blank", "title": title, "status": self.status, "detail": self.detail[:MOST_DETAIL],
            "pointer": self.pointer,
        }  # fmt: skip


def all_of(problems: Iterable[Problem]) -> Problem:
    """The first of these problems, with what is wrong by all of them."""
    found = list(problems)
    errors = [{"detail": one.detail, "pointer": one.pointer} for one in found[:MOST_FINDINGS]]
    return Problem(found[0].status, found[0].detail, pointer=found[0].pointer, errors=errors)


def document(status: int, detail: str, reference: str, *, pointer: str = "", where: Where = "body") -> dict[str, Any]:
    """Return the members that every problem document has; `reference` is the id of the request."""
    return {
        "type": "about:blank", "title": HTTPStatus(status).phrase, "status": status, "detail": detail,
        "pointer": pointer, "in": where, "reference": reference,
    }  # fmt: skip


def answer(
    status: int,
    detail: str,
    *,
    pointer: str = "",
    where: Where = "body",
    errors: Sequence[Mapping[str, str]] = (),
    headers: Headers = (),
) -> Response:
    """Return the problem document as a response.

    `errors` are all findings, with the members `detail` and `pointer`; the answer has them where there is more than
    one.
    """
    described = document(status, detail, request_id(), pointer=pointer, where=where)
    if len(errors) > 1:
        described["errors"] = [dict(error) for error in errors]
    return Response(json.dumps(described), status, _pairs(headers), content_type=MEDIA_TYPE)


def _pairs(headers: Headers) -> list[tuple[str, str]]:
    return list(headers.items()) if isinstance(headers, Mapping) else list(headers)


def install(app: APIFlask) -> None:
    """Make `app` answer every error with a problem document."""
    app.error_processor(_refused_input)
    app.register_error_handler(Problem, _problem)
    app.register_error_handler(HTTPException, _http)
    app.register_error_handler(ThreadcastError, _threadcast)
    app.register_error_handler(Exception, lambda error: unexpected(error))


def _problem(problem: Problem) -> Response:
    return answer(
        problem.status, problem.detail, pointer=problem.pointer, where=problem.where, headers=problem.headers,
        errors=problem.errors,
    )  # fmt: skip


def _http(error: HTTPException) -> Response:
    status = error.code or 500
    headers = {name: value for name, value in error.get_headers() if name.lower() not in ("content-type",)}
    where: Where = "path" if status in (404, 405) else "header" if status == 415 else "body"
    return answer(status, _DETAIL.get(status, error.description or error.name), where=where, headers=headers)


def _threadcast(error: ThreadcastError) -> Response:
    for kind, status in _STATUS:
        if isinstance(error, kind):
            if status >= 500 and not isinstance(error, UnknownKind):  # messages may name this machine's paths
                return unexpected(error, status, "the store or the models cannot be read or written at the moment")
            return answer(status, str(error), pointer=error.pointer if isinstance(error, FormatError) else "")
    return unexpected(error)


def unexpected(error: Exception, status: int = 500, what: str = "the service failed") -> Response:
    """Log `error`, and return an answer without it, which names only the reference under which the log has it."""
    reference = request_id()
    _log.error("%s %s failed (reference %s)", request.method, request.path, reference, exc_info=error)
    return answer(status, f"{what}; the server's log has the reason under {reference}")


def _refused_input(error: HTTPError) -> Response:
    """Return the answer to an input error of APIFlask, with all findings of pydantic."""
    cause = error.__cause__
    if not isinstance(cause, ValidationError):
        return answer(error.status_code, str(error.message))
    where: Where = "query" if request.method == "GET" else "body"
    errors = [
        {"detail": _detail(found), "pointer": pointer_of(found["loc"])}
        for found in cause.errors(include_url=False, include_context=False)[:MOST_FINDINGS]
    ]
    detail = f"{errors[0]['pointer'] or 'the body'}: {errors[0]['detail']}"
    return answer(422, detail, pointer=errors[0]["pointer"], where=where, errors=errors)


def _detail(found: Any) -> str:
    """What is wrong by a finding of pydantic, and the value where it is there and short."""
    said = str(_SAID.get(found["type"], found["msg"]))
    if found["type"] in _SAID or not isinstance(found["input"], str | int | float | None):
        return said
    value = repr(found["input"])
    return f"{said}, got {value if len(value) <= 60 else value[:57] + '...'}"


def pointer_of(location: Iterable[int | str]) -> str:
    """Return the JSON pointer (RFC 6901) to the place of an error that pydantic found."""
    parts = (str(part) for part in location if not is_choice(part))
    return "".join("/" + part.replace("~", "~0").replace("/", "~1") for part in parts)
