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

    It expires after `keep_s` seconds, never where that is None; those that have expired are deleted first. `now_s` is
    the present time in seconds since 1970.
    """
    connection.execute(delete(batches).where(batches.c.expires_s < now_s))
    used = connection.execute(select(batches).where(batches.c.idempotency_key == receipt.key)).first()
    if used is not None:
        return Receipt(used.idempotency_key, used.digest, used.answer)
    expires_s = None if keep_s is None else now_s + keep_s
    row = {"digest": receipt.digest, "answer": receipt.answer, "created_s": now_s, "expires_s": expires_s}
    connection.execute(insert(batches).values(idempotency_key=receipt.key, **row))
    return None
