"""The newest measurements of the ops of a machine that were measured last: they show whether it has changed."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, select

from threadcast.store import schema
from threadcast.store.queries import ids

MOST_OPS, MOST_OF_OP, MOST_NEWEST = 48, 96, 2_000
"""Ops, measurements of each, and newest measurements of the machine among which the ops are looked for: a tenth of a
second at most, however much is stored."""


def recent_rows(connection: Connection, machine: str) -> list[Any]:
    """The rows of these measurements of the machine with this fingerprint, of each op in the order in which they were
    added."""
    table = schema.measurements
    machine_id = connection.execute(ids(schema.machines.c.fingerprint, [machine])).scalar()
    if machine_id is None:
        return []
    newest = select(table.c.op_id).where(table.c.machine_id == machine_id).order_by(table.c.id.desc())
    ops = list(dict.fromkeys(connection.execute(newest.limit(MOST_NEWEST)).scalars()))[:MOST_OPS]
    found = []
    for op_id in ops:
        of_op = select(table).where(table.c.op_id == op_id, table.c.machine_id == machine_id)
        found += list(connection.execute(of_op.order_by(table.c.id.desc()).limit(MOST_OF_OP)))[::-1]
    return found
