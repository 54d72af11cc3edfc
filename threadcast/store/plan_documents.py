"""Storing plans for a while, as JSON text by name."""

from __future__ import annotations

from sqlalchemy import Connection, delete, func, insert, select

from threadcast.store.schema import plans


def insert_plan(connection: Connection, name: str, document: str, *, now_s: float, most: int) -> None:
    """Store `document` under `name`, unless that name has one, and delete the oldest of more than `most` plans.

    `now_s` is the present time in seconds since 1970.
    """
    if connection.execute(select(plans.c.name).where(plans.c.name == name)).first():
        return
    connection.execute(insert(plans).values(name=name, document=document, created_s=now_s))
    extra = connection.execute(select(func.count()).select_from(plans)).scalar_one() - most
    if extra > 0:
        oldest = select(plans.c.name).order_by(plans.c.created_s, plans.c.name).limit(extra)
        connection.execute(delete(plans).where(plans.c.name.in_(oldest)))


def plan_text(connection: Connection, name: str) -> str | None:
    """The document of this name; None where it is not stored, or not any more."""
    document: str | None = connection.execute(select(plans.c.document).where(plans.c.name == name)).scalar()
    return document
