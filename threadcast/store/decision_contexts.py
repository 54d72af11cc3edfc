"""Storing the contexts of decisions for a while, as bytes by name."""

from __future__ import annotations

from sqlalchemy import Connection, delete, func, insert, select, update

from threadcast.store.schema import contexts


def insert_context(connection: Connection, name: str, content: bytes, *, now_s: float, most: int) -> None:
    """Store `content` under `name`, or mark it as used at `now_s` (seconds since 1970) where it is stored already.

    Of more than `most` contexts, those that were stored or marked longest ago are deleted.
    """
    here = contexts.c.name == name
    if connection.execute(update(contexts).where(here).values(used_s=now_s)).rowcount:
        return
    connection.execute(insert(contexts).values(name=name, content=content, used_s=now_s))
    extra = connection.execute(select(func.count()).select_from(contexts)).scalar_one() - most
    if extra > 0:
        oldest = select(contexts.c.name).order_by(contexts.c.used_s, contexts.c.name).limit(extra)
        connection.execute(delete(contexts).where(contexts.c.name.in_(oldest)))


def context_content(connection: Connection, name: str) -> bytes | None:
    """The bytes of this name; None where it is not stored, or not any more."""
    content: bytes | None = connection.execute(select(contexts.c.content).where(contexts.c.name == name)).scalar()
    return content
