"""Deletes old measurements from a store, a few ops in each transaction."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isnan, nan
from typing import Any

from sqlalchemy import Connection, and_, delete, func, select

from threadcast.core.measurement_time import date_s
from threadcast.store import schema
from threadcast.store.bulk import update_rows
from threadcast.store.case_figures import CaseFigures, CaseKey, op_figures, seconds_of, unlikeness
from threadcast.store.database import Database
from threadcast.store.queries import chunks
from threadcast.store.summaries import MachineOp, add_to_totals

DAY_S = 86_400.0

ROWS_AT_ONCE = 2_000
"""Measurements looked through in one transaction, of at least one op: others wait some tens of milliseconds."""


@dataclass(frozen=True, slots=True)
class Pruned:
    """Numbers of deleted measurements and samples, and of ops on machines whose samples were looked through."""

    measurements: int = 0
    samples: int = 0
    ops: int = 0

    def __add__(self, other: Pruned) -> Pruned:
        return Pruned(
            self.measurements + other.measurements, self.samples + other.samples, self.ops + other.ops
        )  # fmt: skip


def prune(database: Database, keep_days: float, *, now_s: float, dry_run: bool = False) -> Pruned:
    """Delete measurements that are older than `keep_days` at `now_s` (seconds since 1970); with `dry_run` only count
    them.

    The newest measurement of an op in a case, with caches in one state, stays, so that no op becomes unknown; so does
    what has no date. It can be ended at any time: each transaction leaves figures that fit to the samples.
    """
    found, oldest_s = Pruned(), now_s - keep_days * DAY_S
    with database.read(long=True) as connection:
        candidates = _candidates(connection, oldest_s)
    some: list[MachineOp] = []
    rows = 0
    for key, measurements in candidates:
        some.append(key)
        rows += measurements
        if rows >= ROWS_AT_ONCE:
            found, some, rows = found + _pruned(database, some, oldest_s, dry_run), [], 0
    return found + _pruned(database, some, oldest_s, dry_run)


def _candidates(connection: Connection, oldest_s: float) -> list[tuple[MachineOp, int]]:
    """The ops on machines that have a case with older measurements, with their numbers of measurements."""
    c, s = schema.cases.c, schema.summaries.c
    query = (
        select(c.machine_id, c.op_id, s.measurements)
        .distinct()
        .join(schema.summaries, and_(s.machine_id == c.machine_id, s.op_id == c.op_id))
        .where(c.oldest_s < oldest_s, c.measurements > 1)
        .order_by(c.machine_id, c.op_id)
    )
    return [((row.machine_id, row.op_id), row.measurements) for row in connection.execute(query)]


def _pruned(database: Database, ops: Sequence[MachineOp], oldest_s: float, dry_run: bool) -> Pruned:
    if not ops:
        return Pruned()
    if dry_run:
        with database.read(long=True) as connection:
            return sum((_prune_op(connection, key, oldest_s, dry_run=True) for key in ops), Pruned())
    return database.write(
        lambda connection: sum((_prune_op(connection, key, oldest_s, dry_run=False) for key in ops), Pruned())
    )


def _prune_op(connection: Connection, key: MachineOp, oldest_s: float, *, dry_run: bool) -> Pruned:
    table = schema.measurements
    here = and_(table.c.machine_id == key[0], table.c.op_id == key[1])
    rows = list(connection.execute(select(table).where(here).order_by(table.c.id)))
    last = connection.execute(select(func.max(table.c.id))).scalar()  # it stays: ids only ever grow
    newest: dict[tuple[int, str, int], tuple[float, int]] = {}
    dated = [(row, _time_s(row), unlikeness(row.conditions)) for row in rows]
    for row, time_s, unlike in dated:
        alike = (row.threads, row.affinity, unlike)
        newest[alike] = max(newest.get(alike, (-math.inf, 0)), (-1.0 if isnan(time_s) else time_s, row.id))
    stays = {last, *(row_id for _, row_id in newest.values())}
    deleted: list[Any] = []
    figures: dict[CaseKey, CaseFigures] = {}
    for row, time_s, unlike in dated:
        if time_s < oldest_s and row.id not in stays:
            deleted.append(row)
        else:
            case = figures.setdefault((row.threads, row.affinity), CaseFigures())
            case.add(seconds_of(row.samples, row.sample_count), time_s=time_s, unlikeness=unlike)
    pruned = Pruned(len(deleted), sum(row.sample_count for row in deleted), 1)
    if deleted and not dry_run:
        for some in chunks([row.id for row in deleted]):
            connection.execute(delete(table).where(table.c.id.in_(some)))
        _store_figures(connection, key, figures)
        add_to_totals(connection, [(key[0], -pruned.measurements, -pruned.samples)])
    return pruned


def _store_figures(connection: Connection, key: MachineOp, figures: Mapping[CaseKey, CaseFigures]) -> None:
    """Store the figures of what is left of an op on a machine."""
    names = {"machine_id": key[0], "op_id": key[1]}
    update_rows(
        connection, schema.cases,
        [{**names, "threads": case[0], "affinity": case[1], **found.row()} for case, found in figures.items()],
    )  # fmt: skip
    counts = {name: sum(getattr(found, name) for found in figures.values()) for name in ("measurements", "samples")}
    update_rows(
        connection, schema.summaries,
        [{**names, **counts, **op_figures({case: found.median_s for case, found in figures.items()})}],
    )  # fmt: skip


def _time_s(row: Any) -> float:
    """When a row's measurement was made (`date_s`), in seconds since 1970; NaN where it is not known."""
    time_s = date_s(json.loads(row.conditions).get("time"), row.stored_s)
    return nan if time_s is None else time_s
