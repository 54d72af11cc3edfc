"""Measurements of cases that their machine lacks, which versions up to 0.1 stored: finds and deletes them.

No forecast can use them: they are left out wherever measurements are read.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

from sqlalchemy import Column, ColumnElement, Connection, and_, delete, func, select, update
from sqlalchemy.sql.base import ReadOnlyColumnCollection

from threadcast.core import Affinity, Case, Machine
from threadcast.core.errors import InvalidInput
from threadcast.store import schema
from threadcast.store.case_figures import medians_in, op_figures
from threadcast.store.database import Database
from threadcast.store.pruning import Pruned
from threadcast.store.queries import documents
from threadcast.store.rows import read
from threadcast.store.summaries import add_to_totals

_log = logging.getLogger(__name__)


def possible_rows(rows: Iterable[Any], machines: Mapping[int, Machine]) -> list[Any]:
    """The rows of the measurements table of cases that their machine has; `machines` are by row id.

    Where others are left out, a process warns of it once for each machine.
    """
    cases: dict[tuple[int, int, str], bool] = {}
    kept = []
    for row in rows:
        case = (row.machine_id, row.threads, row.affinity)
        if case not in cases:
            cases[case] = not _why_impossible(machines[row.machine_id], row.threads, row.affinity)
        if cases[case]:
            kept.append(row)
    for machine_id in {case[0] for case, possible in cases.items() if not possible}:
        warn_of_impossible(machines[machine_id].fingerprint)
    return kept


@cache
def warn_of_impossible(machine: str) -> None:
    """Warn that measurements of the machine with this fingerprint are left out, unless this was done before."""
    _log.warning(
        "measurements of cases that %s lacks are left out; `threadcast db check` names them, `threadcast db prune "
        "--impossible` deletes them", machine,
    )  # fmt: skip


def _why_impossible(machine: Machine, threads: int, affinity: str) -> str:
    """Why the machine lacks this case; empty where it does not."""
    try:
        machine.require(Case(threads, Affinity(affinity)))
    except InvalidInput as error:
        return str(error)
    return ""


@dataclass(frozen=True, slots=True)
class ImpossibleCase:
    """Measurements of one op in a case that its machine lacks; `why` says so. Ids are of rows."""

    machine_id: int
    op_id: int
    threads: int
    affinity: str
    key: str
    measurements: int
    why: str

    @property
    def row_key(self) -> tuple[int, int, int, str]:
        """The primary key of its row in `cases`."""
        return self.machine_id, self.op_id, self.threads, self.affinity

    def __str__(self) -> str:
        return (
            f"measurements of {self.key} ({self.measurements}) are left out: {self.why}; delete them with `threadcast "
            "db prune --impossible`"
        )


def impossible_cases(connection: Connection) -> list[ImpossibleCase]:
    """The cases that were measured on a machine that lacks them, by op; ValueError, TypeError or KeyError for a damaged
    row."""
    c, ops = schema.cases.c, schema.ops.c
    query = select(c.machine_id, c.op_id, c.threads, c.affinity, ops.key, c.measurements).join(
        schema.ops, ops.id == c.op_id
    )
    rows = list(connection.execute(query.order_by(c.machine_id, c.op_id, c.threads, c.affinity)))
    machines = read(Machine, documents(connection, schema.machines, {row.machine_id for row in rows}))
    return [
        ImpossibleCase(*row, why=why)
        for row in rows
        if (why := _why_impossible(machines[row.machine_id], row.threads, row.affinity))
    ]


def delete_impossible(database: Database, *, dry_run: bool = False) -> Pruned:
    """Delete the measurements of `impossible_cases`; with `dry_run` only count them.

    It deletes case by case, so that others can write in between, and may be ended at any time. The case that was
    measured last stays until something else is measured: ids of measurements only ever grow.
    """
    with database.read(long=True) as connection:
        found = impossible_cases(connection)
        if dry_run:
            return sum((_counted(connection, case) for case in found if not _is_last(connection, case)), Pruned())
    deleted = Pruned()
    for case in found:
        deleted += database.write(partial(_deleted, case=case))
    return deleted


def _is_last(connection: Connection, case: ImpossibleCase) -> bool:
    """Whether the newest measurement of all is of this case."""
    table = schema.measurements
    names = (table.c.machine_id, table.c.op_id, table.c.threads, table.c.affinity)
    last = connection.execute(select(*names).order_by(table.c.id.desc()).limit(1)).first()
    return last is not None and case.row_key == tuple(last)


def _counted(connection: Connection, case: ImpossibleCase) -> Pruned:
    table = schema.measurements.c
    query = select(func.count(), func.coalesce(func.sum(table.sample_count), 0)).where(_of_case(table, case))
    measurements, samples = connection.execute(query).one()
    return Pruned(int(measurements), int(samples), 1)


def _deleted(connection: Connection, case: ImpossibleCase) -> Pruned:
    """Delete the measurements of a case, and take them out of all figures; nothing where it was measured last."""
    found = _counted(connection, case)
    if not found.measurements or _is_last(connection, case):
        return Pruned()
    for table in (schema.measurements, schema.cases):
        connection.execute(delete(table).where(_of_case(table.c, case)))
    table = schema.summaries
    here = and_(table.c.machine_id == case.machine_id, table.c.op_id == case.op_id)
    summary = connection.execute(select(table).where(here)).one()
    medians = medians_in(summary.medians)
    del medians[case.threads, case.affinity]
    if medians:
        counts = {"measurements": summary.measurements - found.measurements, "samples": summary.samples - found.samples}
        connection.execute(update(table).where(here).values(**counts, **op_figures(medians)))
    else:
        connection.execute(delete(table).where(here))
    add_to_totals(connection, [(case.machine_id, -found.measurements, -found.samples)])
    return found


def _of_case(columns: ReadOnlyColumnCollection[str, Column[Any]], case: ImpossibleCase) -> ColumnElement[bool]:
    of_row = (columns.machine_id, columns.op_id, columns.threads, columns.affinity)
    return and_(*(column == value for column, value in zip(of_row, case.row_key, strict=True)))
