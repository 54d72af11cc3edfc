"""How long a store waits, and what becomes of it when its database goes and comes back."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import closing

import psycopg
import pytest
from sqlalchemy import make_url

from tests.postgres import fresh_database, server
from tests.waiting import HANGS_S
from threadcast.core import Measurement
from threadcast.core.errors import StoreError
from threadcast.store import Store
from threadcast.store.waits import engine_options

pytestmark = pytest.mark.system

Measure = Callable[..., Measurement]
MEDIUM_S, LONG_S = 2.0, HANGS_S
"""Stores that wait as short as the first do nothing in the tests but wait."""


def test_a_database_that_was_restarted_is_used_again(measure: Measure) -> None:
    with server() as database, Store.open(database.url) as store:
        store.add([measure(1)])
        assert store.last_measurement() == 1
        database.end()
        with pytest.raises(StoreError):
            store.measurements()
        with pytest.raises(StoreError):
            store.add([measure(2)])
        with pytest.raises(StoreError):
            store.last_measurement()
        database.start()
        assert store.last_measurement() == 1
        assert store.add([measure(2)]) == 1
        assert store.measurements() == [measure(1), measure(2)]


def test_a_connection_that_breaks_in_a_transaction_stores_nothing_of_it(postgres: str, measure: Measure) -> None:
    with Store.open(fresh_database(postgres)) as store:

        def work(connection: object) -> None:
            own = connection.exec_driver_sql("SELECT pg_backend_pid()").scalar()  # type: ignore[attr-defined]
            with closing(psycopg.connect(postgres, autocommit=True)) as other:
                other.execute("SELECT pg_terminate_backend(%s)", (own,))
            connection.exec_driver_sql("SELECT 1")  # type: ignore[attr-defined]

        with pytest.raises(StoreError, match=r"terminat|closed|lost"):
            store._database.write(work)
        assert store.add([measure(1)]) == 1
        assert store.counts().measurements == 1


def test_a_writer_of_postgresql_waits_for_a_lock_and_then_says_so(postgres: str, measure: Measure) -> None:
    url = fresh_database(postgres)
    with Store.open(url, wait_s=LONG_S) as holder, Store.open(url, wait_s=MEDIUM_S) as store:
        held, done = threading.Event(), threading.Event()

        def hold(_connection: object) -> None:
            held.set()
            assert done.wait(LONG_S)

        thread = threading.Thread(target=holder._database.write, args=(hold,))
        thread.start()
        try:
            assert held.wait(LONG_S)
            with pytest.raises(StoreError, match=r"timeout.*2 s"):
                store.add([measure(1)])
            with Store.open(url, wait_s=LONG_S) as reader:
                assert reader.measurements() == []  # readers are not held up
        finally:
            done.set()
            thread.join()
        assert holder.add([measure(1)]) == 1


def test_a_statement_that_takes_too_long_is_ended_unless_it_may(postgres: str) -> None:
    url = fresh_database(postgres)
    Store.open(url, wait_s=LONG_S).close()  # makes the tables, which may take long
    with Store.open(url, wait_s=MEDIUM_S) as store:
        with pytest.raises(StoreError, match=r"longer than 2 s"), store._database.read() as connection:
            connection.exec_driver_sql("SELECT pg_sleep(600)")
        with store._database.read(long=True) as connection:
            connection.exec_driver_sql("SELECT pg_sleep(2.5)")
        with store._database.read() as connection:
            assert connection.exec_driver_sql("SHOW statement_timeout").scalar() == "2s"
            assert connection.exec_driver_sql("SHOW idle_in_transaction_session_timeout").scalar() == "4s"


def test_connections_are_tried_before_use_and_noticed_when_the_server_vanished() -> None:
    options = engine_options(make_url("postgresql+psycopg://me@there/x?connect_timeout=3"), 20.0)
    assert options["pool_pre_ping"]
    assert options["connect_args"]["tcp_user_timeout"] == 20_000
    assert "connect_timeout" not in options["connect_args"]
    assert engine_options(make_url("sqlite:///x"), 20.0) == {"connect_args": {"timeout": 20.0}}
