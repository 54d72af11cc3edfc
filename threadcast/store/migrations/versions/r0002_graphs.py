"""Graphs, and which ops belong to which, so that a whole network can be held out of training."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Add the tables of graphs."""
    op.create_table(
        "graphs",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("name", sa.Text, nullable=False, unique=True),
        sa.Column("document", sa.Text, nullable=False),
    )
    op.create_table(
        "graph_ops",
        sa.Column("graph_id", sa.Integer, sa.ForeignKey("graphs.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("op_id", sa.Integer, sa.ForeignKey("ops.id"), primary_key=True),
    )
    op.create_index("ix_graph_ops_op", "graph_ops", ["op_id"])
