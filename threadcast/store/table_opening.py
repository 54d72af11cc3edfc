"""Opens tables by their content: text with commas, semicolons or tabs between its cells, plain or gzipped; Parquet."""

from __future__ import annotations

import csv
import gzip
import io
import re
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from threadcast.core.errors import FormatError
from threadcast.store.table_files import TableFile, open_parquet

_CELL_CHARACTERS = 2**30
"""Most characters in one cell of a CSV file that is read. Python's own limit, 131,072, is less than the JSON of a
machine or of conditions may take."""

_KINDS = "tables are read as CSV, plain or gzipped, and as Parquet"


@contextmanager
def open_table(path: Path) -> Iterator[TableFile]:
    """Open the table at `path`, whatever its name: Parquet, or text, plain or gzipped.

    FormatError for a file of another kind, here or while its rows are read; OSError when it cannot be read.
    """
    with path.open("rb") as raw:
        start = raw.read(4)
        raw.seek(0)
        if start == b"PAR1" or path.name.lower().endswith(".parquet"):
            with open_parquet(path, raw) as table:
                yield table
            return
        try:
            content = gzip.decompress(raw.read()) if start[:2] == b"\x1f\x8b" else raw.read()
            text = content.decode("utf-8-sig")
            if "\0" in text:
                raise FormatError(f"{path} is not a whole text: it has bytes of value 0; {_KINDS}")
            yield _text_table(path, text)
        except UnicodeError as error:
            raise FormatError(
                f"{path} is not a whole text in UTF-8: {error}. {_KINDS}; of a text in another code: "
                f"iconv -f latin1 -t utf-8 {path.name} > new.csv"
            ) from error
        except (csv.Error, gzip.BadGzipFile, zlib.error, EOFError) as error:
            raise FormatError(f"{path} is not a whole table: {error}; {_KINDS}") from error


def _text_table(path: Path, text: str) -> TableFile:
    csv.field_size_limit(max(csv.field_size_limit(), _CELL_CHARACTERS))  # of the whole process: it is never lowered
    lines = io.StringIO(text).readlines()
    first = next((i for i, line in enumerate(lines) if line.strip() and line[0] != "#"), len(lines))
    rows = _rows(lines, first, _separator(lines[first]) if first < len(lines) else ",")
    number, columns = next(rows, (0, []))
    if not columns:
        raise FormatError(f"{path} is empty; it must begin with a line of column names")
    names = tuple(name.strip() for name in columns)

    def checked() -> Iterator[tuple[int, Sequence[Any] | FormatError]]:
        for at, cells in rows:
            if len(cells) > len(names) and not any(cells[len(names) :]):
                cells = cells[: len(names)]
            if len(cells) == len(names):
                yield at, cells
            else:
                message = f"{len(cells)} cells, but line {number} names {len(names)} columns"
                yield at, FormatError(f"{path}, line {at}: {message}")

    return TableFile(path, names, checked(), "line")


def _separator(head: str) -> str:
    """What is between the cells of the line of column names."""
    bare = re.sub(r'"[^"]*"', "", head)
    if head.startswith("machine,op,threads,"):  # which threadcast wrote: names of counters may have any mark
        return ","
    return max(",;\t", key=bare.count)


def _rows(lines: Sequence[str], first: int, separator: str) -> Iterator[tuple[int, list[str]]]:
    """The cells of each line from `first` on (from 0) that is no comment, with its number (from 1)."""
    given = ("\n" if line.startswith("#") else line for line in lines[first:])
    reader = csv.reader(given, delimiter=separator, strict=True, skipinitialspace=separator == ",")
    for cells in reader:
        if any(map(str.strip, cells)):
            yield first + reader.line_num, cells
