"""How far the measurements of a machine were sent to a service, so that an interrupted campaign goes on sending."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    """Add the table of what was sent to services."""
    op.create_table(
        "sent",
        sa.Column("service", sa.Text, primary_key=True),
        sa.Column("machine", sa.Text, primary_key=True),
        sa.Column("stored", sa.Integer, nullable=False),
        sa.Column("under_way", sa.Integer, nullable=False),
    )
