"""What a store keeps for a while beside measurements: what senders of batches were told, and plans."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection, delete, func, insert, select

from threadcast.store.schema import batches, plans


@dataclass(frozen=True, slots=True)
class Receipt:
    """What is kept of a batch: its key, a digest of what was sent, and what its sender was told."""

    key: str
    digest: str = ""
    answer: str = ""


def former_receipt(connection: Connection, receipt: Receipt, *, now_s: float, keep_s: float | None) -> Receipt | None:
    """The receipt under this key, None where there is none yet: the given one is then kept.

    Receipts older than `keep_s` seconds are forgotten first; None keeps them for ever.
    """
    if keep_s is not None:
        connection.execute(delete(batches).where(batches.c.created_s < now_s - keep_s))
    used = connection.execute(select(batches).where(batches.c.idempotency_key == receipt.key)).first()
    if used is not None:
        return Receipt(used.idempotency_key, used.digest, used.answer)
    row = {"digest": receipt.digest, "answer": receipt.answer, "created_s": now_s}
    connection.execute(insert(batches).values(idempotency_key=receipt.key, **row))
    return None


def keep_plan(connection: Connection, name: str, document: str, *, now_s: float, most: int) -> None:
    """Keep `document` under `name`, unless there is one; of more than `most` the oldest goes."""
    if connection.execute(select(plans.c.name).where(plans.c.name == name)).first():
        return
    connection.execute(insert(plans).values(name=name, document=document, created_s=now_s))
    extra = connection.execute(select(func.count()).select_from(plans)).scalar_one() - most
    if extra > 0:
        oldest = select(plans.c.name).order_by(plans.c.created_s, plans.c.name).limit(extra)
        connection.execute(delete(plans).where(plans.c.name.in_(oldest)))


def kept_plan(connection: Connection, name: str) -> str | None:
    """The document of this name, None where it is not kept (any more)."""
    document: str | None = connection.execute(select(plans.c.document).where(plans.c.name == name)).scalar()
    return document
