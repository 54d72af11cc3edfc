"""The measurement store: samples of ops on machines, graphs with their ops, plans and runs."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from sqlalchemy import Column, Connection, Select, Table, func, select

from threadcast.core import Machine, Measurement, Op, OpGraph, Plan, Trace
from threadcast.core.errors import NotFound, StoreError
from threadcast.store import schema
from threadcast.store.browsing import Browser
from threadcast.store.database import Database
from threadcast.store.holding import op_courses
from threadcast.store.kept_documents import content_of, keep, with_about
from threadcast.store.machine_changes import MachineChanges
from threadcast.store.paging import MeasurementFilter, count_of, page_of
from threadcast.store.pruning import Pruned, prune
from threadcast.store.queries import chunks, documents, ids, of_measurements, of_ops
from threadcast.store.receipts import Receipt, former_receipt
from threadcast.store.recent import recent_rows
from threadcast.store.rows import D, graph_row, json_text, measurement_reader, measurement_row, read
from threadcast.store.unwritable import wrong_values_by_op
from threadcast.store.waits import WAIT_S
from threadcast.store.writing import insert_graph, insert_measurements, insert_run


@dataclass(frozen=True, slots=True)
class Counts:
    """Numbers of stored machines, ops, measurements, samples and graphs."""

    machines: int
    ops: int
    measurements: int
    samples: int
    graphs: int


class Store:
    """Measurements, graphs, plans and runs in a database, for many threads and processes at once.

    When a writing method has returned, its data survive the end of the process, `kill -9` included; if it has not
    returned, they are stored as a whole or not at all. Every method raises StoreError when the database cannot be read
    or written. Use it as a context manager; open a new one after a fork.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    @classmethod
    def open(cls, url: str | Path | None = None, *, create: bool = True, wait_s: float = WAIT_S) -> Self:
        """Open a store, by default the user's own, and bring an older schema up to date.

        `url` is a path to a SQLite file, or the SQLAlchemy URL of one or of a PostgreSQL database. Where there is no
        store one is created, unless `create` is False. Statements wait for other transactions for `wait_s` seconds at
        most; in PostgreSQL none takes longer, but those that read or change the whole store. StoreError, with
        everything unchanged, for a file that is not a store, is damaged, or was written by a newer threadcast.
        """
        return cls(Database(url, create=create, wait_s=wait_s))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the database; closing again does nothing."""
        self._database.close()

    @property
    def name(self) -> str:
        """The store's URL without its password."""
        return self._database.name

    @property
    def revision(self) -> str | None:
        """The schema revision of the database."""
        return self._database.revision()

    def add(self, measurements: Iterable[Measurement], *, idempotency_key: str | None = None) -> int:
        """Store measurements in one transaction and return their number; 0 when `idempotency_key` was used before.

        A counter that only some samples of a measurement have is None in the others when it is read back.
        """
        receipt = Receipt(idempotency_key) if idempotency_key is not None else None
        added = list(measurements)
        return 0 if self.add_once(added, receipt, keep_s=None) else len(added)

    def add_once(
        self, measurements: Iterable[Measurement], receipt: Receipt | None, *, keep_s: float | None
    ) -> Receipt | None:
        """Store measurements and `receipt` in one transaction, with those of other threads, and return None.

        If a receipt with the same key is stored already and has not expired, return that one and store nothing. The
        new one expires after `keep_s` seconds, never where that is None.
        """
        added = list(measurements)
        rows = [measurement_row(m) for m in added]

        def work(connection: Connection) -> Receipt | None:
            now_s = time.time()
            if receipt is not None and (former := former_receipt(connection, receipt, now_s=now_s, keep_s=keep_s)):
                return former
            insert_measurements(connection, added, rows, now_s=now_s)
            return None

        return self._database.write(work)

    def last_measurement(self) -> int:
        """A number that grows whenever any process stores measurements."""
        return self._database.last_measurement()

    def ops_measured_since(self, number: int) -> set[str]:
        """Keys of the ops with measurements that were stored since `last_measurement` returned `number`."""
        newer = select(schema.summaries.c.op_id)  # every op that was ever measured, without reading all measurements
        if number > 0:
            newer = select(schema.measurements.c.op_id).where(schema.measurements.c.id > number)
        with self._database.read() as connection:
            return set(connection.execute(select(schema.ops.c.key).where(schema.ops.c.id.in_(newer))).scalars())

    def add_plan(self, name: str, document: str, *, most: int, about: Mapping[str, Any] | None = None) -> None:
        """Store a plan's JSON text under `name`, a digest of its content, and what a list of plans says `about` it; of
        more than `most` plans, those that were added longest ago are deleted."""
        self._keep(schema.plans, name, with_about(about or {}, document), most)

    def plan(self, name: str) -> str | None:
        """The JSON text of the plan that is stored under this name; None where there is none, or it was deleted."""
        return self._kept(schema.plans, name)  # type: ignore[no-any-return]

    def add_context(self, name: str, content: bytes, *, most: int, about: Mapping[str, Any] | None = None) -> None:
        """Store what decisions are made from under `name`, a digest of it, and what a list says `about` it; of more
        than `most`, those that were added longest ago are deleted."""
        self._keep(schema.contexts, name, with_about(about or {}, content), most)

    def context(self, name: str) -> bytes | None:
        """What `add_context` stored under this name; None where there is nothing, or it was deleted."""
        return self._kept(schema.contexts, name)  # type: ignore[no-any-return]

    def _keep(self, table: Table, name: str, content: str | bytes, most: int) -> None:
        now_s = time.time()
        self._database.write(lambda connection: keep(connection, table, name, content, now_s=now_s, most=most))

    def _kept(self, table: Table, name: str) -> Any:
        with self._database.read() as connection:
            return content_of(connection, table, name)

    def measurements(
        self,
        *,
        machine: str | None = None,
        keys: Collection[str] | None = None,
        kinds: Collection[str] | None = None,
        network: str | None = None,
        last: int | None = None,
    ) -> list[Measurement]:
        """The measurements that meet all given conditions, in the order in which they were added.

        `machine` is a fingerprint, `keys` are op keys, `kinds` op kinds, `network` the name of a stored graph.
        With `last`, not together with `keys`, only so many are returned, those that were added last.
        """
        query = of_measurements(select(schema.measurements), machine, kinds=kinds, network=network)
        query = query if last is None else query.order_by(schema.measurements.c.id.desc()).limit(last)
        with self._database.read(long=keys is None) as connection:
            if keys is None:
                rows = list(connection.execute(query))
            else:
                op_id = schema.measurements.c.op_id
                rows = [
                    row
                    for some in chunks(set(keys))
                    for row in connection.execute(query.where(op_id.in_(ids(schema.ops.c.key, some))))
                ]
            return self._measured(connection, sorted(rows, key=lambda row: int(row.id)))

    def page(
        self, which: MeasurementFilter, *, after: int = 0, limit: int
    ) -> tuple[int, list[Measurement], int | None]:
        """The number of measurements that match; up to `limit` of them after `after`; and the next page's `after`.

        The order is that of `measurements`. The first page's `after` is 0; that after the last page is None.
        """
        with self._database.read() as connection:
            total = count_of(connection, which)
            if total == 0:
                return 0, [], None
            rows, following = page_of(connection, which, total, after=after, limit=limit)
            return total, self._measured(connection, rows), following

    def _measured(self, connection: Connection, rows: Sequence[Any]) -> list[Measurement]:
        ops = documents(connection, schema.ops, {row.op_id for row in rows})
        machines = documents(connection, schema.machines, {row.machine_id for row in rows})
        with self._decoding():
            by_id = read(Machine, machines)
            return list(map(measurement_reader(read(Op, ops), by_id), rows))

    def changes(self, machine: str) -> MachineChanges:
        """What the ops that were measured last on the machine with this fingerprint tell of its changes (`recent`)."""
        with self._database.read() as connection:
            measured = self._measured(connection, recent_rows(connection, machine))
        by_op: dict[str, list[Measurement]] = {}
        for measurement in measured:
            by_op.setdefault(measurement.op.key, []).append(measurement)
        return MachineChanges({key: (of_op[0].op.kind, op_courses(of_op)) for key, of_op in by_op.items()})

    def machines(self) -> list[Machine]:
        """Every machine that measurements or runs were stored of, in the order of first appearance."""
        table = schema.machines
        return list(self._read_all(select(table.c.id, table.c.document), Machine).values())

    def ops(
        self, *, keys: Collection[str] | None = None, kinds: Collection[str] | None = None, network: str | None = None
    ) -> list[Op]:
        """Ops that were measured or belong to a graph and meet all given conditions, in the order of first
        appearance."""
        table = schema.ops
        query = of_ops(select(table.c.id, table.c.document), table.c.id, kinds=kinds, network=network)
        if keys is None:
            return list(self._read_all(query, Op).values())
        found: dict[int, Op] = {}
        for some in chunks(set(keys)):
            found |= self._read_all(query.where(table.c.key.in_(some)), Op)
        return [found[row_id] for row_id in sorted(found)]

    def add_graph(self, name: str, graph: OpGraph) -> None:
        """Store `graph` under `name`, replacing a former graph of this name; measurements stay."""
        row = graph_row(name, graph)
        self._database.write(lambda connection: insert_graph(connection, row, graph.distinct_ops()))

    def graph(self, name: str) -> OpGraph:
        """The graph of this name; NotFound, whose message lists the stored names, if there is none."""
        table = schema.graphs
        found = self._read_all(select(table.c.id, table.c.document).where(table.c.name == name), OpGraph)
        if not found:
            raise NotFound(
                f"no graph is named {name!r} in {self.name}; there are: {', '.join(self.graphs()) or 'none'}"
            )
        return found.popitem()[1]

    def graphs(self) -> list[str]:
        """The names of the stored graphs, sorted."""
        with self._database.read() as connection:
            return sorted(connection.execute(select(schema.graphs.c.name)).scalars())

    def networks_of(self) -> dict[str, set[str]]:
        """The names of the graphs that each op belongs to, by op key; ops that belong to none are left out."""
        query = (
            select(schema.ops.c.key, schema.graphs.c.name)
            .join(schema.graph_ops, schema.graph_ops.c.op_id == schema.ops.c.id)
            .join(schema.graphs, schema.graphs.c.id == schema.graph_ops.c.graph_id)
        )
        networks: dict[str, set[str]] = {}
        with self._database.read() as connection:
            for key, name in connection.execute(query):
                networks.setdefault(key, set()).add(name)
        return networks

    def add_run(self, graph: str, machine: Machine, *, plan: Plan, trace: Trace, time: str | None = None) -> None:
        """Store the plan and the trace of a run of the graph with this name; `time` is ISO 8601, by default now."""
        row = {
            "graph": graph, "time": time or datetime.now(UTC).isoformat(timespec="seconds"),
            "plan": json_text(plan.to_json(), f"the plan of {graph}"),
            "trace": json_text(trace.to_json(), f"the trace of {graph}"),
        }  # fmt: skip
        self._database.write(lambda connection: insert_run(connection, row, machine))

    @property
    def browse(self) -> Browser:
        """Queries for web pages: ops sorted, filtered and page by page, and totals."""
        return Browser(self._database)

    def counts(self) -> Counts:
        """How many machines, ops, measurements, samples and graphs there are."""
        tables = (schema.machines, schema.ops, schema.graphs)
        with self._database.read() as connection:
            n = [connection.execute(select(func.count()).select_from(table)).scalar_one() for table in tables]
            sums = select(func.sum(schema.totals.c.measurements), func.sum(schema.totals.c.samples))
            measured = [int(found or 0) for found in connection.execute(sums).one()]
        return Counts(machines=n[0], ops=n[1], measurements=measured[0], samples=measured[1], graphs=n[2])

    def prune(self, keep_days: float, *, dry_run: bool = False) -> Pruned:
        """Delete what is older than `keep_days` (`pruning`), and return the numbers; with `dry_run` delete nothing.

        Others read and store meanwhile. What services remember of the ops' curves stays until they are measured again.
        """
        return prune(self._database, keep_days, now_s=time.time(), dry_run=dry_run)

    def check(self) -> list[str]:
        """A line of text for each damage that is found in the store, and for what imports of an export would refuse;
        empty when everything can be read back."""
        found = self._database.damage()
        if found:
            return found
        try:
            found += wrong_values_by_op(self.measurements(), now_s=time.time())
            for name in self.graphs():
                self.graph(name)
            found += self._renamed(schema.ops.c.key, [op.key for op in self.ops()])
            found += self._renamed(schema.machines.c.fingerprint, [m.fingerprint for m in self.machines()])
        except StoreError as error:
            found.append(str(error))
        return found

    def _renamed(self, column: Column[Any], now: list[str]) -> Iterator[str]:
        """Stored identities that differ from those that the same objects have now."""
        with self._database.read() as connection:
            stored = connection.execute(select(column).order_by(column.table.c.id)).scalars().all()
        return (f"{column} {was} would now be {is_}" for was, is_ in zip(stored, now) if was != is_)

    def _read_all(self, query: Select[Any], kind: type[D]) -> dict[int, D]:
        with self._database.read() as connection:
            rows = connection.execute(query).all()
        with self._decoding():
            return read(kind, {row.id: row.document for row in sorted(rows, key=lambda row: int(row.id))})

    @contextmanager
    def _decoding(self) -> Iterator[None]:
        try:
            yield
        except (ValueError, TypeError, KeyError) as error:
            raise StoreError(f"{self.name} holds a damaged row: {error!r}; run `threadcast db check`") from error
