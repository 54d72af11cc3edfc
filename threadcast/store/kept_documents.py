"""Storing plans, and what decisions are made from, for a while: content by name."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, Table, delete, func, insert, select, update


def keep(connection: Connection, table: Table, name: str, content: str | bytes, *, now_s: float, most: int) -> None:
    """Store `content` under `name`; where that name has some already, which stays, mark it as used at `now_s`.

    `now_s` is in seconds since 1970. Of more than `most` entries those that were stored or marked longest ago are
    deleted. `table` has columns for the name, the content and the time, in this order.
    """
    of_name, of_content, of_time = table.columns
    if connection.execute(update(table).where(of_name == name).values({of_time: now_s})).rowcount:
        return
    connection.execute(insert(table).values({of_name: name, of_content: content, of_time: now_s}))
    extra = connection.execute(select(func.count()).select_from(table)).scalar_one() - most
    if extra > 0:
        oldest = select(of_name).order_by(of_time, of_name).limit(extra)
        connection.execute(delete(table).where(of_name.in_(oldest)))


def content_of(connection: Connection, table: Table, name: str) -> Any:
    """The content of this name; None where there is none, or not any more."""
    of_name, of_content, _ = table.columns
    return connection.execute(select(of_content).where(of_name == name)).scalar()
