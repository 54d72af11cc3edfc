"""What the main loop does with connections: it waits for none of them and counts each once."""

from __future__ import annotations

import logging
import selectors
import socket
from collections.abc import Iterator
from concurrent.futures import Future
from types import SimpleNamespace

import pytest
from gunicorn.config import Config
from gunicorn.workers.gthread import TConn

from threadcast.service.metrics import Metrics
from threadcast.service.worker import Worker

CONTINUE = b"POST / HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n"


@pytest.fixture
def worker() -> Iterator[Worker]:
    """A worker whose main loop the test runs."""
    made = Worker(0, 0, [], None, 1, Config(), logging.getLogger("test"))
    made.wsgi = SimpleNamespace(extensions={"threadcast": SimpleNamespace(metrics=Metrics())})
    made.poller = selectors.DefaultSelector()
    yield made
    for conn in [*made._arriving, *made._lingering]:
        made._drop(conn)
    made.poller.close()
    made.tmp.close()


@pytest.fixture
def client(worker: Worker) -> Iterator[socket.socket]:
    """The client of `connection(worker)`."""
    here, there = socket.socketpair()
    with there:
        worker.nr_conns = 1
        worker._begin(TConn(worker.cfg, here, "", ""), b"")
        yield there


def connection(worker: Worker) -> TConn:
    return next(iter(worker._arriving))


def ended(kept: bool) -> Future[bool]:
    made: Future[bool] = Future()
    made.set_result(kept)
    return made


def test_a_client_that_does_not_close_after_the_last_answer_is_not_waited_for(
    worker: Worker, client: socket.socket
) -> None:
    conn = connection(worker)
    worker._forget(conn)
    worker.finish_request(conn, ended(kept=False))
    assert client.recv(1) == b""
    assert (worker.nr_conns, list(worker._lingering)) == (1, [conn])
    client.close()
    worker.wait_for_and_dispatch_events(1.0)
    assert (worker.nr_conns, list(worker._lingering)) == (0, [])


def test_a_client_that_is_gone_before_it_is_told_to_go_on_ends_nothing_but_itself(
    worker: Worker, client: socket.socket
) -> None:
    client.sendall(CONTINUE)
    client.close()
    worker.wait_for_and_dispatch_events(1.0)
    worker.wait_for_and_dispatch_events(1.0)
    assert (worker.nr_conns, worker._held_bytes) == (0, 0)


def test_being_told_to_go_on_leaves_no_bytes_counted(worker: Worker, client: socket.socket) -> None:
    client.sendall(CONTINUE)
    worker.wait_for_and_dispatch_events(1.0)
    assert client.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
    worker._drop(connection(worker))
    assert worker._held_bytes == 0


def test_a_connection_that_gave_way_in_the_same_moment_is_counted_once(worker: Worker, client: socket.socket) -> None:
    conn = connection(worker)
    worker._drop(conn)
    worker._on_readable(conn, conn.sock)
    assert worker.nr_conns == 0


def test_what_came_after_a_request_is_answered_by_a_worker_that_ends(worker: Worker, client: socket.socket) -> None:
    conn = connection(worker)
    worker._forget(conn)
    worker._left[conn] = b"GET / HT"
    worker.alive = False
    worker.finish_request(conn, ended(kept=True))
    assert bytes(worker._arriving[conn].buffer) == b"GET / HT"
