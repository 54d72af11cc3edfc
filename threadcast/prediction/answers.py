"""Reading what the prediction service answers, and refusing whatever is not exactly that."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from threadcast.core import Case, CurveTable, Machine, Source
from threadcast.core.errors import ServiceError

HEAD_BYTES, CASE_BYTES, KEY_BYTES, POINT_BYTES = 4096, 64, 256, 128
"""Room that an answer needs at most: for its envelope, for a case, for an op's key, and for one point (three numbers
of at most 24 digits each, the name of its source, separators)."""

MAX_MODEL_NAME = 200
"""Characters; a longer model name is taken for garbage."""

_CODES = {source.value: code for code, source in enumerate(Source)}


def max_answer_bytes(ops: int, cases: int) -> int:
    """The most bytes that a true answer for so many ops and cases can have."""
    return HEAD_BYTES + CASE_BYTES * cases + ops * (KEY_BYTES + POINT_BYTES * cases)


def read_curves(content: bytes, *, keys: Sequence[str], cases: Sequence[Case], machine: Machine) -> CurveTable:
    """Return the table in an answer of `POST /v1/predictions` to these op keys, cases and machine.

    ServiceError unless it is JSON, answers exactly this question, and every point is finite, at least 0 and
    enclosed by its interval.
    """
    try:
        document = json.loads(content.decode(), parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise ServiceError(f"the answer is not JSON: {error}") from error
    if not isinstance(document, dict):
        raise ServiceError(f"the answer is no JSON object but {str(document)[:60]!r}")
    model = document.get("model")
    if not isinstance(model, str) or not 0 < len(model) <= MAX_MODEL_NAME:
        raise ServiceError(f"the answer names no model: {str(model)[:60]!r}")
    for name, asked in (
        ("machine", machine.fingerprint),
        ("ops", list(keys)),
        ("cases", [{"threads": case.threads, "affinity": case.affinity.value} for case in cases]),
    ):
        if document.get(name) != asked:
            raise ServiceError(f"the answer is about other {name} than were asked for")
    shape = (len(keys), len(cases))
    seconds, low, high = (_numbers(document, name, shape) for name in ("seconds", "low", "high"))
    if np.any(low > seconds * (1 + 1e-9)) or np.any(high < seconds * (1 - 1e-9)):
        raise ServiceError("the answer has points outside their interval")
    return CurveTable(tuple(cases), seconds, low, high, _sources(document, shape), model)


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number")


def _numbers(document: dict[str, Any], name: str, shape: tuple[int, int]) -> NDArray[np.float64]:
    try:
        array = np.asarray(document.get(name))
    except ValueError as error:
        raise ServiceError(f"{name} of the answer is ragged") from error
    if array.shape != shape or array.dtype.kind not in "iuf":
        raise ServiceError(f"{name} of the answer is {array.dtype} of shape {array.shape}, expected numbers of {shape}")
    numbers = array.astype(np.float64)
    if not np.all(np.isfinite(numbers)) or np.any(numbers < 0):
        raise ServiceError(f"{name} of the answer must be finite and at least 0")
    return numbers


def _sources(document: dict[str, Any], shape: tuple[int, int]) -> NDArray[np.int8]:
    rows = document.get("source")
    try:
        if not isinstance(rows, list):
            raise TypeError
        codes = np.array([[_CODES[name] for name in row] for row in rows], dtype=np.int8)
    except (KeyError, TypeError, ValueError) as error:
        raise ServiceError(f"source of the answer must be rows of {', '.join(_CODES)}") from error
    if codes.shape != shape:
        raise ServiceError(f"source of the answer has shape {codes.shape}, expected {shape}")
    return codes
