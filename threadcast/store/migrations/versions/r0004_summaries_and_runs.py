"""What is known of each op on each machine in a row, made from the measurements; and runs with plan and trace."""

from __future__ import annotations

import json
import statistics
from typing import Any

import numpy as np
import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"

_OPS_AT_ONCE = 1_000
_INDEXES = (
    ("best", "best_s"), ("kind", "kind", "best_s"), ("samples", "samples"), ("speedup", "speedup"),
    ("all_threads", "all_threads"), ("words", "words"),
)  # fmt: skip


def upgrade() -> None:
    """Add both tables, and summarise what was measured."""
    op.create_index("ix_measurements_machine", "measurements", ["machine_id", "id"])
    summaries = op.create_table(
        "summaries",
        sa.Column("machine_id", sa.Integer, sa.ForeignKey("machines.id"), primary_key=True),
        sa.Column("op_id", sa.Integer, sa.ForeignKey("ops.id"), primary_key=True),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("subject", sa.Text, nullable=False),
        sa.Column("words", sa.Text, nullable=False),
        sa.Column("cases", sa.Integer, nullable=False),
        sa.Column("samples", sa.Integer, nullable=False),
        sa.Column("best_s", sa.Double, nullable=False),
        sa.Column("best_threads", sa.Integer, nullable=False),
        sa.Column("best_affinity", sa.Text, nullable=False),
        sa.Column("speedup", sa.Double, nullable=False),
        sa.Column("all_threads", sa.Double, nullable=False),
    )
    op.create_table(
        "runs",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("graph", sa.Text, nullable=False),
        sa.Column("machine_id", sa.Integer, sa.ForeignKey("machines.id"), nullable=False),
        sa.Column("time", sa.Text, nullable=False),
        sa.Column("plan", sa.Text, nullable=False),
        sa.Column("trace", sa.Text, nullable=False),
    )
    op.create_index("ix_runs_graph", "runs", ["graph", "machine_id", "id"])
    _fill(op.get_bind(), summaries)
    for name, *columns in _INDEXES:
        op.create_index(f"ix_summaries_{name}", "summaries", ["machine_id", *columns, "op_id"])
    op.create_index("ix_summaries_op", "summaries", ["op_id"])


def _fill(connection: sa.Connection, summaries: sa.Table) -> None:
    """Some ops at a time, so that a large store is never held whole in memory."""
    ops = list(connection.execute(sa.text("SELECT id FROM ops ORDER BY id")).scalars())
    for start in range(0, len(ops), _OPS_AT_ONCE):
        some = {"low": ops[start], "high": ops[start : start + _OPS_AT_ONCE][-1]}
        between = "BETWEEN :low AND :high"
        known = {
            row.id: _described(row)
            for row in connection.execute(sa.text(f"SELECT id, key, kind, document FROM ops WHERE id {between}"), some)
        }
        measured: dict[tuple[int, int], list[Any]] = {}
        query = sa.text(
            "SELECT machine_id, op_id, threads, affinity, sample_count, samples, conditions FROM measurements "
            f"WHERE op_id {between}"
        )
        for row in connection.execute(query, some):
            measured.setdefault((row.machine_id, row.op_id), []).append(row)
        rows = [
            {"machine_id": machine_id, "op_id": op_id, **known[op_id], **_figures(found)}
            for (machine_id, op_id), found in measured.items()
        ]
        if rows:
            connection.execute(summaries.insert(), rows)


def _described(row: Any) -> dict[str, Any]:
    subject = _subject(json.loads(row.document))
    return {"kind": row.kind, "subject": subject, "words": f"{row.key} {subject}".lower()}


def _subject(document: dict[str, Any]) -> str:
    shapes = [spec[0] if spec and isinstance(spec[0], list) else spec for spec in document["inputs"]]
    if shapes:
        return ", ".join("x".join(map(str, shape)) or "scalar" for shape in shapes)[:200]
    return ", ".join(f"{name} {value}" for name, value in document.get("attributes", {}).items())[:200]


def _figures(rows: list[Any]) -> dict[str, Any]:
    pooled: dict[tuple[int, str], tuple[int, list[float]]] = {}
    samples = 0
    for row in rows:
        seconds = np.frombuffer(row.samples, "<f8", row.sample_count).tolist()
        samples += len(seconds)
        unlike = {"rotated": 0, "cold": 2}.get(str(json.loads(row.conditions).get("cache")), 1)
        case = (row.threads, row.affinity)
        before = pooled.get(case)
        if before is None or unlike < before[0]:
            pooled[case] = unlike, seconds
        elif unlike == before[0]:
            before[1].extend(seconds)
    medians = {case: statistics.median(seconds) for case, (_, seconds) in pooled.items()}
    best = min(medians, key=lambda case: (medians[case], case))
    first_s = min(s for case, s in medians.items() if case[0] == min(medians)[0])
    last_s = min(s for case, s in medians.items() if case[0] == max(medians)[0])
    best_s = medians[best]
    return {
        "cases": len(medians), "samples": samples, "best_s": best_s, "best_threads": best[0], "best_affinity": best[1],
        "speedup": first_s / best_s if best_s else 1.0, "all_threads": last_s / best_s if best_s else 1.0,
    }  # fmt: skip
