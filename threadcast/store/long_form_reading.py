"""Converts the rows of a long-form table to measurements and checks every value. The format is in `long_form`."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from operator import itemgetter
from typing import Any, NamedTuple, TypeVar

from threadcast.core import Affinity, Case, Machine, Measurement, Op, Sample
from threadcast.core.errors import FormatError, InvalidInput
from threadcast.core.machine import MAX_CORES
from threadcast.core.measurement import LONGEST_S, SHORTEST_S
from threadcast.core.measurement_time import require_times
from threadcast.core.printable import printable
from threadcast.store.cells import Cells, Feature, Row
from threadcast.store.columns_of_others import NO_TIME
from threadcast.store.describing_columns import results_among
from threadcast.store.table_files import TableFile

T = TypeVar("T", Machine, Op)


class _Row(NamedTuple):
    """One sample, and the number of its row."""

    repeat: int
    number: int
    sample: Sample
    conditions: dict[str, Any] | None
    """None where the row continues the measurement before it."""
    stored_s: float | None
    """When a store took it, where the file says so; never later than now."""


@dataclass(slots=True)
class _Label:
    """The facts about one machine or op that its rows contain."""

    number: int
    """Number of the first row."""
    features: tuple[Feature, ...] | None = None
    described: str = ""
    """The machine or op in threadcast's JSON form, where the file has it."""
    kind: str = "op"
    """The kind of an op that no column `feature.kind` names."""
    cases: set[Case] = field(default_factory=set)
    """Those that a machine was measured in."""


class LongFormReader:
    """Reads the measurements of one table; a reader can be used once.

    `machine` and `op` are the label of the machine and the kind of the ops where the table has no such columns; by
    default the file's name without its suffix. `note` is that of `read_long_form`.
    """

    def __init__(
        self, table: TableFile, *, machine: str | None = None, op: str | None = None,
        note: Callable[[str], None] = lambda said: None,
    ) -> None:  # fmt: skip
        """Raises FormatError when a column is missing or repeated, InvalidInput for a name that the table has."""
        self._cells, self._now_s, self._note = Cells(table), time.time(), note
        for name, given in (("machine", machine), ("op", op)):
            if given is not None and name in self._cells.columns:
                raise InvalidInput(f"{table.path} has a column {name!r}; leave out {name}={given!r}")
        plain = printable(table.path.name.split(".")[0]) or "table"
        self._default_machine, self._default_op = (machine or plain).strip(), (op or plain).strip()
        self._features = self._cells.features()
        self._by_features = False
        """Whether ops are told apart by what describes them: they have no label, or one that is that of their kind."""
        self._counters = self._cells.prefixed("counter.")
        self._features_read: dict[tuple[Any, ...], tuple[Feature, ...]] = {}
        self._machines: dict[str, _Label] = {}
        self._ops: dict[str, _Label] = {}

    def measurements(self) -> list[Measurement]:
        """The measurements in the order of their first rows."""
        groups = self._read_rows()
        self._say_ops(groups)
        machines = {label: self._machine(label, facts) for label, facts in self._machines.items()}
        ops = {label: self._op(label, facts) for label, facts in self._ops.items()}
        for (machine, _, case), group in groups.items():
            try:
                machines[machine].require(case)
            except InvalidInput as error:
                raise self._cells.error(group[0].number, "threads", str(error)) from error
        found = [
            (
                rows[0].number,
                Measurement(
                    ops[op], machines[machine], case, tuple(r.sample for r in rows), rows[0].conditions or {},
                    stored_s=rows[0].stored_s,
                ),
            )
            for (machine, op, case), group in groups.items()
            for rows in self._split(group)
        ]  # fmt: skip
        return [measurement for _, measurement in sorted(found, key=lambda pair: pair[0])]

    def _say_ops(self, groups: Iterable[tuple[str, str, Case]]) -> None:
        """Note what tells the ops of a table of another program apart, and how many came out."""
        if "json.op" in self._cells.columns:
            return
        counts: dict[str, set[int]] = {}
        for _, op, case in groups:
            counts.setdefault(op, set()).add(case.threads)
        each = sorted({len(found) for found in counts.values()})
        by = [*(["op"] if "op" in self._cells.columns else []), *(self._features if self._by_features else ())]
        path, ops = self._cells.table.path, f"{len(counts):,} op{'s' * (len(counts) > 1)}"
        what = f"ops are told apart by {', '.join(map(repr, by))}" if by else "no column tells ops apart"
        span = f"{each[0]}" + (f" to {each[-1]}" if len(each) > 1 else "")
        self._note(f"{path}: {what}: {ops}, each at {span} number{'s' * (each[-1] > 1)} of threads")

    def _find_features(self, others: dict[str, int], rows: Sequence[tuple[int, Row]]) -> None:
        """Find which of the columns without a known meaning describe ops; FormatError where that is not clear."""
        path, left_out = self._cells.table.path, list(others)
        if not self._cells.prefixed("feature.") and "json.op" not in self._cells.columns:
            where = [self._where(number, cells) for number, cells in rows]
            values = {
                name: [self._cells.feature(number, cells, name, at) for number, cells in rows]
                for name, at in others.items()
            }
            try:
                left_out = results_among(
                    values,
                    ops=[(op, self._features_of(*row)) for row, (_, op, _) in zip(rows, where)],
                    where=[(machine, case.affinity) for machine, _, case in where],
                    threads=[case.threads for _, _, case in where],
                    labelled="op" in self._cells.columns or bool(self._features),
                    said=bool(self._features),
                )
            except FormatError as error:
                raise FormatError(f"{path}: {error}") from error
            self._features |= {name: at for name, at in others.items() if name not in left_out}
            self._features_read.clear()
        if left_out:
            named = ", ".join(map(repr, left_out))
            self._note(
                f"{path}: left out, as they describe no op: {named}; if one does: --column 'feature={left_out[0]}'"
            )

    def _read_rows(self) -> dict[tuple[str, str, Case], list[_Row]]:
        """The samples by machine label, op label and case."""
        columns, rows = self._cells.columns, self._timed_rows()
        if others := self._cells.others():
            rows = iter(found := list(rows))
            self._find_features(others, found)
        self._by_features = bool(self._features) and not ("op" in columns and self._cells.prefixed("feature."))
        spelled: dict[tuple[Any, ...], list[_Row]] = {}  # by the cells as they stand, which may differ for one case
        groups: dict[tuple[str, str, Case], list[_Row]] = {}
        features = tuple(self._features.values())
        labels_at = [columns[name] for name in ("machine", "op", "threads", "affinity") if name in columns]
        where = itemgetter(*labels_at, *(features if self._by_features else ()))
        described = [
            (columns[f"json.{name}"], name, labels)
            for name, labels in (("machine", self._machines), ("op", self._ops))
            if f"json.{name}" in columns
        ]
        for number, cells in rows:
            row = self._row(number, cells)
            group = spelled.get(where(cells))
            if group is None:
                group = spelled[where(cells)] = groups.setdefault(self._key(number, cells), [])
            if features and not self._by_features:
                self._check_features(number, cells)
            group.append(row if "repeat" in columns else row._replace(repeat=len(group) + 1))
            for at, name, labels in described:
                if cells[at]:
                    self._describe(number, name, cells[at], labels[self._cells.text(cells, name)])
        return groups

    def _timed_rows(self) -> Iterator[tuple[int, Row]]:
        """The rows that have a time, with their numbers."""
        timed, untimed = 0, 0
        for number, cells in self._cells.table.rows:
            if isinstance(cells, FormatError):
                raise cells
            if self._cells.text(cells, "seconds").lower() in NO_TIME:
                untimed += 1
            else:
                timed += 1
                yield number, cells
        path, unit = self._cells.table.path, self._cells.table.unit
        if untimed:
            self._note(f"{path}: left out {untimed:,} {unit}{'s' * (untimed > 1)} without a time")
        if not timed:
            raise FormatError(f"{path} has no rows{' with a time' * bool(untimed)} below its column names")

    def _where(self, number: int, cells: Row) -> tuple[str, str, Case]:
        """The labels of machine and op in a row, and its case."""
        affinity = self._cells.text(cells, "affinity").lower() or Affinity.COMPACT
        if affinity not in list(Affinity):
            message = f"must be {' or '.join(Affinity)} (OpenMP's close is compact), got {affinity!r}"
            raise self._cells.error(number, "affinity", message)
        threads = self._cells.integer(number, cells, "threads")
        if not 1 <= threads <= MAX_CORES:
            raise self._cells.error(number, "threads", f"must be from 1 to {MAX_CORES}, got {threads}")
        machine = self._label(number, cells, "machine", self._default_machine)
        return machine, self._label(number, cells, "op", self._default_op), Case(threads, Affinity(affinity))

    def _key(self, number: int, cells: Row) -> tuple[str, str, Case]:
        machine, op, case = self._where(number, cells)
        if self._by_features:
            op = self._described_op(number, op, self._features_of(number, cells))
        else:
            self._ops.setdefault(op, _Label(number))
        self._machines.setdefault(machine, _Label(number)).cases.add(case)
        return machine, op, case

    def _described_op(self, number: int, kind: str, features: tuple[Feature, ...]) -> str:
        """The label of an op that only its kind and its features tell from others."""
        named_values = zip(self._features, features, strict=True)
        sizes = [f"{name}={value}" for name, value in named_values if value is not None]
        label = " ".join([kind, *sizes])
        self._ops.setdefault(label, _Label(number, features, kind=kind))
        return label

    def _features_of(self, number: int, cells: Row) -> tuple[Feature, ...]:
        given = tuple(cells[at] for at in self._features.values())
        found = self._features_read.get(given)
        if found is None:
            named = self._features.items()
            found = tuple(self._cells.feature(number, cells, name, at) for name, at in named)
            self._features_read[given] = found
        return found

    def _label(self, number: int, cells: Row, name: str, default: str) -> str:
        label = self._cells.text(cells, name) if name in self._cells.columns else default
        if not label:
            raise self._cells.error(number, name, "must not be empty")
        return label

    def _row(self, number: int, cells: Row) -> _Row:
        seconds = self._cells.number(number, cells, "seconds")
        if not SHORTEST_S <= seconds <= LONGEST_S:
            limits = f"from {SHORTEST_S:g} to {LONGEST_S:g}"
            raise self._cells.error(number, "seconds", f"must be {limits}, got {seconds!r}")
        counters: dict[str, float | None] = {}
        for name, at in self._counters.items():
            if cells[at] is None or cells[at] == "":
                continue
            count = self._cells.number(number, cells, f"counter.{name}")
            if not (math.isnan(count) or 0 <= count < math.inf):
                raise self._cells.error(number, f"counter.{name}", f"must be finite and at least 0, got {count!r}")
            counters[name] = None if math.isnan(count) else count
        conditions = None
        if text := self._cells.text(cells, "json.conditions"):
            conditions = self._cells.json(number, "json.conditions", text)
            try:
                require_times(conditions, now_s=self._now_s)
            except InvalidInput as error:
                raise self._cells.error(number, "json.conditions", str(error)) from error
        return _Row(
            self._cells.integer(number, cells, "repeat") if "repeat" in self._cells.columns else 0,
            number,
            Sample(seconds, counters),
            conditions,
            self._stored_s(number, cells),
        )

    def _stored_s(self, number: int, cells: Row) -> float | None:
        if not self._cells.text(cells, "json.stored_s"):
            return None
        stored_s = self._cells.number(number, cells, "json.stored_s")
        if math.isnan(stored_s):
            return None
        if not 0 <= stored_s < math.inf:
            raise self._cells.error(number, "json.stored_s", f"must be finite and at least 0, got {stored_s!r}")
        return min(stored_s, self._now_s)

    def _split(self, rows: list[_Row]) -> Iterator[list[_Row]]:
        """The samples of one case by the measurement that they belong to."""
        rows.sort(key=lambda row: (row.repeat, row.number))
        for before, row in pairwise(rows):
            if before.repeat == row.repeat:
                there = f"{self._cells.table.unit} {before.number}"
                message = f"{row.repeat} is there already for this machine, op, threads and affinity, in {there}"
                raise self._cells.error(row.number, "repeat", message)
        starts = [i for i, row in enumerate(rows) if i == 0 or row.conditions is not None]
        for start, end in zip(starts, [*starts[1:], len(rows)]):
            yield rows[start:end]

    def _check_features(self, number: int, cells: Row) -> None:
        label = self._cells.text(cells, "op")
        facts, features = self._ops[label], self._features_of(number, cells)
        if facts.features is None:
            facts.features = features
        for name, was, now in zip(self._features, facts.features, features, strict=True):
            if was != now:
                there = f"{str(was)!r} in {self._cells.table.unit} {facts.number}"
                raise self._cells.error(number, f"feature.{name}", f"{str(now)!r} for op {label!r}, but {there}")

    def _describe(self, number: int, name: str, text: str, facts: _Label) -> None:
        if facts.described not in ("", text):
            raise self._cells.error(number, f"json.{name}", f"is not as in a row before it for the same {name}")
        facts.described = text

    def _machine(self, label: str, facts: _Label) -> Machine:
        if "json.machine" in self._cells.columns:
            return self._described(label, facts, "json.machine", Machine)
        most = max(case.threads for case in facts.cases)
        groups = max((case.threads for case in facts.cases if case.affinity is Affinity.SPREAD), default=1)
        size = most if groups == 1 else min(-(-most // groups), (most - 1) // (groups - 1))  # equal groups, so many
        return replace(Machine.uniform(label, most, group_size=size), only=tuple(facts.cases))

    def _op(self, label: str, facts: _Label) -> Op:
        if "json.op" in self._cells.columns:
            return self._described(label, facts, "json.op", Op)
        named = zip(self._features, facts.features or (), strict=bool(facts.features))
        given = {name: value for name, value in named if value is not None}
        kind = str(given.pop("kind", facts.kind))
        cost = []
        for name in ("flops", "bytes"):
            value = given.pop(name, None)
            if isinstance(value, str) or (value is not None and not 0 <= value < math.inf):
                raise self._cells.error(
                    facts.number, f"feature.{name}", f"must be a number of at least 0, got {value!r}"
                )
            cost.append(value)
        return Op(kind, attributes={**given, "label": label}, cost=(cost[0], cost[1]))

    def _described(self, label: str, facts: _Label, column: str, kind: type[T]) -> T:
        if not facts.described:
            raise self._cells.error(
                facts.number,
                column,
                f"nothing in the file describes {label!r}; keep the first row of each machine and op, "
                f"or drop the column {column!r} to read them as labels",
            )
        try:
            return kind.from_json(self._cells.json(facts.number, column, facts.described))
        except FormatError as error:
            raise self._cells.error(facts.number, column, f"{error.pointer} {error}") from error
        except (InvalidInput, LookupError, TypeError, ValueError) as error:
            raise self._cells.error(facts.number, column, f"does not describe {label!r}: {error!r}") from error
