"""What the sender of a batch was told, so that it can be told again; and plans that were made."""

from __future__ import annotations

import time

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Add what is kept of a batch beside its key, which counts from now on for older ones, and the table of plans."""
    op.add_column("batches", sa.Column("digest", sa.Text, nullable=False, server_default=""))
    op.add_column("batches", sa.Column("answer", sa.Text, nullable=False, server_default=""))
    op.add_column("batches", sa.Column("created_s", sa.Float, nullable=False, server_default=str(int(time.time()))))
    op.create_index("ix_batches_created", "batches", ["created_s"])
    op.create_table(
        "plans",
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("document", sa.Text, nullable=False),
        sa.Column("created_s", sa.Float, nullable=False),
    )
    op.create_index("ix_plans_created", "plans", ["created_s"])
