"""Queries of a store for web pages: ops sorted, filtered and page by page, and totals of machines.

Every query is answered from `summaries` by an index or in one pass over it: tens of milliseconds for 100,000 ops.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Select, and_, func, select, tuple_

from threadcast.core import Case, Plan, Trace
from threadcast.store import schema
from threadcast.store.database import Database
from threadcast.store.kept_documents import Kept, newest

SORTS = ("best_s", "kind", "samples", "speedup", "all_threads")
"""The columns that ops can be sorted by; each has an index."""

COMMON = 20
"""Ops are read in the order of an index if more than so many ops match for each line of the page; else all matching ops
are collected first and then sorted. Of 100,000 ops, collecting takes 20 ms and 1 ms more for each thousand that match;
reading in an index's order takes 2 ms for each thousand."""


@dataclass(frozen=True, slots=True)
class OpLine:
    """One measured op: `best_s` is its median seconds in `best`, its fastest case.

    `speedup` is the median with the fewest threads over `best_s`, `all_threads` the median with the most over `best_s`.
    """

    key: str
    kind: str
    subject: str
    cases: int
    samples: int
    best: Case
    best_s: float
    speedup: float
    all_threads: float


@dataclass(frozen=True, slots=True)
class OpFilter:
    """Conditions on ops that were measured on `machine` (a fingerprint); an empty condition matches every op.

    `text`: words, each of which must be in the key or the subject. `network`: the name of a graph that the op belongs
    to.
    """

    machine: str
    text: str = ""
    kind: str = ""
    network: str = ""


@dataclass(frozen=True, slots=True)
class Position:
    """Where a page of sorted ops is: after or before the op with the key `op`, or without it at the beginning or end.

    A page is found by the values of that op in the index that it is sorted by, so the last page takes as long as the
    first.
    """

    op: str = ""
    before: bool = False


@dataclass(frozen=True, slots=True)
class KindLine:
    """Number of measured ops of a kind, and the sum of their fastest medians."""

    kind: str
    ops: int
    best_s: float


@dataclass(frozen=True, slots=True)
class Run:
    """The plan of a graph on a machine, and the trace of its run; `time` is ISO 8601."""

    graph: str
    machine: str
    time: str
    plan: Plan
    trace: Trace


class Browser:
    """The queries for pages, on one database. StoreError when it cannot be read."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def ops(
        self,
        which: OpFilter,
        *,
        sort: str = "best_s",
        descending: bool = True,
        at: Position | None = None,
        limit: int = 50,
    ) -> tuple[list[OpLine], int]:
        """Up to `limit` matching ops by `sort`, the first ones by default; and the number of all matching ops."""
        s, ops, at = schema.summaries, schema.ops, at or Position()
        columns = [*([s.c.kind, s.c.best_s] if sort == "kind" else [s.c[sort]]), s.c.op_id]
        with self._database.read() as connection:
            total = connection.execute(self._counting(which)).scalar_one()
            common = limit * COMMON < total  # the first matches in order are soon found
            page = select(s.c.op_id).where(self._where(which, by_words=not common))
            there = select(*columns).join(ops, ops.c.id == s.c.op_id).where(ops.c.key == at.op, self._on(which.machine))
            values = connection.execute(there).first() if at.op else None
            backwards = at.before and (values is not None or not at.op)  # read from that op, or from the end
            falling = descending is not backwards
            if values is not None:
                here, limit_at = tuple_(*columns), tuple_(*values)
                page = page.where(here < limit_at if falling else here > limit_at)
            order = [column.desc() if falling else column for column in columns]
            ids = list(connection.execute(page.order_by(*order).limit(limit)).scalars()) if total else []
            ids = ids[::-1] if backwards else ids
            lines = select(s, ops.c.key).join(ops, ops.c.id == s.c.op_id).where(s.c.op_id.in_(ids))
            rows = {row.op_id: row for row in connection.execute(lines.where(self._on(which.machine)))}
        return [_line(rows[op_id]) for op_id in ids], total

    def kinds(self, machine: str) -> list[KindLine]:
        """Every kind of op that was measured on a machine, the kind with the longest time first."""
        s = schema.summaries
        query = select(s.c.kind, func.count(), func.sum(s.c.best_s)).where(self._on(machine)).group_by(s.c.kind)
        with self._database.read() as connection:
            lines = [KindLine(*row) for row in connection.execute(query)]
        return sorted(lines, key=lambda line: -line.best_s)

    def ops_by_machine(self) -> dict[str, tuple[int, int, int]]:
        """Number of measured ops, of their cases and of samples, by fingerprint of the machine."""
        s, machines = schema.summaries, schema.machines
        sums = (func.coalesce(func.sum(column), 0) for column in (s.c.cases, s.c.samples))
        query = (
            select(machines.c.fingerprint, func.count(s.c.op_id), *sums)
            .outerjoin(s, s.c.machine_id == machines.c.id)
            .group_by(machines.c.fingerprint)
        )
        with self._database.read() as connection:
            return {row[0]: (int(row[1]), int(row[2]), int(row[3])) for row in connection.execute(query)}

    def measured_ops(self) -> int:
        """Number of ops that were measured on any machine."""
        with self._database.read() as connection:
            return connection.execute(select(func.count(schema.summaries.c.op_id.distinct()))).scalar_one()

    def lines_of(self, key: str) -> dict[str, OpLine]:
        """The lines of one op, by the fingerprint of each machine that it was measured on."""
        s, ops, machines = schema.summaries, schema.ops, schema.machines
        query = (
            select(s, ops.c.key, machines.c.fingerprint)
            .join(ops, ops.c.id == s.c.op_id)
            .join(machines, machines.c.id == s.c.machine_id)
            .where(ops.c.key == key)
            .order_by(machines.c.id)
        )
        with self._database.read() as connection:
            return {row.fingerprint: _line(row) for row in connection.execute(query)}

    def networks_with(self, key: str) -> list[str]:
        """The names of the graphs that an op belongs to, sorted."""
        graphs, members, ops = schema.graphs, schema.graph_ops, schema.ops
        query = (
            select(graphs.c.name)
            .join(members, members.c.graph_id == graphs.c.id)
            .join(ops, ops.c.id == members.c.op_id)
            .where(ops.c.key == key)
            .order_by(graphs.c.name)
        )
        with self._database.read() as connection:
            return list(connection.execute(query).scalars())

    def networks(self) -> list[tuple[str, int]]:
        """Every graph's name with the number of its distinct ops, by name."""
        graphs, members = schema.graphs, schema.graph_ops
        query = (
            select(graphs.c.name, func.count(members.c.op_id))
            .outerjoin(members, members.c.graph_id == graphs.c.id)
            .group_by(graphs.c.name)
            .order_by(graphs.c.name)
        )
        with self._database.read() as connection:
            return [(row[0], int(row[1])) for row in connection.execute(query)]

    def last_run(self, graph: str, machine: str) -> Run | None:
        """The last run of the graph on this machine; None where there is none."""
        table, machines = schema.runs, schema.machines
        query = select(table, machines.c.fingerprint).join(machines, machines.c.id == table.c.machine_id)
        query = query.where(table.c.graph == graph, machines.c.fingerprint == machine)
        with self._database.read() as connection:
            row = connection.execute(query.order_by(table.c.id.desc()).limit(1)).first()
        return None if row is None else _run(row)

    def asked(self, *, limit: int) -> list[Kept]:
        """What is said about the plans, and about what decisions are made from, that were stored last; so many each."""
        with self._database.read() as connection:
            return [*newest(connection, schema.plans, limit), *newest(connection, schema.contexts, limit)]

    def runs(self, *, limit: int) -> list[Run]:
        """The last runs of all graphs on all machines, the last one first."""
        table, machines = schema.runs, schema.machines
        query = select(table, machines.c.fingerprint).join(machines, machines.c.id == table.c.machine_id)
        with self._database.read() as connection:
            return list(map(_run, connection.execute(query.order_by(table.c.id.desc()).limit(limit))))

    def _counting(self, which: OpFilter) -> Select[Any]:
        """The query that counts the matching ops; if words are the only condition, it uses the index of words alone."""
        if which.text.split() and not (which.kind or which.network):
            return select(func.count()).select_from(_named(which, schema.summaries.c).subquery())
        return select(func.count()).select_from(schema.summaries).where(self._where(which))

    @staticmethod
    def _on(machine: str) -> ColumnElement[bool]:
        found: ColumnElement[bool] = schema.summaries.c.machine_id == _machine_id(machine)
        return found

    def _where(self, which: OpFilter, *, by_words: bool = True) -> ColumnElement[bool]:
        """The conditions on the ops; words are looked up in their index first (`by_words`), or compared row by row."""
        s = schema.summaries
        found = [self._on(which.machine)]
        if which.kind:
            found.append(s.c.kind == which.kind)
        if which.network:
            members = schema.graph_ops
            graph = select(schema.graphs.c.id).where(schema.graphs.c.name == which.network).scalar_subquery()
            found.append(s.c.op_id.in_(select(members.c.op_id).where(members.c.graph_id == graph)))
        if which.text.split():
            found += [s.c.op_id.in_(_named(which, s.alias().c))] if by_words else _having(which, s.c)
        return and_(*found)


def _run(row: Any) -> Run:
    plan, trace = Plan.from_json(json.loads(row.plan)), Trace.from_json(json.loads(row.trace))
    return Run(row.graph, row.fingerprint, row.time, plan, trace)


def _named(which: OpFilter, columns: Any) -> Select[Any]:
    """The ids of the ops of a machine that have all words."""
    return select(columns.op_id).where(columns.machine_id == _machine_id(which.machine), *_having(which, columns))


def _having(which: OpFilter, columns: Any) -> list[ColumnElement[bool]]:
    return [columns.words.contains(word, autoescape=True) for word in which.text.lower().split()]


def _machine_id(fingerprint: str) -> Any:
    return select(schema.machines.c.id).where(schema.machines.c.fingerprint == fingerprint).scalar_subquery()


def _line(row: Any) -> OpLine:
    return OpLine(
        row.key, row.kind, row.subject, row.cases, row.samples, Case(row.best_threads, row.best_affinity), row.best_s,
        row.speedup, row.all_threads,
    )  # fmt: skip
