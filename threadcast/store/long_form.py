"""Measurements as one flat table, one row for each sample, in CSV, gzipped CSV or Parquet.

Tables of other programs are read too, in which columns have other names, units and layouts (`columns_of_others`), which
become these:

Columns: `machine, op, threads, affinity, repeat, seconds`, then any number of `feature.*` (numbers or text that
describe the op) and `counter.*` (counts per run; empty where not counted, nan where it could not be read). Beside
`feature.*` columns others are ignored.

`threads` and `seconds` suffice, with `op` or columns that describe ops. The ops of a table without any `feature.*`
column, such as `m, k, n, threads, seconds`, are described by its other columns but for results (`describing_columns`):
ops differ where these do, and their kind is what `op` says, else the name of the file. Columns called `trial`, `run`,
`rep`, `iteration`, `repetition`, `sample`, `pass` or `seed` number repetitions and describe nothing. Without `machine`
the file's name is its label. Without `repeat`, rows of the same machine, op and case are samples in their order.

Any program may write such a file. Then `machine` and `op` are labels. The machine is read as one of equal cores: as
many as the most threads in its rows, in as many equal cache groups as the most threads in its `spread` rows, or the
next possible number; its cases are those in its rows. The op is read as one of kind `feature.kind` ("op" without it)
and cost `feature.flops` and `feature.bytes`; the other features and its label are its attributes. `affinity` may be
missing or empty, which means compact.

Files that threadcast writes have four more columns, so that reading returns equal measurements: `json.machine` and
`json.op` are written once, on the first row of each machine and op; `json.conditions` on the first row of each
measurement, which marks where a measurement begins; and there `json.stored_s`, where what dates the measurement is when
a store took it.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from threadcast.core import Measurement, Op
from threadcast.core.errors import InvalidInput
from threadcast.core.measurement_time import date_s
from threadcast.store.columns_of_others import Choice, in_long_form
from threadcast.store.long_form_reading import LongFormReader
from threadcast.store.rows import json_text
from threadcast.store.table_files import ColumnKind, write_table
from threadcast.store.table_opening import open_table
from threadcast.store.unwritable import unwritable_names, wrong_values

_log = logging.getLogger(__name__)


def read_long_form(
    path: str | Path, *, machine: str | None = None, op: str | None = None, columns: Sequence[str] = (),
    note: Callable[[str], None] | None = None,
) -> list[Measurement]:  # fmt: skip
    """Read the measurements of a table of any program, in the order of their first rows.

    `machine` and `op` are the label of the machine and the kind of the ops where the file has no such columns; by
    default the file's name without its suffix. InvalidInput where it has them. `columns` say what columns are, each as
    `threads=num_threads` or `seconds=time_ms:ms` (`columns_of_others`). `note` is called with a sentence for each
    column that has another name or is left out, for rows without a time, and on what tells ops apart (by default it is
    logged). FormatError naming line and column for a missing or ambiguous column, a
    value that is out of range, a repeated row, or no rows at all; OSError when the file cannot be read.
    """
    choices, said = [Choice.read(text) for text in columns], note or _log.info
    with open_table(Path(path)) as raw:
        table = in_long_form(raw, choices, said)
        return LongFormReader(table, machine=machine, op=op, note=said).measurements()


def write_long_form(measurements: Iterable[Measurement], path: str | Path) -> None:
    """Write measurements so that `read_long_form` returns equal ones; on any error `path` is unchanged.

    A second measurement of the same op, machine and case continues the numbers in `repeat`. InvalidInput where there
    are no measurements, a name cannot be written, or a sample or time would be refused by `read_long_form`.
    """
    written = list(measurements)
    if not written:
        raise InvalidInput("there are no measurements to write")
    counters = list(dict.fromkeys(name for m in written for sample in m.samples for name in sample.counters))
    for name in (odd for m in written for odd in unwritable_names(m)):
        raise InvalidInput(f"{name!r} cannot be written to a table: op kinds and counters must be printable names")
    now_s = time.time()
    for m in written:
        if why := wrong_values(m, now_s=now_s):
            raise InvalidInput(f"a measurement of {m.op.key} at {m.case} cannot be written to a table: {why}")
    columns: dict[str, ColumnKind] = {
        "machine": "text", "op": "text", "threads": "integer", "affinity": "text", "repeat": "integer",
        "seconds": "number", "feature.kind": "text", "feature.inputs": "text", "feature.flops": "number",
        "feature.bytes": "number",
    }  # fmt: skip
    columns |= {f"counter.{name}": "number" for name in counters}
    columns |= {"json.machine": "text", "json.op": "text", "json.conditions": "text", "json.stored_s": "number"}
    write_table(Path(path), columns, _rows(written, counters))


def _rows(measurements: Sequence[Measurement], counters: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    described: set[str] = set()
    repeats: dict[tuple[Any, ...], int] = {}

    def once(identity: str, thing: Any) -> str | None:
        if identity in described:
            return None
        described.add(identity)
        return json_text(thing.to_json(), identity)

    for m in measurements:
        where = (m.machine.fingerprint, m.op.key, m.case.threads, m.case.affinity.value)
        features = (m.op.kind, _shapes(m.op), m.op.flops, m.op.bytes_moved)
        conditions: str | None = json_text(dict(m.conditions), f"a measurement of {m.op.key}")
        stored_s = m.stored_s if date_s(m.conditions.get("time"), m.stored_s) == m.stored_s else None
        for sample in m.samples:
            repeats[where] = repeat = repeats.get(where, 0) + 1
            counts = (_count(sample.counters[name]) if name in sample.counters else None for name in counters)
            machine, op = once(m.machine.fingerprint, m.machine), once(m.op.key, m.op)
            yield *where, repeat, sample.seconds, *features, *counts, machine, op, conditions, stored_s
            conditions = stored_s = None


def _shapes(op: Op) -> str:
    return " ".join("x".join(map(str, spec.shape)) or "1" for spec in op.inputs)


def _count(value: float | None) -> float:
    return math.nan if value is None else value
