"""Figures of each op on each machine, so that a page of many ops is one indexed query.

They follow the measurements within the transaction that adds these, so they are never out of date. What adding takes
depends on what is added alone: a row of `cases` for each case in it, and one of `summaries` for each op.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from sqlalchemy import Connection, insert, update

from threadcast.core import Op
from threadcast.store import schema
from threadcast.store.bulk import insert_rows, rows_with_keys, update_rows
from threadcast.store.case_figures import (
    CaseFigures,
    CaseKey,
    medians_in,
    op_figures,
    seconds_of,
    unlikeness,
)
from threadcast.store.rows import Row

SUBJECT_CHARACTERS = 200
"""Most characters of an op's subject that are stored, shown and searched."""

MachineOp = tuple[int, int]
"""Row ids of a machine and an op."""


def subject(op: Op) -> str:
    """A short text on the op's data: the shapes of its inputs, or its attributes where it has no inputs."""
    if op.inputs:
        text = ", ".join("x".join(map(str, spec.shape)) or "scalar" for spec in op.inputs)
    else:
        text = ", ".join(f"{name} {value}" for name, value in op.attributes.items())
    return text[:SUBJECT_CHARACTERS]


def add_to_summaries(
    connection: Connection, rows: Sequence[Row], times_s: Sequence[float], ops: Mapping[int, Op]
) -> None:
    """Add these rows of measurements, with the time of each (NaN: unknown), to the figures of their cases and ops."""
    cases = _add_to_cases(connection, rows, times_s)
    medians: dict[MachineOp, dict[CaseKey, float]] = {}
    counts: dict[MachineOp, list[int]] = {}
    for (machine_id, op_id, threads, affinity), figures in cases.items():
        medians.setdefault((machine_id, op_id), {})[threads, affinity] = figures.median_s
    for row in rows:
        added = counts.setdefault((row["machine_id"], row["op_id"]), [0, 0])
        added[0] += 1
        added[1] += row["sample_count"]
    known = {(row.machine_id, row.op_id): row for row in rows_with_keys(connection, schema.summaries, list(medians))}
    new, changed = [], []
    for key, found in medians.items():
        of_op: Row = {"machine_id": key[0], "op_id": key[1]}
        before = known.get(key)
        if before is None:
            of_op |= {**_described(ops[key[1]]), "measurements": counts[key][0], "samples": counts[key][1]}
            new.append({**of_op, **op_figures(found)})
        else:
            of_op["measurements"] = before.measurements + counts[key][0]
            of_op["samples"] = before.samples + counts[key][1]
            changed.append({**of_op, **op_figures(medians_in(before.medians) | found)})
    insert_rows(connection, schema.summaries, new)
    update_rows(connection, schema.summaries, changed)
    add_to_totals(connection, [(machine_id, added[0], added[1]) for (machine_id, _), added in counts.items()])


def add_to_totals(connection: Connection, added: Iterable[tuple[int, int, int]]) -> None:
    """Add numbers of measurements and samples to those of machines; each is of the machine with the row id before."""
    of_machines: dict[int, list[int]] = {}
    for machine_id, measurements, samples in added:
        total = of_machines.setdefault(machine_id, [0, 0])
        total[0] += measurements
        total[1] += samples
    table = schema.totals
    for machine_id, (measurements, samples) in of_machines.items():
        changed = update(table).where(table.c.machine_id == machine_id)
        new = {"measurements": table.c.measurements + measurements, "samples": table.c.samples + samples}
        if connection.execute(changed.values(new)).rowcount == 0:
            row = {"machine_id": machine_id, "measurements": measurements, "samples": samples}
            connection.execute(insert(table).values(row))


def _add_to_cases(
    connection: Connection, rows: Sequence[Row], times_s: Sequence[float]
) -> dict[tuple[int, int, int, str], CaseFigures]:
    """Store the figures of the cases that these rows measure; returns them by primary key."""
    keys = [(row["machine_id"], row["op_id"], row["threads"], row["affinity"]) for row in rows]
    found = {
        (row.machine_id, row.op_id, row.threads, row.affinity): CaseFigures(
            row.measurements, row.samples, row.oldest_s, row.unlikeness, bytes(row.newest)
        )
        for row in rows_with_keys(connection, schema.cases, list(dict.fromkeys(keys)))
    }
    known = set(found)
    for key, row, time_s in zip(keys, rows, times_s, strict=True):
        figures = found.setdefault(key, CaseFigures())
        seconds = seconds_of(row["samples"], row["sample_count"])
        figures.add(seconds, time_s=time_s, unlikeness=unlikeness(row["conditions"]))
    names = [column.name for column in schema.cases.primary_key]
    written = [
        (key in known, {**dict(zip(names, key, strict=True)), **figures.row()}) for key, figures in found.items()
    ]
    insert_rows(connection, schema.cases, [row for is_known, row in written if not is_known])
    update_rows(connection, schema.cases, [row for is_known, row in written if is_known])
    return found


def _described(op: Op) -> Row:
    worked_on = subject(op)
    return {"kind": op.kind, "subject": worked_on, "words": f"{op.key} {worked_on}".lower()}
