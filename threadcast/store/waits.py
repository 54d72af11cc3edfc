"""How long a store waits: for a connection, for other transactions and for the answer to a statement.

SQLite waits for other writers only. PostgreSQL is told the limits when a connection is made, and ends statements and
forgotten transactions itself; a server that vanished is noticed by the operating system.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import URL, Connection

WAIT_S = 60.0
"""How long a statement waits for others' transactions, and in PostgreSQL how long it may take altogether, in seconds.
They take milliseconds each; after a longer wait a process must be hanging."""

_CONNECT_S = 10
"""Longest time for a connection to PostgreSQL, in seconds; libpq takes whole ones from 2 on."""


def engine_options(url: URL, wait_s: float) -> dict[str, Any]:
    """Arguments of `create_engine`; what `url` says itself is left out.

    Each connection is tried before it is used (`pool_pre_ping`), so that a database that was restarted is used again by
    the next request.
    """
    if url.get_backend_name() == "sqlite":
        return {"connect_args": {"timeout": wait_s}}
    arguments = {
        "connect_timeout": _CONNECT_S, "keepalives_idle": 30, "keepalives_interval": 10, "keepalives_count": 3,
        "tcp_user_timeout": round(1000 * wait_s),
    }  # fmt: skip
    given = {name: value for name, value in arguments.items() if name not in url.query}
    return {"pool_pre_ping": True, "pool_timeout": wait_s, "connect_args": given}


def limit_session(connection: Any, wait_s: float) -> None:
    """Set the limits of a new connection of psycopg, except those that the URL, the role or the server sets."""
    limits = {"statement_timeout": wait_s, "lock_timeout": wait_s, "idle_in_transaction_session_timeout": 2 * wait_s}
    before, connection.autocommit = connection.autocommit, True  # else a rollback takes them back
    try:
        for name, limit_s in limits.items():
            limit = f"{max(1, round(1000 * limit_s))}ms"
            connection.execute(
                f"SELECT set_config('{name}', %s, false) WHERE current_setting('{name}') = '0'", (limit,)
            )
    finally:
        connection.autocommit = before


def let_take_long(connection: Connection) -> None:
    """Let the statements of the current transaction take as long as they need, for example to read a whole store."""
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql("SET LOCAL statement_timeout = 0")


def hint(cause: str, wait_s: float) -> str:
    """What to do about an error of the database with this text; empty where nothing is known."""
    if "locked" in cause:
        return f" by another process for {wait_s:g} s; end it and try again"
    if "lock timeout" in cause:
        return f": another transaction held up this one for {wait_s:g} s; end it and try again"
    if "statement timeout" in cause:
        return f": it took longer than {wait_s:g} s; ask for less, or look at what else the database does"
    if "unable to open database file" in cause or "readonly database" in cause:
        return (
            "; SQLite writes to it and to files beside it, to read as well: its folder must not be read-only, "
            "nor mounted so; copy it to one that is not"
        )
    return ""
