"""alembic's scripts, run by `threadcast.store.database` when a store is opened."""
