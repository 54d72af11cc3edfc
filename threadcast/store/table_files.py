"""Tables as their columns and rows, which have a number for messages; reads Parquet, and writes it and CSV."""

from __future__ import annotations

import csv
import gzip
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Literal

from threadcast.core.atomic_file import replacing
from threadcast.core.errors import FormatError, InvalidInput

ColumnKind = Literal["text", "integer", "number"]

_ROWS_AT_ONCE = 100_000
"""Rows in one row group of a Parquet file: some 10 MB in memory."""


@dataclass(frozen=True, slots=True)
class TableFile:
    """An open table: its columns and its rows, which can be read once.

    `rows` yields each row's number and cells, or the FormatError of a row that cannot be read. Cells of a text are
    text, "" where empty; those of a Parquet file are Python values, None where null; its decimal numbers and binary
    values are text too. In a text the number is that of the line; elsewhere rows are counted from 1. `unit` is "line"
    or "row" accordingly.
    """

    path: Path
    columns: tuple[str, ...]
    rows: Iterator[tuple[int, Sequence[Any] | FormatError]]
    unit: str
    nested: frozenset[str] = frozenset()
    """Columns of lists, maps or structures, which Parquet files can have."""
    called: Mapping[str, str] = field(default_factory=dict)
    """What the file calls columns that have another name here."""
    features: frozenset[str] = frozenset()
    """Columns of which the user says that they describe ops."""

    def error(self, number: int, column: str, message: str) -> FormatError:
        """The error to raise about one cell."""
        return FormatError(f"{self.path}, {self.unit} {number}, column {self.called.get(column, column)!r}: {message}")


def write_table(path: Path, columns: Mapping[str, ColumnKind], rows: Iterable[Sequence[Any]]) -> None:
    """Write `rows`, one cell for each column and None where empty, to `path`; the file name's suffix tells its kind.

    On any error `path` is unchanged.
    """
    kind = _kind(path)
    with replacing(path) as draft:
        if kind == "parquet":
            _write_parquet(draft, columns, rows)
        else:
            opened = gzip.open if kind == "csv.gz" else open
            with opened(draft, "wt", encoding="utf-8", newline="") as text:
                writer = csv.writer(text, lineterminator="\n")
                writer.writerow(columns)
                writer.writerows(rows)


def digest_of(path: Path) -> str:
    """The SHA-256 of a file's bytes, as hexadecimal text; OSError where it cannot be read."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _kind(path: Path) -> str:
    for kind in ("csv", "csv.gz", "parquet"):
        if path.name.lower().endswith(f".{kind}"):
            return kind
    raise InvalidInput(f"{path}: a table's name must end in .csv, .csv.gz or .parquet")


@contextmanager
def open_parquet(path: Path, raw: BinaryIO) -> Iterator[TableFile]:
    """The table in an open Parquet file; FormatError for another file, here or while its rows are read."""
    import pyarrow
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(raw) as file:
            schema = file.schema_arrow
            nested = frozenset(column.name.strip() for column in schema if pyarrow.types.is_nested(column.type))
            yield TableFile(path, tuple(map(str.strip, schema.names)), _parquet_rows(file), "row", nested)
    except (pyarrow.ArrowException, OSError) as error:
        raise FormatError(f"{path} is not a whole Parquet file: {error}") from error


def _parquet_rows(file: Any) -> Iterator[tuple[int, Sequence[Any] | FormatError]]:
    number = 0
    for batch in file.iter_batches():
        for cells in zip(*map(_values, batch.columns)):
            number += 1
            yield number, cells


def _values(column: Any) -> list[Any]:
    import pyarrow

    if isinstance(column, pyarrow.DictionaryArray):
        words = _values(column.dictionary)  # a fortieth of the time of its own to_pylist
        return [None if i is None else words[i] for i in column.indices.to_pylist()]
    values: list[Any] = column.to_pylist()
    if pyarrow.types.is_decimal(column.type):
        return [None if value is None else str(value) for value in values]
    if column.type in (pyarrow.binary(), pyarrow.large_binary(), pyarrow.binary_view()) or isinstance(
        column, pyarrow.FixedSizeBinaryArray
    ):
        return [None if value is None else value.decode("utf-8", "backslashreplace") for value in values]
    return values


def _write_parquet(path: Path, columns: Mapping[str, ColumnKind], rows: Iterable[Sequence[Any]]) -> None:
    import pyarrow
    from pyarrow import parquet

    types = {
        "text": pyarrow.dictionary(pyarrow.int32(), pyarrow.string()),
        "integer": pyarrow.int64(),
        "number": pyarrow.float64(),
    }
    schema = pyarrow.schema([(name, types[kind]) for name, kind in columns.items()])
    with path.open("wb") as file, parquet.ParquetWriter(file, schema) as writer:  # which opens names in UTF-8 only
        for some in _batches(rows):
            cells = zip(*some)
            arrays = [pyarrow.array(column, type=field.type) for column, field in zip(cells, schema)]
            writer.write_batch(pyarrow.record_batch(arrays, schema=schema))


def _batches(rows: Iterable[Sequence[Any]]) -> Iterator[list[Sequence[Any]]]:
    some: list[Sequence[Any]] = []
    for row in rows:
        some.append(row)
        if len(some) == _ROWS_AT_ONCE:
            yield some
            some = []
    if some:
        yield some
