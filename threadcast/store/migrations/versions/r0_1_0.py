"""The tables of the first release: those of `schema`, until a later revision changes one."""

from __future__ import annotations

from alembic import op

from threadcast.store.schema import metadata

revision = "0.1.0"
down_revision = None


def upgrade() -> None:
    """Create all tables. A later revision that changes some writes down here what they were."""
    metadata.create_all(op.get_bind())
    if op.get_bind().dialect.name == "postgresql":
        # Rows of these tables change all the time, and none of the changed columns has an index: with room in its page
        # a changed row stays there, and no index is written.
        op.execute("ALTER TABLE cases SET (fillfactor = 60)")
        op.execute("ALTER TABLE totals SET (fillfactor = 20)")
