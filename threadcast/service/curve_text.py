"""Curve tables as JSON text for HTTP answers: whole arrays at once, as one Python float at a time takes seconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from threadcast.core import Case, CurveTable
from threadcast.core.curve import Floats
from threadcast.core.curve_codec import SOURCE_NAMES, case_documents, to_answer
from threadcast.core.curve_table import ARRAYS
from threadcast.core.identity_cache import CachedByIdentity
from threadcast.prediction import arrow_curves

ROWS = 1_000
"""Rows of a table that one call of orjson writes; it holds the interpreter lock for a few milliseconds."""

_NAMES = [orjson.dumps(name) for name in SOURCE_NAMES]


def curve_content(
    form: str, table: CurveTable, *, machine: str, keys: Sequence[str], errors: Sequence[Mapping[str, Any] | None] = ()
) -> bytes:
    """The body of an answer with this table (`core.curve_codec`) in one of `answer_forms.FORMS`; reading it returns
    floats exactly.

    `errors`, where there are any, has None for each op with a row in the table, and the problem of each other one.
    """
    if form == arrow_curves.MEDIA_TYPE:
        return arrow_curves.write_stream(table, machine=machine, keys=keys, errors=errors)
    document: dict[str, Any] = {"machine": machine, "ops": keys, "cases": _cases(table.cases), "model": table.model}
    if not errors:
        numbers = {name: _numbers(getattr(table, name)) for name in ARRAYS[:3]}
        return orjson.dumps({**document, **numbers, "source": _sources(table.source)})
    answer = to_answer(table)
    for name in ARRAYS:
        rows = iter(answer[name])
        document[name] = [next(rows) if error is None else None for error in errors]
    return orjson.dumps({**document, "errors": errors})


@CachedByIdentity
def _cases(cases: tuple[Case, ...]) -> orjson.Fragment:
    """The JSON array of the cases, cached: most requests ask for all cases of the same few machines."""
    return orjson.Fragment(orjson.dumps(case_documents(cases)))


def _numbers(array: Floats) -> orjson.Fragment:
    """The JSON array of the rows of (n_ops, n_cases), null where a number is not finite."""
    rows = np.ascontiguousarray(array)
    if len(rows) <= ROWS:
        return orjson.Fragment(_number_text(rows))
    parts = (_number_text(rows[start : start + ROWS])[1:-1] for start in range(0, len(rows), ROWS))
    return orjson.Fragment(b"[" + b",".join(parts) + b"]")


def _number_text(rows: Floats) -> bytes:
    return orjson.dumps(rows, option=orjson.OPT_SERIALIZE_NUMPY)


def _sources(codes: NDArray[np.int8]) -> orjson.Fragment:
    return orjson.Fragment(b"[" + b",".join(_source_row(row.tobytes()) for row in codes) + b"]")


@lru_cache(maxsize=4_096)
def _source_row(codes: bytes) -> bytes:
    """The JSON array of the source names of one op, cached: few different rows occur."""
    return b"[" + b",".join(_NAMES[code] for code in codes) + b"]"
