"""Deletes from a store what its retention does not keep, a few ops in each transaction."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from math import nan
from typing import Any

import numpy as np
from sqlalchemy import Connection, and_, bindparam, delete, func, or_, select, update

from threadcast.core.measurement_time import date_s
from threadcast.store import schema
from threadcast.store.bulk import update_rows
from threadcast.store.case_figures import CaseFigures, op_figures, unlikeness
from threadcast.store.database import Database
from threadcast.store.queries import chunks
from threadcast.store.retention import Retention
from threadcast.store.rows import Row, cut_samples
from threadcast.store.summaries import MachineOp, add_to_totals

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


def prune(database: Database, retention: Retention, *, now_s: float, dry_run: bool = False) -> Pruned:
    """Delete what `retention` does not keep at `now_s` (seconds since 1970); with `dry_run` only count it.

    It can be ended at any time: each transaction leaves figures that fit to the samples.
    """
    found = Pruned()
    if retention.is_everything:
        return found
    with database.read(long=True) as connection:
        candidates = _candidates(connection, retention, now_s)
    some: list[MachineOp] = []
    rows = 0
    for key, measurements in candidates:
        some.append(key)
        rows += measurements
        if rows >= ROWS_AT_ONCE:
            found, some, rows = found + _pruned(database, some, retention, now_s, dry_run), [], 0
    return found + _pruned(database, some, retention, now_s, dry_run)


def _candidates(connection: Connection, retention: Retention, now_s: float) -> list[tuple[MachineOp, int]]:
    """The ops on machines that have a case with too many or too old samples, with their numbers of measurements."""
    c, s = schema.cases.c, schema.summaries.c
    too = []
    if retention.keep_samples is not None:
        too.append(c.samples > retention.keep_samples)
    if retention.keep_days is not None:
        too.append(and_(c.oldest_s < retention.oldest_s(now_s), c.measurements > 1))
    query = (
        select(c.machine_id, c.op_id, s.measurements)
        .distinct()
        .join(schema.summaries, and_(s.machine_id == c.machine_id, s.op_id == c.op_id))
        .where(or_(*too))
        .order_by(c.machine_id, c.op_id)
    )
    return [((row.machine_id, row.op_id), row.measurements) for row in connection.execute(query)]


def _pruned(database: Database, ops: Sequence[MachineOp], retention: Retention, now_s: float, dry_run: bool) -> Pruned:
    if not ops:
        return Pruned()
    if dry_run:
        with database.read(long=True) as connection:
            return sum((_prune_op(connection, key, retention, now_s, dry_run=True) for key in ops), Pruned())
    return database.write(
        lambda connection: sum((_prune_op(connection, key, retention, now_s, dry_run=False) for key in ops), Pruned())
    )


def _prune_op(connection: Connection, key: MachineOp, retention: Retention, now_s: float, *, dry_run: bool) -> Pruned:
    table = schema.measurements
    here = and_(table.c.machine_id == key[0], table.c.op_id == key[1])
    rows = list(connection.execute(select(table).where(here).order_by(table.c.id)))
    last = connection.execute(select(func.max(table.c.id))).scalar()  # it stays: ids only ever grow
    groups: dict[tuple[int, str, int], list[Any]] = {}
    for row in rows:
        groups.setdefault((row.threads, row.affinity, unlikeness(row.conditions)), []).append(row)
    deleted: list[int] = []
    cut: list[Row] = []
    figures: dict[tuple[int, str], CaseFigures] = {}
    samples = 0
    for (threads, affinity, unlike), found in groups.items():
        seconds = [np.frombuffer(row.samples, "<f8", row.sample_count) for row in found]
        times_s = [_time_s(row) for row in found]
        case = figures.setdefault((threads, affinity), CaseFigures())
        kept = retention.kept(seconds, times_s, now_s)
        for row, of_row, time_s, positions in zip(found, seconds, times_s, kept, strict=True):
            if row.id == last and not positions:
                positions = list(range(row.sample_count))
            samples += row.sample_count - len(positions)
            if not positions:
                deleted.append(row.id)
                continue
            if len(positions) < row.sample_count:
                cut.append({"row": row.id, "samples": cut_samples(row, positions), "sample_count": len(positions)})
            case.add(of_row[positions].tolist(), time_s=time_s, unlikeness=unlike)
    pruned = Pruned(len(deleted), samples, 1)
    if samples and not dry_run:
        _store(connection, key, deleted, cut, figures)
        add_to_totals(connection, [(key[0], -len(deleted), -samples)])
    return pruned


def _store(
    connection: Connection, key: MachineOp, deleted: Sequence[int], cut: Sequence[Row],
    figures: dict[tuple[int, str], CaseFigures],
) -> None:  # fmt: skip
    """Delete and cut rows of an op on a machine, and store the figures of what is left of it."""
    table = schema.measurements
    for some in chunks(deleted):
        connection.execute(delete(table).where(table.c.id.in_(some)))
    if cut:
        changed = update(table).where(table.c.id == bindparam("row"))
        connection.execute(changed.values(samples=bindparam("samples"), sample_count=bindparam("sample_count")), cut)
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
