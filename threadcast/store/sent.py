"""How far the measurements of a machine were sent to a service."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection, insert, select, update

from threadcast.store import schema


@dataclass(frozen=True, slots=True)
class Sent:
    """Numbers of measurements: up to `stored` the service has acknowledged them, up to `under_way` they were sent.

    Where `under_way` is the larger one, whether they arrived is not known: exactly these must be sent again.
    """

    stored: int = 0
    under_way: int = 0


def read_sent(connection: Connection, service: str, machine: str) -> Sent:
    """How far the measurements of the machine with this fingerprint were sent to the service at this URL."""
    table = schema.sent
    row = connection.execute(
        select(table.c.stored, table.c.under_way).where(table.c.service == service, table.c.machine == machine)
    ).first()
    return Sent() if row is None else Sent(*row)


def write_sent(connection: Connection, service: str, machine: str, sent: Sent, *, was: Sent) -> bool:
    """Replace what `read_sent` returns in a transaction for writing; False where it is not `was` any more, and then
    stays."""
    if read_sent(connection, service, machine) != was:
        return False
    table = schema.sent
    values = {"stored": sent.stored, "under_way": sent.under_way}
    here = update(table).where(table.c.service == service, table.c.machine == machine).values(values)
    if not connection.execute(here).rowcount:
        connection.execute(insert(table).values(service=service, machine=machine, **values))
    return True
