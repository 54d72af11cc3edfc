"""Converts the rows of a long-form table to measurements and checks every value. The format is in `long_form`."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import itemgetter
from typing import Any, NamedTuple, TypeVar

from threadcast.core import Affinity, Case, Machine, Measurement, Op, Sample
from threadcast.core.errors import FormatError, InvalidInput
from threadcast.core.machine import MAX_CORES
from threadcast.store.table_files import TableFile

T = TypeVar("T", Machine, Op)
Cells = Sequence[Any]

_REQUIRED = ("machine", "op", "threads", "repeat", "seconds")


class _Row(NamedTuple):
    """One sample, and the number of its row."""

    repeat: int
    number: int
    sample: Sample
    conditions: dict[str, Any] | None
    """None where the row continues the measurement before it."""


@dataclass(slots=True)
class _Label:
    """The facts about one machine or op that its rows contain."""

    number: int
    """Number of the first row."""
    features: tuple[Any, ...] = ()
    described: str = ""
    """The machine or op in threadcast's JSON form, where the file has it."""
    threads: int = 1
    spread_threads: int = 1
    """The most threads that a machine was measured with, in all and under SPREAD."""


class LongFormReader:
    """Reads the measurements of one table; a reader can be used once."""

    def __init__(self, table: TableFile) -> None:
        """Raises FormatError when a column is missing or repeated."""
        self._table = table
        self._at = at = {name: i for i, name in enumerate(table.columns)}
        if missing := [name for name in _REQUIRED if name not in at]:
            named = ", ".join(map(repr, missing))
            raise FormatError(f"{table.path}: missing column {named}; it has {', '.join(table.columns)}")
        if len(at) < len(table.columns):
            twice = next(name for i, name in enumerate(table.columns) if at[name] != i)
            raise FormatError(f"{table.path}: the column {twice!r} is there twice")
        if nested := [name for name in sorted(table.nested) if _is_read(name)]:
            raise FormatError(
                f"{table.path}: column {nested[0]!r} holds lists or structures; it must hold single values"
            )
        self._features = {} if "json.op" in at else self._prefixed("feature.")
        self._counters = self._prefixed("counter.")
        self._machines: dict[str, _Label] = {}
        self._ops: dict[str, _Label] = {}

    def measurements(self) -> list[Measurement]:
        """The measurements in the order of their first rows."""
        groups = self._read_rows()
        machines = {label: self._machine(label, facts) for label, facts in self._machines.items()}
        ops = {label: self._op(label, facts) for label, facts in self._ops.items()}
        found = [
            (rows[0].number, Measurement(ops[op], machines[machine], case, tuple(r.sample for r in rows), conditions))
            for (machine, op, case), group in groups.items()
            for rows, conditions in self._split(group)
        ]
        return [measurement for _, measurement in sorted(found, key=lambda pair: pair[0])]

    def _read_rows(self) -> dict[tuple[str, str, Case], list[_Row]]:
        """The samples by machine label, op label and case."""
        spelled: dict[tuple[Any, ...], list[_Row]] = {}  # by the cells as they stand, which may differ for one case
        groups: dict[tuple[str, str, Case], list[_Row]] = {}
        where = itemgetter(*(self._at[name] for name in ("machine", "op", "threads", "affinity") if name in self._at))
        features = tuple(self._features.values())
        described = [
            (self._at[f"json.{name}"], name, labels)
            for name, labels in (("machine", self._machines), ("op", self._ops))
            if f"json.{name}" in self._at
        ]
        for number, cells in self._table.rows:
            group = spelled.get(where(cells))
            if group is None:
                key = self._key(number, cells)
                group = spelled[where(cells)] = groups.setdefault(key, [])
            group.append(self._row(number, cells))
            if features:
                self._check_features(number, cells, tuple(cells[at] for at in features))
            for at, name, labels in described:
                if cells[at]:
                    self._describe(number, name, cells[at], labels[self._text(cells, name)])
        if not groups:
            raise FormatError(f"{self._table.path} has no rows below its column names")
        return groups

    def _key(self, number: int, cells: Cells) -> tuple[str, str, Case]:
        affinity = self._text(cells, "affinity").lower() or Affinity.COMPACT
        if affinity not in list(Affinity):
            raise self._error(number, "affinity", f"must be {' or '.join(Affinity)}, got {affinity!r}")
        threads = self._integer(number, cells, "threads")
        if not 1 <= threads <= MAX_CORES:
            raise self._error(number, "threads", f"must be from 1 to {MAX_CORES}, got {threads}")
        case = Case(threads, Affinity(affinity))
        machine, op = self._text(cells, "machine"), self._text(cells, "op")
        for name, label in (("machine", machine), ("op", op)):
            if not label:
                raise self._error(number, name, "must not be empty")
        self._ops.setdefault(op, _Label(number))
        facts = self._machines.setdefault(machine, _Label(number))
        facts.threads = max(facts.threads, threads)
        if case.affinity is Affinity.SPREAD:
            facts.spread_threads = max(facts.spread_threads, threads)
        return machine, op, case

    def _row(self, number: int, cells: Cells) -> _Row:
        seconds = self._number(number, cells, "seconds")
        if not 0 <= seconds < math.inf:
            raise self._error(number, "seconds", f"must be finite and at least 0, got {seconds!r}")
        counters: dict[str, float | None] = {}
        for name, at in self._counters.items():
            if cells[at] is None or cells[at] == "":
                continue
            count = self._number(number, cells, f"counter.{name}")
            if not (math.isnan(count) or 0 <= count < math.inf):
                raise self._error(number, f"counter.{name}", f"must be finite and at least 0, got {count!r}")
            counters[name] = None if math.isnan(count) else count
        conditions = None
        if text := self._text(cells, "json.conditions"):
            conditions = self._json(number, "json.conditions", text)
        return _Row(self._integer(number, cells, "repeat"), number, Sample(seconds, counters), conditions)

    def _split(self, rows: list[_Row]) -> Iterator[tuple[list[_Row], Mapping[str, Any]]]:
        """The measurements that the samples of one case belong to, with their conditions."""
        rows.sort(key=lambda row: (row.repeat, row.number))
        for before, row in pairwise(rows):
            if before.repeat == row.repeat:
                there = f"{self._table.unit} {before.number}"
                message = f"{row.repeat} is there already for this machine, op, threads and affinity, in {there}"
                raise self._error(row.number, "repeat", message)
        starts = [i for i, row in enumerate(rows) if i == 0 or row.conditions is not None]
        for start, end in zip(starts, [*starts[1:], len(rows)]):
            yield rows[start:end], rows[start].conditions or {}

    def _check_features(self, number: int, cells: Cells, features: tuple[Any, ...]) -> None:
        label = self._text(cells, "op")
        facts = self._ops[label]
        if not facts.features:
            facts.features = features
        elif features != facts.features:
            for name, was, now in zip(self._features, facts.features, features):
                if _feature(was) != _feature(now):
                    there = f"{was!r} in {self._table.unit} {facts.number}"
                    raise self._error(number, f"feature.{name}", f"{now!r} for op {label!r}, but {there}")

    def _describe(self, number: int, name: str, text: str, facts: _Label) -> None:
        if facts.described not in ("", text):
            raise self._error(number, f"json.{name}", f"is not as in a row before it for the same {name}")
        facts.described = text

    def _machine(self, label: str, facts: _Label) -> Machine:
        if "json.machine" in self._at:
            return self._described(label, facts, "json.machine", Machine)
        groups = facts.spread_threads
        return Machine.uniform(label, facts.threads, group_size=-(-facts.threads // groups) if groups > 1 else None)

    def _op(self, label: str, facts: _Label) -> Op:
        if "json.op" in self._at:
            return self._described(label, facts, "json.op", Op)
        given = {
            name: value for name, cell in zip(self._features, facts.features) if (value := _feature(cell)) is not None
        }
        kind = str(given.pop("kind", "op"))
        cost = []
        for name in ("flops", "bytes"):
            value = given.pop(name, None)
            if isinstance(value, str) or (value is not None and not 0 <= value < math.inf):
                raise self._error(facts.number, f"feature.{name}", f"must be a number of at least 0, got {value!r}")
            cost.append(value)
        return Op(kind, attributes={**given, "label": label}, cost=(cost[0], cost[1]))

    def _described(self, label: str, facts: _Label, column: str, kind: type[T]) -> T:
        if not facts.described:
            raise self._error(
                facts.number,
                column,
                f"nothing in the file describes {label!r}; keep the first row of each machine and op, "
                f"or drop the column {column!r} to read them as labels",
            )
        try:
            return kind.from_json(self._json(facts.number, column, facts.described))
        except FormatError as error:
            raise self._error(facts.number, column, f"{error.pointer} {error}") from error
        except (InvalidInput, LookupError, TypeError, ValueError) as error:
            raise self._error(facts.number, column, f"does not describe {label!r}: {error!r}") from error

    def _json(self, number: int, column: str, text: str) -> dict[str, Any]:
        try:
            document = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise self._error(number, column, f"is not JSON: {error}") from error
        if not isinstance(document, dict):
            raise self._error(number, column, f"must be a JSON object, got {text[:60]!r}")
        return document

    def _integer(self, number: int, cells: Cells, column: str) -> int:
        value = self._number(number, cells, column)
        if not value.is_integer():
            raise self._error(number, column, f"must be an integer, got {cells[self._at[column]]!r}")
        return int(value)

    def _number(self, number: int, cells: Cells, column: str) -> float:
        cell = cells[self._at[column]]
        try:
            return float(cell)
        except (TypeError, ValueError, OverflowError):
            raise self._error(number, column, f"must be a number, got {cell!r}") from None

    def _text(self, cells: Cells, column: str) -> str:
        at = self._at.get(column)
        cell = None if at is None else cells[at]
        return "" if cell is None else str(cell)

    def _prefixed(self, prefix: str) -> dict[str, int]:
        return {name.removeprefix(prefix): at for name, at in self._at.items() if name.startswith(prefix)}

    def _error(self, number: int, column: str, message: str) -> FormatError:
        return self._table.error(number, column, message)


def _is_read(column: str) -> bool:
    return column in (*_REQUIRED, "affinity") or column.startswith(("feature.", "counter.", "json."))


def _feature(cell: Any) -> str | int | float | None:
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
