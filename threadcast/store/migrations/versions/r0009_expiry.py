"""When each receipt of a batch expires, so that those of imported files, which never do, outlive those of requests."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"

_KEPT_S = 86_400.0  # the default of service.idempotency_s


def upgrade() -> None:
    """Add the column with its index. Only requests have left digests: theirs are kept for a day."""
    op.add_column("batches", sa.Column("expires_s", sa.Double))
    op.execute(f"UPDATE batches SET expires_s = created_s + {_KEPT_S} WHERE digest <> ''")
    op.drop_index("ix_batches_created", "batches")
    op.create_index("ix_batches_expires", "batches", ["expires_s"])
