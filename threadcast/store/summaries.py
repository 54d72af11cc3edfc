"""One row for each op on each machine, so that a page of many ops is one indexed query.

Rows are derived from the measurements in the transaction that adds them, so they are never out of date.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import numpy as np
from sqlalchemy import Connection, bindparam, insert, select, update

from threadcast.core import Op
from threadcast.store import schema
from threadcast.store.queries import chunks
from threadcast.store.rows import Row

SUBJECT_CHARACTERS = 200
"""Most characters of an op's subject that are stored, shown and searched."""

_FLOAT = np.dtype("<f8")
_READ = ("op_id", "threads", "affinity", "sample_count", "samples", "conditions")


def subject(op: Op) -> str:
    """A short text on the op's data: the shapes of its inputs, or its attributes where it has no inputs."""
    if op.inputs:
        text = ", ".join("x".join(map(str, spec.shape)) or "scalar" for spec in op.inputs)
    else:
        text = ", ".join(f"{name} {value}" for name, value in op.attributes.items())
    return text[:SUBJECT_CHARACTERS]


def refresh(connection: Connection, touched: Mapping[int, Collection[int]], ops: Mapping[int, Op]) -> None:
    """Compute the summaries of these ops again: `touched` maps machine ids to op ids.

    An existing row is locked before measurements are read, where the database has such locks: of two writers, the later
    one then sees what the earlier one added.
    """
    table, measured = schema.summaries, schema.measurements
    for machine_id, op_ids in sorted(touched.items()):
        for some in chunks(sorted(op_ids)):
            here = table.c.machine_id == machine_id
            held = select(table.c.op_id).where(here, table.c.op_id.in_(some)).order_by(table.c.op_id)
            known = set(connection.execute(held.with_for_update()).scalars())
            found = select(*(measured.c[name] for name in _READ)).where(
                measured.c.machine_id == machine_id, measured.c.op_id.in_(some)
            )
            rows_of: dict[int, list[Any]] = {}
            for row in connection.execute(found):
                rows_of.setdefault(row.op_id, []).append(row)
            figures = {op_id: summary_of(rows) for op_id, rows in rows_of.items()}
            new = [
                {"machine_id": machine_id, "op_id": op_id, **_described(ops[op_id]), **found}
                for op_id, found in figures.items()
                if op_id not in known
            ]
            changed = [{"changed": op_id, **found} for op_id, found in figures.items() if op_id in known]
            if new:
                connection.execute(insert(table), new)
            if changed:
                set_to: Row = {name: bindparam(name) for name in changed[0] if name != "changed"}
                connection.execute(
                    update(table).where(here, table.c.op_id == bindparam("changed")).values(set_to), changed
                )


def _described(op: Op) -> Row:
    worked_on = subject(op)
    return {"kind": op.kind, "subject": worked_on, "words": f"{op.key} {worked_on}".lower()}


def summary_of(rows: Iterable[Any]) -> Row:
    """The figures of one op on one machine from its measurement rows: medians by case, and what follows from them.

    Of several measurements of a case, only those are used in which the caches were most as they are in a step, as
    models do (`models.measured.by_case`).
    """
    pooled: dict[tuple[int, str], tuple[int, list[float]]] = {}
    samples = 0
    for row in rows:
        seconds = np.frombuffer(row.samples, _FLOAT, row.sample_count).tolist()
        samples += len(seconds)
        unlike, case = _unlikeness(row.conditions), (row.threads, row.affinity)
        before = pooled.get(case)
        if before is None or unlike < before[0]:
            pooled[case] = unlike, seconds
        elif unlike == before[0]:
            before[1].extend(seconds)
    medians = {case: statistics.median(seconds) for case, (_, seconds) in pooled.items()}
    best = min(medians, key=lambda case: (medians[case], case))
    first_s, last_s = (
        min(s for case, s in medians.items() if case[0] == end) for end in (min(medians)[0], max(medians)[0])
    )
    best_s = medians[best]
    return {
        "cases": len(medians), "samples": samples, "best_s": best_s, "best_threads": best[0], "best_affinity": best[1],
        "speedup": first_s / best_s if best_s else 1.0, "all_threads": last_s / best_s if best_s else 1.0,
    }  # fmt: skip


def _unlikeness(conditions: str) -> int:
    """Rank of how different the caches were from those in a step (`models.measured.by_case`)."""
    return {"rotated": 0, "cold": 2}.get(str(json.loads(conditions).get("cache")), 1)
