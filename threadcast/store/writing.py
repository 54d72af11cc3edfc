"""Inserts measurements, graphs and runs, with the ops and machines that they refer to; each within one transaction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from sqlalchemy import Connection, delete, insert, update

from threadcast.core import Machine, Measurement, Op
from threadcast.core.measurement_time import date_s
from threadcast.store import schema
from threadcast.store.bulk import insert_rows
from threadcast.store.queries import documents, ensure, ids
from threadcast.store.rows import Row, machine_row, op_row, read
from threadcast.store.summaries import add_to_summaries

_AT_ONCE = 10_000
"""Measurements whose summaries are updated at a time, so that a large file does not take much memory."""

APART_S = 1e-6
"""Seconds between the times of storing of measurements that are stored at once: their order tells what came later."""


def insert_measurements(
    connection: Connection, added: Sequence[Measurement], rows: Sequence[Row], *, now_s: float
) -> None:
    """Insert measurements, whose `rows` are those of `measurement_row`, and update the summaries of their ops.

    `now_s` is the present time in seconds since 1970, from which on measurements are stored `APART_S` apart. Those that
    another store took keep the time of that.
    """
    if not added:
        return
    ops = {m.op.key: m.op for m in added}
    op_ids = ensure(connection, schema.ops.c.key, ops, op_row)
    machine_ids = _machine_ids(connection, {m.machine.fingerprint: m.machine for m in added})
    for m, row in zip(added, rows, strict=True):
        row["op_id"], row["machine_id"] = op_ids[m.op.key], machine_ids[m.machine.fingerprint]
    for i, (m, row) in enumerate(zip(added, rows, strict=True)):
        row["stored_s"] = now_s + i * APART_S if m.stored_s is None else m.stored_s
    times_s = [date_s(m.conditions.get("time"), row["stored_s"]) for m, row in zip(added, rows, strict=True)]
    by_id = {op_ids[key]: op for key, op in ops.items()}
    for start in range(0, len(rows), _AT_ONCE):
        some = slice(start, start + _AT_ONCE)
        insert_rows(connection, schema.measurements, rows[some])
        add_to_summaries(connection, rows[some], times_s[some], by_id)


def insert_graph(connection: Connection, row: Row, ops: Mapping[str, Op]) -> None:
    """Insert a graph's `row` and the ops that belong to it, by key, in place of a former graph of its name."""
    op_ids = ensure(connection, schema.ops.c.key, ops, op_row)
    connection.execute(delete(schema.graphs).where(schema.graphs.c.name == row["name"]))
    connection.execute(insert(schema.graphs).values(**row))
    graph_id = connection.execute(ids(schema.graphs.c.name, [row["name"]])).scalar_one()
    members = [{"graph_id": graph_id, "op_id": op_id} for op_id in op_ids.values()]
    if members:
        connection.execute(insert(schema.graph_ops), members)


def insert_run(connection: Connection, row: Row, machine: Machine) -> None:
    """Insert the `row` of a run on `machine`."""
    machine_ids = _machine_ids(connection, {machine.fingerprint: machine})
    connection.execute(insert(schema.runs).values(machine_id=machine_ids[machine.fingerprint], **row))


def _machine_ids(connection: Connection, machines: Mapping[str, Machine]) -> dict[str, int]:
    """The ids of these machines, by fingerprint; a stored one with `only` some cases also gets those of the new one."""
    found = ensure(connection, schema.machines.c.fingerprint, machines, machine_row)
    for row_id, machine in ((found[fingerprint], machine) for fingerprint, machine in machines.items() if machine.only):
        stored = read(Machine, documents(connection, schema.machines, {row_id}))[row_id]
        both = replace(stored, only=(*stored.only, *machine.only))
        if stored.only and both.only != stored.only:
            table = schema.machines
            connection.execute(update(table).where(table.c.id == row_id).values(machine_row(both)))
    return found
