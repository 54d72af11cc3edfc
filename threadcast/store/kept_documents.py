"""Storing plans, and what decisions are made from, for a while: content by name, with what lists say about it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, Table, delete, func, insert, select, update

MOST_ABOUT = 2_000
"""Most characters of what is said about a content."""


@dataclass(frozen=True, slots=True)
class Kept:
    """What is said about the content of a name, and when that was stored or marked, as ISO 8601."""

    table: str
    name: str
    time: str
    about: dict[str, Any]


def with_about(about: Mapping[str, Any], content: str | bytes) -> str | bytes:
    """`content` after a line that says what it is, as `keep` stores it."""
    line = json.dumps(about) + "\n"
    return line + content if isinstance(content, str) else line.encode() + content


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
    """The content of this name, without the line about it; None where there is none, or not any more."""
    of_name, of_content, _ = table.columns
    found = connection.execute(select(of_content).where(of_name == name)).scalar()
    return found and found.partition("\n" if isinstance(found, str) else b"\n")[2]


def newest(connection: Connection, table: Table, limit: int) -> Iterator[Kept]:
    """What is said about the contents that were stored or marked last, the last one first."""
    of_name, of_content, of_time = table.columns
    query = select(of_name, of_time, func.substr(of_content, 1, MOST_ABOUT)).order_by(of_time.desc(), of_name)
    for name, time_s, start in connection.execute(query.limit(limit)):
        text = start if isinstance(start, str) else bytes(start).decode(errors="replace")
        about = json.loads(text.partition("\n")[0])
        yield Kept(table.name, name, datetime.fromtimestamp(time_s, UTC).isoformat(timespec="seconds"), about)
