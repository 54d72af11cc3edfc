"""Stores of many samples for `ingest.py`: what a fleet would send, and a quick way to fill a store with it.

Machines measure ops in all 8 cases, 10 samples each (`data/recorded` has 19 on average). Every op on every machine is
measured once through the store; then the database copies these measurements as often as needed, and the counts in
figures grow with them. So tables and indexes have the rows that the store would have written; only times and seconds
are those of the first round.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
from sqlalchemy import create_engine, event, make_url, text

from tests.postgres import server
from threadcast.core import Case, Machine, Measurement, Op, Sample, TensorSpec
from threadcast.store import Store

MACHINES, OPS, CASES, SAMPLES = 10, 2_500, 8, 10
PER_OP = CASES * SAMPLES
"""Samples of one op on one machine in one round of measuring."""
ROUND = MACHINES * OPS * PER_OP
"""Samples of all ops on all machines in one round."""
FLEET = [Machine.uniform(f"node{i}", CASES) for i in range(MACHINES)]
PRODUCTS = [
    Op("mm", (TensorSpec((8, i)), TensorSpec((i, 64))), outputs=(TensorSpec((8, 64)),)) for i in range(1, OPS + 1)
]
DATABASES = ("sqlite", "postgresql")


@contextlib.contextmanager
def database(kind: str, place: Path) -> Iterator[str]:
    """The URL of an empty database with durable commits, deleted at the end."""
    if kind == "postgresql":
        with server(durable=True) as made:
            yield made.url
    else:
        folder = tempfile.mkdtemp(prefix="ingest-", dir=place)
        try:
            yield f"sqlite:///{folder}/store.db"
        finally:
            shutil.rmtree(folder)


def measured(
    pair: int, random: np.random.Generator, *, cases: int = CASES, samples: int = SAMPLES, since_s: int = 0,
    factor: float = 1.0,
) -> list[Measurement]:  # fmt: skip
    """One op on one machine, the `pair`th of all, in its first `cases` cases, measured `since_s` seconds after others.

    Measured again, it takes as long but for noise, or `factor` times as long.
    """
    machine, op = FLEET[pair % MACHINES], PRODUCTS[pair // MACHINES]
    lone_s = factor * float(np.random.default_rng(pair).lognormal(-7, 1.5))
    noise = random.lognormal(0, 0.03, (cases, samples))
    made = datetime(2026, 11, 22, 4, 20, 39, tzinfo=UTC) + timedelta(seconds=since_s)
    conditions = {"cache": "rotated", "torch": "2.13.0+cpu", "converged": True, "time": made.isoformat()}
    return [
        Measurement(op, machine, Case(n), tuple(map(Sample, (lone_s / n * of_case).tolist())), conditions)
        for n, of_case in enumerate(noise, start=1)
    ]


def pairs_at(size: int) -> int:
    """The number of pairs of machine and op in a store of `size` samples."""
    return min(size // PER_OP, MACHINES * OPS)


def fill(url: str, have: int, size: int) -> int:
    """Bring the store at `url` from `have` samples to about `size`, and return how many it has then."""
    random = np.random.default_rng(have)
    with Store.open(url) as store:
        for start in range(have // PER_OP, pairs_at(size), 200):
            some = range(start, min(start + 200, pairs_at(size)))
            store.add([m for pair in some for m in measured(pair, random)])
            have += len(some) * PER_OP
    if have + ROUND <= size:
        _copy(url, copies=(size - have) // ROUND)
        have += (size - have) // ROUND * ROUND
    return have


def _copy(url: str, *, copies: int) -> None:
    """Store the first round so many times more, one transaction each."""
    engine = create_engine(make_url(url).set(drivername="postgresql+psycopg") if "postgresql" in url else url)
    if engine.dialect.name == "sqlite":
        event.listen(engine, "connect", lambda connection, _: connection.execute("PRAGMA cache_size = -1000000"))
    names = "op_id, machine_id, threads, affinity, sample_count, counters, samples, conditions, stored_s"
    with engine.connect() as connection:
        connection.execute(
            text(
                "CREATE TEMPORARY TABLE first_round AS "
                "SELECT min(id) AS id FROM measurements GROUP BY machine_id, op_id, threads, affinity"
            )
        )
        connection.commit()
        copy = f"INSERT INTO measurements ({names}) SELECT {names} FROM measurements JOIN first_round USING (id)"
        for i in range(copies):
            connection.execute(text(copy))
            connection.commit()
            print(f"\r  copied {i + 1} of {copies}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    with engine.begin() as connection:
        for table, factor in (("cases", 1), ("summaries", CASES), ("totals", CASES * OPS)):
            added = f"measurements = measurements + {copies * factor}, samples = samples + {copies * factor * SAMPLES}"
            connection.execute(text(f"UPDATE {table} SET {added}"))
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("VACUUM ANALYZE" if engine.dialect.name == "postgresql" else "ANALYZE"))
    engine.dispose()


def size_on_disk(url: str) -> int:
    """Bytes of the database."""
    if url.startswith("sqlite"):
        return sum(path.stat().st_size for path in Path(url.removeprefix("sqlite:///")).parent.iterdir())
    place = make_url(url).query["host"]
    done = subprocess.run(["du", "-sb", f"{place}/data/base"], capture_output=True, text=True, check=True)
    return int(done.stdout.split()[0])
