"""Receipts of batches of measurements, so that a batch that is sent twice is stored once."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection, delete, insert, select

from threadcast.store.schema import batches


@dataclass(frozen=True, slots=True)
class Receipt:
    """A stored batch: its idempotency key, a digest of the request, and the answer that its sender got."""

    key: str
    digest: str = ""
    answer: str = ""


def former_receipt(connection: Connection, receipt: Receipt, *, now_s: float, keep_s: float | None) -> Receipt | None:
    """The stored receipt with the same key; None where there was none, and then `receipt` is stored.

    Receipts older than `keep_s` seconds are deleted first; None keeps them for ever. `now_s` is the present time in
    seconds since 1970.
    """
    if keep_s is not None:
        connection.execute(delete(batches).where(batches.c.created_s < now_s - keep_s))
    used = connection.execute(select(batches).where(batches.c.idempotency_key == receipt.key)).first()
    if used is not None:
        return Receipt(used.idempotency_key, used.digest, used.answer)
    row = {"digest": receipt.digest, "answer": receipt.answer, "created_s": now_s}
    connection.execute(insert(batches).values(idempotency_key=receipt.key, **row))
    return None
