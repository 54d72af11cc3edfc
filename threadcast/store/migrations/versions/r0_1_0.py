"""The tables of the first release."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0.1.0"
down_revision = None


def upgrade() -> None:
    """Create all tables."""
    op.create_table(
        "batches",
        sa.Column("idempotency_key", sa.Text, primary_key=True),
        sa.Column("digest", sa.Text, nullable=False, server_default=""),
        sa.Column("answer", sa.Text, nullable=False, server_default=""),
        sa.Column("created_s", sa.Float, nullable=False, server_default="0"),
        sa.Column("expires_s", sa.Double),
    )
    op.create_index("ix_batches_expires", "batches", ["expires_s"])
    op.create_table(
        "contexts",
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("content", sa.LargeBinary, nullable=False),
        sa.Column("used_s", sa.Double, nullable=False),
    )
    op.create_index("ix_contexts_used", "contexts", ["used_s"])
    op.create_table(
        "graphs",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("name", sa.Text, nullable=False, unique=True),
        sa.Column("document", sa.Text, nullable=False),
    )
    op.create_table(
        "machines",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("fingerprint", sa.Text, nullable=False, unique=True),
        sa.Column("document", sa.Text, nullable=False),
    )
    op.create_table(
        "ops",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("key", sa.Text, nullable=False, unique=True),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("document", sa.Text, nullable=False),
    )
    op.create_index("ix_ops_kind", "ops", ["kind"])
    op.create_table(
        "plans",
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("document", sa.Text, nullable=False),
        sa.Column("created_s", sa.Float, nullable=False),
    )
    op.create_index("ix_plans_created", "plans", ["created_s"])
    op.create_table(
        "sent",
        sa.Column("service", sa.Text, primary_key=True),
        sa.Column("machine", sa.Text, primary_key=True),
        sa.Column("stored", sa.Integer, nullable=False),
        sa.Column("under_way", sa.Integer, nullable=False),
    )
    op.create_table(
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
    op.create_table(
        "graph_ops",
        sa.Column("graph_id", sa.Integer, sa.ForeignKey("graphs.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("op_id", sa.Integer, sa.ForeignKey("ops.id"), primary_key=True),
    )
    op.create_index("ix_graph_ops_op", "graph_ops", ["op_id"])
    op.create_table(
        "measurements",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("op_id", sa.Integer, sa.ForeignKey("ops.id"), nullable=False),
        sa.Column("machine_id", sa.Integer, sa.ForeignKey("machines.id"), nullable=False),
        sa.Column("threads", sa.Integer, nullable=False),
        sa.Column("affinity", sa.Text, nullable=False),
        sa.Column("sample_count", sa.Integer, nullable=False),
        sa.Column("counters", sa.Text, nullable=False),
        sa.Column("samples", sa.LargeBinary, nullable=False),
        sa.Column("conditions", sa.Text, nullable=False),
        sa.Column("stored_s", sa.Double),
    )
    op.create_index("ix_measurements_machine", "measurements", ["machine_id", "id"])
    op.create_index("ix_measurements_op", "measurements", ["op_id", "machine_id", "id"])
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
    op.create_table(
        "summaries",
        sa.Column("machine_id", sa.Integer, sa.ForeignKey("machines.id"), primary_key=True),
        sa.Column("op_id", sa.Integer, sa.ForeignKey("ops.id"), primary_key=True),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("subject", sa.Text, nullable=False),
        sa.Column("words", sa.Text, nullable=False),
        sa.Column("cases", sa.Integer, nullable=False),
        sa.Column("measurements", sa.Integer, nullable=False, server_default="0"),
        sa.Column("samples", sa.Integer, nullable=False),
        sa.Column("medians", sa.LargeBinary, nullable=False, server_default=""),
        sa.Column("best_s", sa.Double, nullable=False),
        sa.Column("best_threads", sa.Integer, nullable=False),
        sa.Column("best_affinity", sa.Text, nullable=False),
        sa.Column("speedup", sa.Double, nullable=False),
        sa.Column("all_threads", sa.Double, nullable=False),
    )
    op.create_index("ix_summaries_all_threads", "summaries", ["machine_id", "all_threads", "op_id"])
    op.create_index("ix_summaries_best", "summaries", ["machine_id", "best_s", "op_id"])
    op.create_index("ix_summaries_kind", "summaries", ["machine_id", "kind", "best_s", "op_id"])
    op.create_index("ix_summaries_op", "summaries", ["op_id"])
    op.create_index("ix_summaries_samples", "summaries", ["machine_id", "samples", "op_id"])
    op.create_index("ix_summaries_speedup", "summaries", ["machine_id", "speedup", "op_id"])
    op.create_index("ix_summaries_words", "summaries", ["machine_id", "words", "op_id"])
    op.create_table(
        "totals",
        sa.Column("machine_id", sa.Integer, sa.ForeignKey("machines.id"), primary_key=True),
        sa.Column("measurements", sa.Integer, nullable=False),
        sa.Column("samples", sa.BigInteger, nullable=False),
    )
    if op.get_bind().dialect.name == "postgresql":
        # Rows of these tables change all the time, and none of the changed columns has an index: with room in its page
        # a changed row stays there, and no index is written.
        op.execute("ALTER TABLE cases SET (fillfactor = 60)")
        op.execute("ALTER TABLE totals SET (fillfactor = 20)")
