"""Curve tables as JSON text: whole arrays at once, since one Python float at a time takes seconds."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from threadcast.core import Case, CurveTable, Source
from threadcast.core.curve import Floats

ROWS = 1_000
"""Of a table that are written in one call: a few milliseconds, in which no other thread goes on."""

_NAMES = [orjson.dumps(source.value) for source in Source]


def curve_json(head: Mapping[str, Any], table: CurveTable) -> bytes:
    """The members of `head` and those of `table.to_json()` as one JSON object; floats survive to the last bit."""
    members = {
        **head,
        "cases": orjson.Fragment(_cases(table.cases)),
        **{name: orjson.Fragment(_numbers(getattr(table, name))) for name in ("seconds", "low", "high")},
        "source": orjson.Fragment(_sources(table.source)),
        "model": table.model,
    }
    return orjson.dumps(members)


@lru_cache(maxsize=64)
def _cases(cases: tuple[Case, ...]) -> bytes:
    """The JSON array of the cases: those of a machine are asked for again and again."""
    return orjson.dumps([{"threads": case.threads, "affinity": case.affinity.value} for case in cases])


def _numbers(array: Floats) -> bytes:
    """The JSON array of the rows of (n_ops, n_cases), null where a number is not finite."""
    rows = np.ascontiguousarray(array)
    if len(rows) <= ROWS:
        return orjson.dumps(rows, option=orjson.OPT_SERIALIZE_NUMPY)
    parts = (_numbers(rows[start : start + ROWS])[1:-1] for start in range(0, len(rows), ROWS))
    return b"[" + b",".join(parts) + b"]"


def _sources(codes: NDArray[np.int8]) -> bytes:
    return b"[" + b",".join(_source_row(row.tobytes()) for row in codes) + b"]"


@lru_cache(maxsize=4_096)
def _source_row(codes: bytes) -> bytes:
    """The JSON array of the names of one op's sources: there are few different ones."""
    return b"[" + b",".join(_NAMES[code] for code in codes) + b"]"
