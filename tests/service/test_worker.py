"""What the main loop does with connections: it waits for none of them and counts each once."""

from __future__ import annotations

import contextlib
import logging
import selectors
import socket
from collections.abc import Iterator
from concurrent.futures import Future
from types import SimpleNamespace

import pytest
from gunicorn.config import Config
from gunicorn.http.errors import ParseException
from gunicorn.workers.gthread import TConn

from threadcast.service.buffered_socket import BufferedRequestParser, BufferedSocket
from threadcast.service.metrics import Metrics
from threadcast.service.worker import BODIES_IN_MEMORY, Worker

CONTINUE = b"POST / HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n"


@pytest.fixture
def worker() -> Iterator[Worker]:
    """A worker whose main loop the test runs."""
    made = Worker(0, 0, [], None, 1, Config(), logging.getLogger("test"))
    made.wsgi = SimpleNamespace(extensions={"threadcast": SimpleNamespace(metrics=Metrics())})
    made.poller = selectors.DefaultSelector()
    yield made
    for conn in [*made._receiving, *made._lingering, *made._sending]:
        made._close(conn)
    made.poller.close()
    made.tmp.close()


@pytest.fixture
def client(worker: Worker) -> Iterator[socket.socket]:
    """The client of `connection(worker)`."""
    here, there = socket.socketpair()
    with there:
        worker.nr_conns = 1
        worker._receive(TConn(worker.cfg, here, "", ""), b"")
        yield there


def connection(worker: Worker) -> TConn:
    return next(iter(worker._receiving))


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
    assert (worker.nr_conns, worker._received_bytes) == (0, 0)


def test_being_told_to_go_on_leaves_no_bytes_counted(worker: Worker, client: socket.socket) -> None:
    client.sendall(CONTINUE)
    worker.wait_for_and_dispatch_events(1.0)
    assert client.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
    worker._close(connection(worker))
    assert worker._received_bytes == 0


def test_a_connection_that_gave_way_in_the_same_moment_is_counted_once(worker: Worker, client: socket.socket) -> None:
    conn = connection(worker)
    worker._close(conn)
    worker._on_readable(conn, conn.sock)
    assert worker.nr_conns == 0


def test_what_came_after_a_request_is_answered_by_a_worker_that_ends(worker: Worker, client: socket.socket) -> None:
    conn = connection(worker)
    worker._forget(conn)
    worker._next_bytes[conn] = b"GET / HT"
    worker.alive = False
    worker.finish_request(conn, ended(kept=True))
    assert bytes(worker._receiving[conn].buffer) == b"GET / HT"


def unsent(worker: Worker, conn: TConn, content: bytes) -> None:
    """Let a thread have answered `content`, more than the client's socket takes at once."""
    worker._forget(conn)
    answer = BufferedSocket(conn.sock)
    answer.sendall(b"head ")
    answer.sendall(content)
    assert not answer.flush(0.0)
    worker._unsent[conn] = answer


def test_what_a_client_is_slow_to_read_arrives_whole_without_a_thread(worker: Worker, client: socket.socket) -> None:
    conn, content = connection(worker), bytes(range(256)) * 20_000
    unsent(worker, conn, content)
    worker.finish_request(conn, ended(kept=False))
    arrived = bytearray()
    client.setblocking(False)
    while len(arrived) < 5 + len(content):
        with contextlib.suppress(BlockingIOError):
            arrived += client.recv(1 << 20)
        worker.wait_for_and_dispatch_events(0.0)
    assert arrived == b"head " + content
    assert (list(worker._lingering), worker._sending, worker._unsent) == ([conn], {}, {})


def test_clients_that_do_not_read_give_way_to_one_another(worker: Worker, client: socket.socket) -> None:
    first = connection(worker)
    unsent(worker, first, b"x" * 5_000_000)
    worker.finish_request(first, ended(kept=True))
    here, there = socket.socketpair()
    with there:
        worker.nr_conns += 1
        worker._receive(TConn(worker.cfg, here, "", ""), b"")
        second = connection(worker)
        unsent(worker, second, b"x" * 5_000_000)
        worker.finish_request(second, ended(kept=True))
        assert (worker.nr_conns, list(worker._sending), list(worker._unsent)) == (1, [second], [second])
        worker._close(second)


def test_a_client_that_goes_while_it_is_sent_to_is_let_go(worker: Worker, client: socket.socket) -> None:
    conn = connection(worker)
    unsent(worker, conn, b"x" * 5_000_000)
    worker.finish_request(conn, ended(kept=True))
    client.close()
    worker.wait_for_and_dispatch_events(1.0)
    assert (worker.nr_conns, worker._sending, worker._unsent) == (0, {}, {})


def test_a_thread_does_not_wait_to_refuse_a_client_that_has_not_read_its_last_answer(
    worker: Worker, client: socket.socket
) -> None:
    server_end = connection(worker).sock
    unread = 0
    with contextlib.suppress(BlockingIOError):
        while True:
            unread += server_end.send(b"x" * 1000)
    answer = BufferedSocket(server_end)
    worker.handle_error(None, answer, ("127.0.0.1", 1), ParseException())
    assert not answer.flush(0.0)
    while unread:
        unread -= len(client.recv(unread))
    assert answer.flush(0.0)
    assert client.recv(12) == b"HTTP/1.1 400"


def test_a_short_request_is_taken_whatever_else_is_arriving(worker: Worker, client: socket.socket) -> None:
    worker._received_bytes = BODIES_IN_MEMORY * worker.max_body_bytes
    client.sendall(b"GET / HT")
    worker.wait_for_and_dispatch_events(1.0)
    assert bytes(worker._receiving[connection(worker)].buffer) == b"GET / HT"


def test_the_next_request_is_read_after_a_long_body_that_nobody_read() -> None:
    parser = BufferedRequestParser(Config(), ("127.0.0.1", 1))
    for _ in range(2):
        parser.unreader.unread(b"POST / HTTP/1.1\r\nContent-Length: 200000\r\n\r\n" + b"x" * 200_000)
        assert next(parser).method == "POST"
        assert parser.finish_body(deadline=0.0)


def test_an_idle_connection_gives_way_to_a_new_one(worker: Worker) -> None:
    with contextlib.ExitStack() as stack:
        clients = []
        for _ in range(2):
            here, there = socket.socketpair()
            clients.append(stack.enter_context(there))
            conn = TConn(worker.cfg, here, "", "")
            conn.parser = BufferedRequestParser(worker.cfg, "")
            worker.finish_request(conn, ended(kept=True))
        worker.nr_conns = worker.worker_connections = 2
        oldest = worker.keepalived_conns[0]
        worker._make_room()
        assert clients[0].recv(1) == b""
        assert (worker.nr_conns, len(worker.keepalived_conns)) == (1, 1)
        worker.on_client_socket_readable(oldest, oldest.sock)  # what the poller had said of it before
        assert (worker.nr_conns, len(worker.keepalived_conns)) == (1, 1)
        worker.murder_keepalived(force=True)
