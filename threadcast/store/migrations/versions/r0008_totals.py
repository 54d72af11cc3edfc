"""How much was measured on each machine, so that a page's total needs no sum over all ops."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    """Add the table, and sum up what was measured."""
    op.create_table(
        "totals",
        sa.Column("machine_id", sa.Integer, sa.ForeignKey("machines.id"), primary_key=True),
        sa.Column("measurements", sa.Integer, nullable=False),
        sa.Column("samples", sa.BigInteger, nullable=False),
    )
    op.execute(
        "INSERT INTO totals (machine_id, measurements, samples) "
        "SELECT machine_id, SUM(measurements), SUM(samples) FROM summaries GROUP BY machine_id"
    )
    if op.get_bind().dialect.name == "postgresql":
        # Rows of these tables change all the time, and none of the changed columns has an index: with room in its page
        # a changed row stays there, and no index is written.
        op.execute("ALTER TABLE cases SET (fillfactor = 60)")
        op.execute("ALTER TABLE totals SET (fillfactor = 20)")
