"""Curve tables as JSON text: whole arrays at once, since one Python float at a time takes seconds."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow
import pyarrow.compute

from threadcast.core import CurveTable, Source

FEW = 2_000
"""Points up to which Python is faster: each call of Arrow's takes microseconds, and lets other threads go first."""

_SOURCES = pyarrow.array([json.dumps(source.value) for source in Source])


def curve_json(head: Mapping[str, Any], table: CurveTable) -> str:
    """The members of `head` and those of `table.to_json()` as one JSON object; floats survive to the last bit."""
    if table.seconds.size <= FEW:
        return json.dumps({**head, **table.to_json()}, separators=(",", ":"))
    members = {name: json.dumps(value) for name, value in {**head, **table.take([]).to_json()}.items()}
    for name in ("seconds", "low", "high"):
        numbers = pyarrow.array(getattr(table, name).ravel())
        there = pyarrow.compute.is_finite(numbers)
        members[name] = _rows(pyarrow.compute.if_else(there, numbers.cast(pyarrow.string()), "null"), len(table.cases))
    members["source"] = _rows(_SOURCES.take(pyarrow.array(table.source.ravel())), len(table.cases))
    return "{" + ",".join(f"{json.dumps(name)}:{text}" for name, text in members.items()) + "}"


def _rows(cells: pyarrow.Array, width: int) -> str:
    """The JSON array of arrays of `width` cells, each of them JSON text."""
    starts = np.arange(0, len(cells) + 1, width, dtype=np.int32)
    rows = pyarrow.compute.binary_join(pyarrow.ListArray.from_arrays(starts, cells), ",").to_pylist()
    return "[" + ",".join(f"[{row}]" for row in rows) + "]"
