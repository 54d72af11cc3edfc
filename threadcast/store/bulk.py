"""Inserts, changes and reads many rows by one statement each.

PostgreSQL takes them as arrays, one a column: a statement with a parameter for each value takes several times as long.
SQLite takes rows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import chain
from operator import itemgetter
from typing import Any

from sqlalchemy import Connection, Table
from sqlalchemy.dialects import postgresql

from threadcast.store.rows import Row

_POSTGRESQL = postgresql.dialect()  # type: ignore[no-untyped-call]
_KEYS_AT_ONCE = 3_000
"""Most keys in one list: SQLite allows 32,766 values, and a key may have four."""
_ROWS_AT_ONCE = 10_000
"""Most rows in one statement of PostgreSQL, which hold some megabytes."""


def insert_rows(connection: Connection, table: Table, rows: Sequence[Row]) -> None:
    """Insert rows, all of which have the same columns."""
    if not rows:
        return
    names = list(rows[0])
    if connection.dialect.name == "sqlite":
        places = ", ".join("?" * len(names))
        query = f"INSERT INTO {table.name} ({', '.join(names)}) VALUES ({places})"
        connection.exec_driver_sql(query, list(map(itemgetter(*names), rows)))
        return
    for some in _parts(rows, _ROWS_AT_ONCE):
        query = f"INSERT INTO {table.name} ({', '.join(names)}) SELECT * FROM {_arrays(table, names)}"
        connection.exec_driver_sql(query, _columns(some, names))


def update_rows(connection: Connection, table: Table, rows: Sequence[Row]) -> None:
    """Change the rows with the primary keys of these rows, all of which have the same columns."""
    if not rows:
        return
    keys = [column.name for column in table.primary_key]
    others = [name for name in rows[0] if name not in keys]
    if connection.dialect.name == "sqlite":
        changes, same = (
            join.join(f"{name} = ?" for name in names) for join, names in ((", ", others), (" AND ", keys))
        )
        query = f"UPDATE {table.name} SET {changes} WHERE {same}"
        connection.exec_driver_sql(query, list(map(itemgetter(*others, *keys), rows)))
        return
    names = list(rows[0])
    changes = ", ".join(f"{name} = new.{name}" for name in others)
    same = " AND ".join(f"{table.name}.{name} = new.{name}" for name in keys)
    for some in _parts(rows, _ROWS_AT_ONCE):
        source = f"{_arrays(table, names)} AS new ({', '.join(names)})"
        connection.exec_driver_sql(
            f"UPDATE {table.name} SET {changes} FROM {source} WHERE {same}", _columns(some, names)
        )


def rows_with_keys(connection: Connection, table: Table, keys: Collection[tuple[Any, ...]]) -> Iterator[Any]:
    """The rows of `table` with these primary keys, each a tuple, in any order."""
    if connection.dialect.name == "sqlite":
        for some in _parts(list(keys), _KEYS_AT_ONCE):
            yield from connection.exec_driver_sql(_joined_values(table, len(some)), tuple(chain(*some)))
        return
    names = [column.name for column in table.primary_key]
    same = " AND ".join(f"{table.name}.{name} = wanted.{name}" for name in names)
    for some in _parts(list(keys), _ROWS_AT_ONCE):
        source = f"{_arrays(table, names)} AS wanted ({', '.join(names)})"
        query = f"SELECT {table.name}.* FROM {source} JOIN {table.name} ON {same}"
        yield from connection.exec_driver_sql(query, tuple(map(list, zip(*some, strict=True))))


def _joined_values(table: Table, count: int) -> str:
    """A query of SQLite, which would scan the whole table for `(a, b) IN (VALUES ...)`, for `count` keys."""
    names = [column.name for column in table.primary_key]
    values = ", ".join([f"({', '.join('?' * len(names))})"] * count)
    same = " AND ".join(f"{table.name}.{name} = wanted.{name}" for name in names)
    wanted = f"WITH wanted ({', '.join(names)}) AS (VALUES {values})"
    return f"{wanted} SELECT {table.name}.* FROM wanted CROSS JOIN {table.name} ON {same}"


def _arrays(table: Table, names: Sequence[str]) -> str:
    types = [table.c[name].type.compile(_POSTGRESQL) for name in names]
    return f"unnest({', '.join(f'%b::{kind}[]' for kind in types)})"


def _columns(rows: Sequence[Row], names: Sequence[str]) -> tuple[list[Any], ...]:
    return tuple([row[name] for row in rows] for name in names)


def _parts(items: Sequence[Any], most: int) -> Iterator[Sequence[Any]]:
    for start in range(0, len(items), most):
        yield items[start : start + most]
