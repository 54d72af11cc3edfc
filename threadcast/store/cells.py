"""Reads the cells of a long-form table as text, numbers and JSON; errors name the file, the line and the column."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from threadcast.core.errors import FormatError
from threadcast.store.table_files import TableFile

Row = Sequence[Any]
"""The cells of one row, in the order of the columns."""
_KNOWN = ("machine", "op", "threads", "affinity", "repeat", "seconds")
_PREFIXES = ("feature.", "counter.", "json.")

_AMBIGUOUS = re.compile(
    r"[+\-\u2212]?(\d+,\d*|,\d+)(e[+-]?\d+)?"  # 2,5
    r"|[+\-\u2212]?\d{1,3}([ '\u2019_,\u00a0\u2009\u202f]\d{3})+([.,]\d*)?"  # 1 234 567,8
    r"|[+\-\u2212]?\d{1,3}(\.\d{3})+(,\d*|\.\d{3})"  # 1.234,5 and 1.234.567
    r"|[+\-\u2212]?\d{1,2}(,\d{2})+,\d{3}(\.\d*)?",  # 12,34,567
    re.I,
)
"""Numbers with a decimal comma or separated thousands, which programs read in different ways, or as text."""

_SHAPES = "inputs"
"""The feature in which files of ours have shapes as text: "64 128" is no number there."""

_EXACT, _MOST = 2**53, sys.float_info.max
"""Integers beyond the first are read as floats, as JSON readers do; numbers beyond the second are not finite."""

Feature = str | int | float | None


class Cells:
    """Reads single cells of `table`; every method takes a row's `number` only to name it in an error.

    `columns` maps the name of each column to its position. FormatError for a table that lacks a column whose labels
    another describes, or holds lists or structures.
    """

    def __init__(self, table: TableFile) -> None:
        self.table = table
        self.columns = at = {name: i for i, name in enumerate(table.columns)}
        if alone := [name for name in ("machine", "op") if f"json.{name}" in at and name not in at]:
            raise FormatError(
                f"{table.path}: the column 'json.{alone[0]}' needs a column {alone[0]!r}, whose labels it describes"
            )
        if nested := sorted(table.nested & at.keys()):
            raise FormatError(
                f"{table.path}: column {nested[0]!r} holds lists or structures; it must hold single values, or be left "
                f"out: --column ignored={nested[0]}"
            )

    def features(self) -> dict[str, int]:
        """The positions of the columns that surely describe ops, by their names without `feature.`: because they are
        called so, or because the user says it."""
        if "json.op" in self.columns and "op" in self.columns:
            return {}
        return self.prefixed("feature.") | {name: self.columns[name] for name in sorted(self.table.features)}

    def others(self) -> dict[str, int]:
        """The positions of the columns that have a name and no known meaning, of which some may describe ops."""
        return {
            name: at
            for name, at in self.columns.items()
            if name and name not in self.table.features and name not in _KNOWN and not name.startswith(_PREFIXES)
        }

    def prefixed(self, prefix: str) -> dict[str, int]:
        """The positions of the columns whose names start with `prefix`, by the rest of their names."""
        return {name.removeprefix(prefix): at for name, at in self.columns.items() if name.startswith(prefix)}

    def text(self, cells: Row, column: str) -> str:
        """The text in a cell, without blanks around it; empty where the cell is, or where the table has no such
        column."""
        at = self.columns.get(column)
        cell = None if at is None else cells[at]
        return "" if cell is None else str(cell).strip()

    def feature(self, number: int, cells: Row, name: str, at: int) -> Feature:
        """The number in the cell of a feature, or else its text; None where it is empty or not a number.

        FormatError for an infinite one, and for one that may be a number to another reader.
        """
        cell = cells[at]
        if isinstance(cell, str):
            cell = cell.strip()
            if _AMBIGUOUS.fullmatch(cell) and name != _SHAPES:
                message = (
                    f"must be a number with a decimal point and without separators, or a text (128x64), got {cell!r}"
                )
                raise self.error(number, self.table.columns[at], message)
            for kind in () if "_" in cell else (int, float):
                with suppress(ValueError):
                    cell = kind(cell)
                    break
        if cell is None or cell == "" or cell != cell:
            return None
        if not isinstance(cell, int | float):
            return str(cell)
        if abs(cell) > _MOST:
            raise self.error(number, self.table.columns[at], f"must be finite, got {cells[at]!r}; empty says nothing")
        if isinstance(cell, int) and int(float(cell)) != cell:
            message = "must be a number that a float holds, so that none of two becomes another: round it, or give it"
            raise self.error(number, self.table.columns[at], f"{message} as a text (id-{cell}), got {cell}")
        return float(cell) if abs(cell) > _EXACT else cell

    def number(self, number: int, cells: Row, column: str) -> float:
        """The number in a cell, which may be infinite or not a number."""
        cell = cells[self.columns[column]]
        if isinstance(cell, FormatError):
            raise cell
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
