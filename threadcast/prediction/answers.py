"""Reads the prediction service's answers, and refuses answers that do not follow the format exactly."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, NoReturn, TypeGuard

from threadcast.core import Case, CurveTable, Machine
from threadcast.core.curve_codec import case_documents, check_points, from_answer
from threadcast.core.errors import FormatError, ServiceError
from threadcast.prediction import arrow_curves

HEAD_BYTES, CASE_BYTES, KEY_BYTES, POINT_BYTES, ERROR_BYTES = 4096, 64, 256, 128, 2048
"""Most bytes in an answer for its envelope, for a case, for an op's key, for one point of a curve (three numbers of at
most 24 digits each, the name of the point's source, separators), and for what is wrong with an op (300 characters)."""

MAX_MODEL_NAME = 200
"""Most characters of a model name; an answer with a longer one is refused."""


class Forecasts(NamedTuple):
    """What an answer has of the ops that were asked for."""

    rows: list[int]
    """The positions of the ops that were forecast."""
    table: CurveTable
    """One row for each of these."""
    why_not: str = ""
    """What is wrong with the first of the others; empty where there is none."""


def max_answer_bytes(ops: int, cases: int) -> int:
    """Return the most bytes that a correct answer for so many ops and cases can have."""
    return HEAD_BYTES + CASE_BYTES * cases + ops * (KEY_BYTES + max(POINT_BYTES * cases, ERROR_BYTES))


def read_stream(content: bytes, *, keys: Sequence[str], cases: Sequence[Case], machine: Machine) -> Forecasts:
    """As `read_curves`, of an answer that is an Arrow stream."""
    try:
        document, table = arrow_curves.read_stream(content, keys=keys, cases=cases)
        rows, why_not = _forecast(document, len(keys))
        table = table if len(rows) == len(keys) else table.take(rows)
        check_points(table)
    except FormatError as error:
        raise ServiceError(f"the answer has no table of curves: {error}") from error
    _check_head(document, machine)
    return Forecasts(rows, table, why_not)


def read_curves(content: bytes, *, keys: Sequence[str], cases: Sequence[Case], machine: Machine) -> Forecasts:
    """Return the curves in an answer of `POST /v1/predictions` about these op keys, cases and machine.

    ServiceError unless the answer is JSON, is about exactly these, and every predicted time is finite, at least 0 and
    within its interval.
    """
    try:
        document = json.loads(content.decode(), parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise ServiceError(f"the answer is not JSON: {error}") from error
    if not isinstance(document, dict):
        raise ServiceError(f"the answer is no JSON object but {str(document)[:60]!r}")
    _check_head(document, machine)
    for name, asked in (("ops", list(keys)), ("cases", case_documents(cases))):
        if document.get(name) != asked:
            raise ServiceError(f"the answer is about other {name} than were asked for")
    try:
        rows, why_not = _forecast(document, len(keys))
        for name in ("seconds", "low", "high", "source") if why_not else ():
            if _has(found := document.get(name), len(keys)):
                document[name] = [found[row] for row in rows]
        return Forecasts(rows, from_answer(document, cases=cases, rows=len(rows)), why_not)
    except FormatError as error:
        raise ServiceError(f"the answer has no table of curves: {error}") from error


def _forecast(document: Mapping[str, Any], ops: int) -> tuple[list[int], str]:
    """The positions of the ops that have a forecast, and what is wrong with the first of the others."""
    errors = document.get("errors", [None] * ops)
    if not _has(errors, ops):
        raise FormatError(f"errors must be {ops} problems or null", pointer="/errors")
    wrong = [error for error in errors if error is not None]
    if not all(isinstance(error, dict) and isinstance(error.get("detail"), str) for error in wrong):
        raise FormatError("a problem must be an object with a detail", pointer="/errors")
    return [row for row, error in enumerate(errors) if error is None], wrong[0]["detail"][:300] if wrong else ""


def _has(table: object, rows: int) -> TypeGuard[list[Any]]:
    return isinstance(table, list) and len(table) == rows


def _check_head(document: Mapping[str, Any], machine: Machine) -> None:
    model = document.get("model")
    if not isinstance(model, str) or not 0 < len(model) <= MAX_MODEL_NAME:
        raise ServiceError(f"the answer names no model: {str(model)[:60]!r}")
    if document.get("machine") != machine.fingerprint:
        raise ServiceError("the answer is about other machine than were asked for")


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number")
