"""The migration scripts for alembic, which `threadcast.store.database` runs when a store is opened."""
