"""The script that alembic runs: it upgrades the database over the connection of `threadcast.store.database`."""

from __future__ import annotations

from alembic import context

from threadcast.store.schema import VERSION_TABLE, metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    version_table=VERSION_TABLE,
    transactional_ddl=True,
)
with context.begin_transaction():
    context.run_migrations()
