"""Machines, ops, their measurements, and the keys of batches that were already added."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Create the first tables."""
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
    )
    op.create_index("ix_measurements_op", "measurements", ["op_id"])
    op.create_index("ix_measurements_machine_op", "measurements", ["machine_id", "op_id"])
    op.create_table("batches", sa.Column("idempotency_key", sa.Text, primary_key=True))
