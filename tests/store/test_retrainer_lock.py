"""At most one process retrains from a store."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from tests.postgres import fresh_database
from tests.waiting import eventually
from threadcast.core.errors import StoreError
from threadcast.store import Store
from threadcast.store.retrainer_lock import RetrainerLock

HOLDER = """
import sys
from threadcast.store.retrainer_lock import RetrainerLock
print(RetrainerLock(sys.argv[1]).take(), flush=True)
sys.stdin.read()
"""


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    at = (
        str(tmp_path / "store.db") if request.param == "sqlite" else fresh_database(request.getfixturevalue("postgres"))
    )
    Store.open(at).close()
    return at


def test_one_at_a_time_holds_it(url: str) -> None:
    with RetrainerLock(url) as first, RetrainerLock(url) as second:
        assert (first.take(), first.take(), second.take()) == (True, True, False)
        first.release()
        assert (second.take(), first.take()) == (True, False)


def test_the_end_of_its_process_releases_it_even_by_a_kill(url: str) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
    )
    with holder, RetrainerLock(url) as lock:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"True\n"
        assert not lock.take()
        holder.kill()
        assert eventually(lock.take)


def test_stores_in_one_database_have_locks_of_their_own(postgres: str) -> None:
    urls = [fresh_database(postgres) for _ in range(2)]
    with RetrainerLock(urls[0]) as first, RetrainerLock(urls[1]) as second:
        assert (first.take(), second.take()) == (True, True)


def test_a_lost_connection_is_noticed_and_the_lock_is_taken_anew(postgres: str) -> None:
    url = fresh_database(postgres)
    with RetrainerLock(url) as lock:
        assert lock.take()
        with psycopg.connect(postgres, autocommit=True) as connection:
            query = "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 2"
            assert connection.execute(query).fetchall() == [(True,)]
        with pytest.raises(StoreError, match="lock for retraining"):
            eventually(lambda: not lock.take())
        assert lock.take()


def test_a_database_that_cannot_be_locked_is_refused() -> None:
    with pytest.raises(StoreError, match="mysql cannot be locked"):
        RetrainerLock("mysql://host/store")
