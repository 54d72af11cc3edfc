"""Reads the cells of a long-form table as text, numbers and JSON; errors name the file, the line and the column."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from threadcast.core.errors import FormatError
from threadcast.store.table_files import TableFile

Row = Sequence[Any]
"""The cells of one row, in the order of the columns."""
_REQUIRED = ("threads", "seconds")
_KNOWN = ("machine", "op", "threads", "affinity", "repeat", "seconds")
_PREFIXES = ("feature.", "counter.", "json.")


class Cells:
    """Reads single cells of `table`; every method takes a row's `number` only to name it in an error.

    `columns` maps the name of each column to its position. FormatError for a table that lacks a required column, or
    one whose labels another describes, has one twice, or holds lists or structures in one that is read.
    """

    def __init__(self, table: TableFile) -> None:
        self.table = table
        self.columns = at = {name: i for i, name in enumerate(table.columns)}
        if missing := [name for name in _REQUIRED if name not in at]:
            named = ", ".join(map(repr, missing))
            raise FormatError(
                f"{table.path}: missing column {named}; it has {', '.join(table.columns)}. A table needs threads and "
                "seconds, and op or columns that describe ops"
            )
        if alone := [name for name in ("machine", "op") if f"json.{name}" in at and name not in at]:
            raise FormatError(
                f"{table.path}: the column 'json.{alone[0]}' needs a column {alone[0]!r}, whose labels it describes"
            )
        if len(at) < len(table.columns):
            twice = next(name for i, name in enumerate(table.columns) if at[name] != i)
            raise FormatError(f"{table.path}: the column {twice!r} is there twice")
        if nested := [name for name in sorted(table.nested) if _is_read(name)]:
            raise FormatError(
                f"{table.path}: column {nested[0]!r} holds lists or structures; it must hold single values"
            )

    def features(self) -> dict[str, int]:
        """The positions of the columns that describe ops, by their names without `feature.`; FormatError where neither
        they nor `op` say which rows belong together.

        Without any `feature.` column, and without `op` or `repeat`, all columns that have a name and no other meaning
        describe ops.
        """
        if "json.op" in self.columns and "op" in self.columns:
            return {}
        found = self.prefixed("feature.")
        if not found and not {"op", "repeat"} <= self.columns.keys():
            found = {
                name: at
                for name, at in self.columns.items()
                if name and name not in _KNOWN and not name.startswith(_PREFIXES) and name not in self.table.nested
            }
        if not found and "op" not in self.columns:
            raise FormatError(
                f"{self.table.path}: nothing says which op a row is of; it has {', '.join(self.table.columns)}. Add a "
                "column op, or columns that describe the op, such as m, k, n"
            )
        return found

    def prefixed(self, prefix: str) -> dict[str, int]:
        """The positions of the columns whose names start with `prefix`, by the rest of their names."""
        return {name.removeprefix(prefix): at for name, at in self.columns.items() if name.startswith(prefix)}

    def text(self, cells: Row, column: str) -> str:
        """The text in a cell; empty where the cell is, or where the table has no such column."""
        at = self.columns.get(column)
        cell = None if at is None else cells[at]
        return "" if cell is None else str(cell)

    def number(self, number: int, cells: Row, column: str) -> float:
        """The number in a cell, which may be infinite or not a number."""
        cell = cells[self.columns[column]]
        if not (isinstance(cell, str) and "_" in cell):  # Python reads 1_0 as 10
            with suppress(TypeError, ValueError, OverflowError):
                return float(cell)
        raise self.error(number, column, f"must be a number, got {cell!r}")

    def integer(self, number: int, cells: Row, column: str) -> int:
        """The whole number in a cell."""
        value = self.number(number, cells, column)
        if not value.is_integer():
            raise self.error(number, column, f"must be an integer, got {cells[self.columns[column]]!r}")
        return int(value)

    def json(self, number: int, column: str, text: str) -> dict[str, Any]:
        """The JSON object in a cell's text."""
        try:
            document = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise self.error(number, column, f"is not JSON: {error}") from error
        if not isinstance(document, dict):
            raise self.error(number, column, f"must be a JSON object, got {text[:60]!r}")
        return document

    def error(self, number: int, column: str, message: str) -> FormatError:
        """The error to raise about a cell of the row with this number."""
        return self.table.error(number, column, message)


def _is_read(column: str) -> bool:
    return column in _KNOWN or column.startswith(_PREFIXES)


def feature_value(cell: Any) -> str | int | float | None:
    """A cell's value as a number where it is one; None where it is empty or not a number."""
    if isinstance(cell, str) and "_" not in cell:
        for kind in (int, float):
            try:
                cell = kind(cell)
                break
            except ValueError:
                continue
    if cell is None or cell == "" or (isinstance(cell, float) and math.isnan(cell)):
        return None
    return cell if isinstance(cell, int | float) else str(cell)
