"""Figures of each case, to which measurements are added one by one; when rows were stored; indexes for pages by key."""

from __future__ import annotations

import json
import statistics
import struct
from collections.abc import Iterator
from datetime import UTC, datetime
from math import isnan, nan
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"

_OPS_AT_ONCE = 1_000
_MOST_NEWEST = 64
_AFFINITIES = ("compact", "spread")


def upgrade() -> None:
    """Add the columns and the table, exchange the indexes, and compute the figures of what was measured."""
    op.add_column("measurements", sa.Column("stored_s", sa.Double))
    op.drop_index("ix_measurements_op", "measurements")
    op.drop_index("ix_measurements_machine_op", "measurements")
    op.create_index("ix_measurements_op", "measurements", ["op_id", "machine_id", "id"])
    op.add_column("summaries", sa.Column("measurements", sa.Integer, nullable=False, server_default="0"))
    op.add_column("summaries", sa.Column("medians", sa.LargeBinary, nullable=False, server_default=""))
    cases = op.create_table(
        "cases",
        sa.Column("machine_id", sa.Integer, sa.ForeignKey("machines.id"), primary_key=True),
        sa.Column("op_id", sa.Integer, sa.ForeignKey("ops.id"), primary_key=True),
        sa.Column("threads", sa.Integer, primary_key=True),
        sa.Column("affinity", sa.Text, primary_key=True),
        sa.Column("measurements", sa.Integer, nullable=False),
        sa.Column("samples", sa.Integer, nullable=False),
        sa.Column("oldest_s", sa.Double),
        sa.Column("unlikeness", sa.Integer, nullable=False),
        sa.Column("newest", sa.LargeBinary, nullable=False),
        sa.Column("median_s", sa.Double, nullable=False),
    )
    _fill(op.get_bind(), cases)


def _fill(connection: sa.Connection, cases: sa.Table) -> None:
    """Some ops at a time, so that a large store is never held whole in memory."""
    ops = list(connection.execute(sa.text("SELECT id FROM ops ORDER BY id")).scalars())
    query = sa.text(
        "SELECT machine_id, op_id, threads, affinity, sample_count, samples, conditions FROM measurements "
        "WHERE op_id BETWEEN :low AND :high ORDER BY id"
    )
    change = sa.text(
        "UPDATE summaries SET cases = :cases, measurements = :measurements, samples = :samples, medians = :medians, "
        "best_s = :best_s, best_threads = :best_threads, best_affinity = :best_affinity, speedup = :speedup, "
        "all_threads = :all_threads WHERE machine_id = :machine_id AND op_id = :op_id"
    )
    for start in range(0, len(ops), _OPS_AT_ONCE):
        some = {"low": ops[start], "high": ops[start : start + _OPS_AT_ONCE][-1]}
        measured: dict[tuple[int, int, int, str], list[Any]] = {}
        for row in connection.execute(query, some):
            measured.setdefault((row.machine_id, row.op_id, row.threads, row.affinity), []).append(row)
        rows = [_case_row(key, found) for key, found in measured.items()]
        if rows:
            connection.execute(cases.insert(), rows)
            connection.execute(change, list(_op_rows(rows)))


def _case_row(key: tuple[int, int, int, str], rows: list[Any]) -> dict[str, Any]:
    found = [(_unlikeness(told := json.loads(row.conditions)), _time_s(told), _seconds(row)) for row in rows]
    least = min(unlike for unlike, _, _ in found)
    samples = [(time_s, s) for unlike, time_s, seconds in found if unlike == least for s in seconds]
    samples.sort(key=lambda sample: -1.0 if isnan(sample[0]) else sample[0])
    newest = samples[-_MOST_NEWEST:]
    machine_id, op_id, threads, affinity = key
    return {
        "machine_id": machine_id, "op_id": op_id, "threads": threads, "affinity": affinity, "measurements": len(rows),
        "samples": sum(row.sample_count for row in rows),
        "oldest_s": min((time_s for _, time_s, _ in found if not isnan(time_s)), default=None), "unlikeness": least,
        "newest": b"".join(struct.pack("<dd", *sample) for sample in newest),
        "median_s": statistics.median(s for _, s in newest),
    }  # fmt: skip


def _op_rows(rows: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    of_ops: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for row in rows:
        of_ops.setdefault((row["machine_id"], row["op_id"]), []).append(row)
    for (machine_id, op_id), found in of_ops.items():
        medians = {(row["threads"], row["affinity"]): row["median_s"] for row in found}
        best = min(medians, key=lambda case: (medians[case], case))
        first_s = min(s for case, s in medians.items() if case[0] == min(medians)[0])
        last_s = min(s for case, s in medians.items() if case[0] == max(medians)[0])
        best_s = medians[best]
        yield {
            "machine_id": machine_id, "op_id": op_id, "cases": len(medians),
            "measurements": sum(row["measurements"] for row in found), "samples": sum(row["samples"] for row in found),
            "medians": b"".join(
                struct.pack("<iBd", threads, _AFFINITIES.index(affinity), s)
                for (threads, affinity), s in sorted(medians.items())
            ),
            "best_s": best_s, "best_threads": best[0], "best_affinity": best[1],
            "speedup": first_s / best_s if best_s else 1.0, "all_threads": last_s / best_s if best_s else 1.0,
        }  # fmt: skip


def _seconds(row: Any) -> tuple[float, ...]:
    return struct.unpack_from(f"<{row.sample_count}d", row.samples)


def _unlikeness(conditions: dict[str, Any]) -> int:
    return {"rotated": 0, "cold": 2}.get(str(conditions.get("cache")), 1)


def _time_s(conditions: dict[str, Any]) -> float:
    try:
        time = datetime.fromisoformat(str(conditions["time"]))
    except (KeyError, ValueError):
        return nan
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()
