"""What decisions are made from, so that every process of a service can go on with it."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Add the table of the contexts of `POST /v1/decisions`."""
    op.create_table(
        "contexts",
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("content", sa.LargeBinary, nullable=False),
        sa.Column("used_s", sa.Double, nullable=False),
    )
    op.create_index("ix_contexts_used", "contexts", ["used_s"])
