"""SQL queries that several methods of the store use."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, TypeVar

from sqlalchemy import Column, ColumnElement, Connection, Select, Table, select

from threadcast.store import schema
from threadcast.store.bulk import insert_rows
from threadcast.store.rows import Row

T = TypeVar("T")

_VALUES_AT_ONCE = 10_000
"""Most values in one IN list: SQLite allows 32,766, PostgreSQL's drivers 65,535."""


def documents(connection: Connection, table: Table, ids: Collection[int]) -> dict[int, str]:
    """The column `document` of the rows with these ids in `table`, by id."""
    found: dict[int, str] = {}
    for some in chunks(ids):
        found.update(map(tuple, connection.execute(select(table.c.id, table.c.document).where(table.c.id.in_(some)))))
    return found


def ids(column: Column[Any], values: Collection[Any]) -> Select[Any]:
    """A query for the ids of the rows whose `column` has one of these values."""
    return select(column.table.c.id).where(column.in_(values))


def of_ops(
    query: Select[Any], op_id: ColumnElement[Any], *, kinds: Collection[str] | None, network: str | None
) -> Select[Any]:
    """`query`, narrowed to rows whose op is of these kinds and in this network (None: any)."""
    if kinds is not None:
        query = query.where(op_id.in_(ids(schema.ops.c.kind, kinds)))
    if network is not None:
        members = select(schema.graph_ops.c.op_id).where(
            schema.graph_ops.c.graph_id.in_(ids(schema.graphs.c.name, [network]))
        )
        query = query.where(op_id.in_(members))
    return query


def of_measurements(
    query: Select[Any], machine: str | None, *, kinds: Collection[str] | None, network: str | None
) -> Select[Any]:
    """`query`, narrowed to measurements on this machine, of ops of these kinds and in this network (None: any)."""
    table = schema.measurements
    query = of_ops(query, table.c.op_id, kinds=kinds, network=network)
    if machine is not None:
        query = query.where(table.c.machine_id.in_(ids(schema.machines.c.fingerprint, [machine])))
    return query


def ensure(
    connection: Connection, column: Column[Any], things: Mapping[str, T], row_of: Callable[[T], Row]
) -> dict[str, int]:
    """The row ids of these things by identity; those that are not stored yet are inserted.

    `things` maps identities, which are values of `column`, to things; `row_of` converts a thing to its row.
    """
    known = _known(connection, column, things)
    missing = [row_of(thing) for identity, thing in things.items() if identity not in known]
    if missing:
        insert_rows(connection, column.table, missing)
        known |= _known(connection, column, [row[column.name] for row in missing])
    return known


def _known(connection: Connection, column: Column[Any], identities: Collection[str]) -> dict[str, int]:
    found: dict[str, int] = {}
    for some in chunks(identities):
        query = select(column, column.table.c.id).where(column.in_(some))
        found.update((identity, row_id) for identity, row_id in connection.execute(query))
    return found


def chunks(values: Collection[T]) -> Iterator[list[T]]:
    """Lists of `values` that are short enough for one statement."""
    ordered = list(values)
    for start in range(0, len(ordered), _VALUES_AT_ONCE):
        yield ordered[start : start + _VALUES_AT_ONCE]
