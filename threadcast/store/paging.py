"""Pages of measurements: each begins after the last measurement of the one before, so that all take equally long."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Connection, func, select

from threadcast.store import schema
from threadcast.store.queries import ids, of_ops

FEW = 20_000
"""Up to so many matching measurements are collected by op and sorted; with more, measurements are read in order until a
page is full. Of 10 million, 50,000 are then read for a page of 100, if those that match lie evenly."""


@dataclass(frozen=True, slots=True)
class MeasurementFilter:
    """Conditions on measurements; None matches all.

    `machine` is a fingerprint, `op` a key, `kind` a kind of op, `network` the name of a stored graph.
    """

    machine: str | None = None
    op: str | None = None
    kind: str | None = None
    network: str | None = None


def count_of(connection: Connection, which: MeasurementFilter) -> int:
    """The number of measurements that match, which the summaries know, and of a machine or all the totals."""
    of_some = not (which.op is None and which.kind is None and which.network is None)
    table = schema.summaries if of_some else schema.totals
    query = select(func.coalesce(func.sum(table.c.measurements), 0))
    if of_some:
        kinds = None if which.kind is None else [which.kind]
        query = of_ops(query, table.c.op_id, kinds=kinds, network=which.network)
    if which.machine is not None:
        query = query.where(table.c.machine_id.in_(ids(schema.machines.c.fingerprint, [which.machine])))
    if which.op is not None:
        query = query.where(table.c.op_id.in_(ids(schema.ops.c.key, [which.op])))
    return int(connection.execute(query).scalar_one())


def page_of(
    connection: Connection, which: MeasurementFilter, total: int, *, after: int, limit: int
) -> tuple[list[Any], int | None]:
    """Up to `limit` rows that match and come after the one with the id `after`; and the `after` of the next page, None
    on the last. `total` is `count_of`."""
    table = schema.measurements
    row_id: ColumnElement[int] = table.c.id
    op_id: ColumnElement[int] = table.c.op_id
    if not (which.op is not None and which.machine is not None):  # else their index gives them in order
        if total > FEW:
            op_id = op_id + 0  # keeps the index of ops from being used
        elif which.op is not None or which.kind is not None or which.network is not None:
            row_id = row_id + 0  # keeps the primary key from being used
    query = of_ops(
        select(table).where(row_id > after), op_id, kinds=None if which.kind is None else [which.kind],
        network=which.network,
    )  # fmt: skip
    for column, identity, value in (
        (table.c.machine_id, schema.machines.c.fingerprint, which.machine), (op_id, schema.ops.c.key, which.op)
    ):  # fmt: skip
        if value is not None:
            query = query.where(column == ids(identity, [value]).scalar_subquery())
    rows = list(connection.execute(query.order_by(row_id).limit(limit + 1)))
    return rows[:limit], int(rows[limit - 1].id) if len(rows) > limit else None
