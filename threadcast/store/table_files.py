"""Reads and writes tables in CSV, gzipped CSV and Parquet files row by row; rows have a number for error messages."""

from __future__ import annotations

import csv
import gzip
import hashlib
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal, TextIO

from threadcast.core.atomic_file import replacing
from threadcast.core.errors import FormatError, InvalidInput

ColumnKind = Literal["text", "integer", "number"]

_CELL_CHARACTERS = 2**30
"""Most characters in one cell of a CSV file that is read. Python's own limit, 131,072, is less than the JSON of a
machine or of conditions may take."""

_ROWS_AT_ONCE = 100_000
"""Rows in one row group of a Parquet file: some 10 MB in memory."""


@dataclass(frozen=True, slots=True)
class TableFile:
    """An open table: its columns and its rows, which can be read once.

    `rows` yields each row's number and cells. Cells of a CSV file are text, "" where empty; those of a Parquet file are
    Python values, None where null; its decimal numbers and binary values are text too. In a CSV file the number is that
    of the line, where the header is line 1; in a Parquet file it counts rows from 1. `unit` is "line" or "row"
    accordingly.
    """

    path: Path
    columns: tuple[str, ...]
    rows: Iterator[tuple[int, Sequence[Any]]]
    unit: Literal["line", "row"]
    nested: frozenset[str] = frozenset()
    """Columns of lists, maps or structures, which Parquet files can have."""

    def error(self, number: int, column: str, message: str) -> FormatError:
        """The error to raise about one cell."""
        return FormatError(f"{self.path}, {self.unit} {number}, column {column!r}: {message}")


@contextmanager
def open_table(path: Path) -> Iterator[TableFile]:
    """Open the table at `path`; the file name's suffix tells its kind.

    FormatError for a file of another kind, here or while its rows are read; OSError when it cannot be read.
    """
    kind = _kind(path)
    try:
        if kind == "parquet":
            with path.open("rb") as raw, _open_parquet(path, raw) as table:
                yield table
        else:
            opened = gzip.open if kind == "csv.gz" else open
            with opened(path, "rt", encoding="utf-8-sig", newline="") as text:
                yield _csv_table(path, text)
    except (csv.Error, UnicodeDecodeError, gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise FormatError(f"{path} is not a whole {kind} file: {error}") from error


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


def _csv_table(path: Path, text: TextIO) -> TableFile:
    csv.field_size_limit(max(csv.field_size_limit(), _CELL_CHARACTERS))  # of the whole process: it is never lowered
    reader = csv.reader(text, strict=True, skipinitialspace=True)
    columns = tuple(name.strip() for name in next(reader, ()))
    if not columns:
        raise FormatError(f"{path} is empty; it must begin with a line of column names")

    def rows() -> Iterator[tuple[int, list[str]]]:
        for cells in reader:
            if len(cells) == len(columns):
                yield reader.line_num, cells
            elif cells:
                raise FormatError(
                    f"{path}, line {reader.line_num}: {len(cells)} cells, but line 1 names {len(columns)} columns"
                )

    return TableFile(path, columns, rows(), "line")


@contextmanager
def _open_parquet(path: Path, raw: BinaryIO) -> Iterator[TableFile]:
    import pyarrow
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(raw) as file:
            schema = file.schema_arrow
            nested = frozenset(column.name.strip() for column in schema if pyarrow.types.is_nested(column.type))
            yield TableFile(path, tuple(map(str.strip, schema.names)), _parquet_rows(file), "row", nested)
    except (pyarrow.ArrowException, OSError) as error:
        raise FormatError(f"{path} is not a whole Parquet file: {error}") from error


def _parquet_rows(file: Any) -> Iterator[tuple[int, Sequence[Any]]]:
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
