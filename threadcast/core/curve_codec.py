"""The two forms in which a curve table leaves the process as JSON, each with its reader.

- answer: a JSON document with cases and sources by name, for `POST /v1/predictions` and `threadcast predict --json`
  (`docs/formats.md`).
- codes: a document whose arrays are their bytes in memory, in base64, for stored plans and other processes.
"""

from __future__ import annotations

import math
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from threadcast.core.case import Affinity, Case
from threadcast.core.curve import Floats, Source
from threadcast.core.curve_table import CurveTable
from threadcast.core.errors import FormatError

SOURCE_NAMES = tuple(source.value for source in Source)
"""Names of the sources; the numbers in `CurveTable.source` are positions in this tuple."""

_CODES = {name: code for code, name in enumerate(SOURCE_NAMES)}
_TYPES = {"seconds": "<f8", "low": "<f8", "high": "<f8", "source": "i1"}


def case_documents(cases: Sequence[Case]) -> list[dict[str, Any]]:
    """The cases in the answer form: one object for each, with members `threads` and `affinity`."""
    return [{"threads": case.threads, "affinity": case.affinity.value} for case in cases]


def _number_rows(array: Floats) -> list[list[float | None]]:
    rows: list[list[float | None]] = array.tolist()
    if not np.isfinite(array).all():
        rows = [[s if s is not None and math.isfinite(s) else None for s in row] for row in rows]
    return rows


def to_answer(table: CurveTable) -> dict[str, Any]:
    """The table as a JSON document in the answer form; numbers are null where an op's curve lacks a case."""
    return {
        "cases": case_documents(table.cases),
        **{name: _number_rows(getattr(table, name)) for name in ("seconds", "low", "high")},
        "source": [[SOURCE_NAMES[code] for code in row] for row in table.source],
        "model": table.model,
    }


def from_answer(document: Mapping[str, Any], *, cases: Sequence[Case], rows: int) -> CurveTable:
    """The table in a document of the answer form.

    The caller passes the `cases` and the number of ops (`rows`) that the document must have, and has checked its member
    `model`. FormatError unless every point is a finite number of at least 0 and lies within its interval.
    """
    shape = (rows, len(cases))
    seconds, low, high = (_numbers_read(document, name, shape) for name in ("seconds", "low", "high"))
    table = CurveTable(tuple(cases), seconds, low, high, _sources_read(document, shape), document["model"])
    check_points(table)
    return table


def check_points(table: CurveTable) -> None:
    """FormatError unless every point is finite, at least 0 and within its interval, and its source is known."""
    for name in ("seconds", "low", "high"):
        numbers = getattr(table, name)
        if not np.all(np.isfinite(numbers)) or np.any(numbers < 0):
            raise FormatError(f"{name} must be finite and at least 0", pointer=f"/{name}")
    if np.any(table.low > table.seconds * (1 + 1e-9)) or np.any(table.high < table.seconds * (1 - 1e-9)):
        raise FormatError("points are outside their interval", pointer="/seconds")
    if np.any((table.source < 0) | (table.source >= len(SOURCE_NAMES))):
        raise FormatError(f"source must be 0 to {len(SOURCE_NAMES) - 1}", pointer="/source")


def _numbers_read(document: Mapping[str, Any], name: str, shape: tuple[int, int]) -> Floats:
    pointer = f"/{name}"
    try:
        array = np.asarray(document.get(name))
    except ValueError as error:
        raise FormatError(f"{name} has rows of different lengths", pointer=pointer) from error
    if array.shape != shape or array.dtype.kind not in "iuf":
        found = f"{array.dtype} of shape {array.shape}"
        raise FormatError(f"{name} is {found}, expected numbers of shape {shape}", pointer=pointer)
    return array.astype(np.float64)


def _sources_read(document: Mapping[str, Any], shape: tuple[int, int]) -> NDArray[np.int8]:
    rows = document.get("source")
    try:
        if not isinstance(rows, list):
            raise TypeError
        codes = np.array([[_CODES[name] for name in row] for row in rows], dtype=np.int8)
    except (KeyError, TypeError, ValueError) as error:
        raise FormatError(f"source must be rows of {', '.join(_CODES)}", pointer="/source") from error
    if codes.shape != shape:
        raise FormatError(f"source has shape {codes.shape}, expected {shape}", pointer="/source")
    return codes


def to_codes(table: CurveTable) -> dict[str, Any]:
    """The table as a compact JSON document."""
    return {
        "cases": [[case.threads, case.affinity.value] for case in table.cases], "ops": len(table),
        **{
            name: b64encode(np.ascontiguousarray(getattr(table, name), kind).tobytes()).decode()
            for name, kind in _TYPES.items()
        },
        "model": table.model,
    }  # fmt: skip


def from_codes(document: Mapping[str, Any]) -> CurveTable:
    """The table that `to_codes` wrote; FormatError for any other document."""
    try:
        cases = tuple(Case(threads, Affinity(affinity)) for threads, affinity in document["cases"])
        shape = document["ops"], len(cases)
        arrays = {
            name: np.frombuffer(b64decode(document[name], validate=True), kind).reshape(shape).copy()
            for name, kind in _TYPES.items()
        }
        return CurveTable(cases, **arrays, model=document["model"])
    except (LookupError, TypeError, ValueError) as error:
        raise FormatError(f"not a table of curves: {error!r}") from error
