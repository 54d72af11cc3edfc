"""Any order of what clients, threads and time do leaves every connection in one state and every answer in its place."""

from __future__ import annotations

import contextlib
import queue
import re
import selectors
import socket
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any
from unittest import mock

from gunicorn.config import Config
from gunicorn.glogging import Logger
from gunicorn.workers.gthread import TConn
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from threadcast.service import worker as worker_module
from threadcast.service.metrics import Metrics
from threadcast.service.partial_request import PartialRequest
from threadcast.service.worker import LINGER_S, SCAN_S, SEND_S, Worker

THREADS = 2
LONG_ANSWER = 1_000_000
"""Bytes, several times what a socket takes without its client reading."""


class Application:
    """Answers `/NUMBER/LENGTH` with the number, filled up with dots to that length."""

    extensions = {"threadcast": SimpleNamespace(metrics=Metrics())}  # noqa: RUF012

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        number, length = environ["PATH_INFO"].split("/")[1:]
        environ["wsgi.input"].read()
        start_response("200 OK", [("Content-Length", length)])
        return [number.encode().ljust(int(length), b".")]


class Client:
    """One end of a connection, and what it has asked and read."""

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(False)
        self.socket = end
        self.outgoing = b""
        self.asking: list[int] = []
        """Numbers of the requests in `outgoing`."""
        self.asked: list[int] = []
        """Numbers of the requests that are sent as a whole."""
        self.received = bytearray()
        self.nonsense = self.ended = False

    def send(self, count: int) -> None:
        """Send so many bytes of `outgoing`; a request counts as asked once its head is sent."""
        try:
            sent = self.socket.send(self.outgoing[:count])
        except BlockingIOError:
            return
        except OSError:
            self.ended = True
            return
        self.outgoing = self.outgoing[sent:]
        left = self.outgoing.count(b"\r\n\r\n")
        while len(self.asking) > left:
            self.asked.append(self.asking.pop(0))

    def read(self) -> None:
        """Read all that is there."""
        with contextlib.suppress(BlockingIOError):
            while not self.ended:
                try:
                    data = self.socket.recv(1 << 20)
                except ConnectionError:
                    data = b""
                self.received += data
                self.ended = not data

    def answers(self) -> list[tuple[int, bytes]]:
        """Status and content of every whole answer that was read."""
        found, rest = [], bytes(self.received)
        while b"\r\n\r\n" in rest:
            head, _, rest = rest.partition(b"\r\n\r\n")
            length = re.search(rb"(?i)content-length: (\d+)", head)
            content = rest[: int(length[1])] if length else b""
            if length and len(content) < int(length[1]):
                break
            rest = rest[len(content) :]
            found.append((int(head.split()[1]), content))
        return found


class WorkerMachine(RuleBasedStateMachine):
    """A worker whose main loop, threads, clock and clients the rules drive; no rule waits."""

    def __init__(self) -> None:
        super().__init__()
        self.stack = contextlib.ExitStack()
        for name in ("SEND_NOW_S", "NEXT_REQUEST_S"):
            self.stack.enter_context(mock.patch.object(worker_module, name, 0.0))
        config = Config()
        config.set("threads", THREADS)
        self.now_s = 1e6
        self.worker = Worker(0, 0, [], None, 1, config, Logger(config))
        self.stack.callback(self.worker.tmp.close)
        self.worker.clock = lambda: self.now_s
        self.worker.wsgi = Application()
        self.worker.poller = self.stack.enter_context(selectors.DefaultSelector())
        self.worker.tpool = SimpleNamespace(_work_queue=queue.Queue())
        self.answering: list[TConn] = []
        self.worker.enqueue_req = self.answering.append
        self.clients: list[Client] = []
        self.number = 0
        self.may_be_closed = False
        """Whether the worker may by now have closed connections of clients that did nothing wrong."""

    @initialize()
    def first(self) -> None:
        self.connect()

    @precondition(lambda self: len(self.clients) < 4)
    @rule()
    def connect(self) -> None:
        here, there = socket.socketpair()
        self.clients.append(Client(there))
        self.worker.nr_conns += 1
        self.worker._make_room()
        self.worker._receive(TConn(self.worker.cfg, here, ("127.0.0.1", 1), ("127.0.0.1", 2)), b"")

    def client(self, index: int) -> Client:
        return self.clients[index % len(self.clients)]

    @rule(index=st.integers(0, 3), length=st.sampled_from([10, LONG_ANSWER]), body=st.booleans(), expect=st.booleans())
    def ask(self, index: int, length: int, body: bool, expect: bool) -> None:
        client = self.client(index)
        if not client.nonsense:
            self.number += 1
            more = "Content-Length: 5\r\n" + ("Expect: 100-continue\r\n" if expect else "") if body else ""
            head = f"{'POST' if body else 'GET'} /{self.number}/{length} HTTP/1.1\r\nHost: a\r\n{more}"
            client.outgoing += head.encode() + (b"\r\n\r\nhello" if body else b"\r\n\r\n")
            client.asking.append(self.number)

    @rule(
        index=st.integers(0, 3),
        nonsense=st.sampled_from([b"\x16\x03\r\n\r\n", b"GET / HTTP/1.1\r\nA: " + b"x" * 33_000]),
    )
    def send_nonsense(self, index: int, nonsense: bytes) -> None:
        client = self.client(index)
        if not client.outgoing:
            client.nonsense = True
            with contextlib.suppress(OSError):
                client.socket.send(nonsense)

    @rule(index=st.integers(0, 3), count=st.sampled_from([1, 30, 1 << 20]))
    def send(self, index: int, count: int) -> None:
        self.client(index).send(count)

    @rule(index=st.integers(0, 3))
    def read(self, index: int) -> None:
        self.client(index).read()

    @rule(index=st.integers(0, 3))
    def close(self, index: int) -> None:
        client = self.client(index)
        client.socket.close()
        self.clients.remove(client)
        if not self.clients:
            self.connect()

    @rule()
    def poll(self) -> None:
        self.worker.wait_for_and_dispatch_events(0.0)

    @precondition(lambda self: self.answering)
    @rule(index=st.integers(0, 3))
    def answer(self, index: int) -> None:
        conn = self.answering.pop(index % len(self.answering))
        kept: Future[Any] = Future()
        kept.set_result(self.worker.handle(conn))
        self.worker.finish_request(conn, kept)

    @rule(passed_s=st.sampled_from([SCAN_S, LINGER_S, Worker.receive_s, SEND_S]))
    def wait(self, passed_s: float) -> None:
        self.now_s += passed_s * 1.01
        self.may_be_closed = True
        self.worker.murder_pending()

    @rule()
    def idle_too_long(self) -> None:
        self.may_be_closed = True
        self.worker.murder_keepalived(force=True)

    @rule()
    def stop(self) -> None:
        self.may_be_closed = True
        self.worker.alive = False

    @invariant()
    def every_connection_is_in_one_state(self) -> None:
        worker = self.worker
        idle = list(worker.keepalived_conns)
        states = [*worker._receiving, *worker._sending, *worker._lingering, *idle, *self.answering]
        assert len(states) == len(set(states)) == worker.nr_conns
        watched = {*worker._receiving, *worker._sending, *worker._lingering}
        assert worker._watched == watched
        assert {key.fd for key in worker.poller.get_map().values()} == {c.sock.fileno() for c in (*watched, *idle)}
        assert set(worker._unsent) == set(worker._sending)
        assert set(worker._next_bytes) <= {*self.answering, *worker._sending}

    @invariant()
    def nothing_is_kept_without_bound(self) -> None:
        worker = self.worker
        requests: list[PartialRequest] = list(worker._receiving.values())
        assert worker._received_bytes == sum(len(request.buffer) for request in requests)
        assert not any(request.complete for request in requests)
        assert len(worker._sending) <= THREADS
        self.may_be_closed |= len(worker._sending) == THREADS  # the next one takes the place of the first

    @invariant()
    def answers_come_in_the_order_of_the_requests(self) -> None:
        for client in self.clients:
            answers = [(status, content) for status, content in client.answers() if status != 100]
            for (status, content), number in zip(answers, client.asked):
                assert status in (200, 408)
                assert status == 408 or content.rstrip(b".") == str(number).encode()
            refused = [status for status, _ in answers if status != 200]
            assert len(refused) <= 1
            assert refused == [status for status, _ in answers[-1:] if status != 200]

    def teardown(self) -> None:
        try:
            for _ in range(300):
                self.poll()
                while self.answering:
                    self.answer(0)
                for client in self.clients:
                    client.send(1 << 20)
                    client.read()
            self.every_connection_is_in_one_state()
            self.answers_come_in_the_order_of_the_requests()
            for client in self.clients:
                if client.ended:
                    assert self.may_be_closed or client.nonsense
                elif not client.nonsense:
                    assert [status for status, _ in client.answers() if status != 100] == [200] * len(client.asked)
        finally:
            for client in self.clients:
                client.socket.close()
            worker = self.worker
            for conn in [*worker._receiving, *worker._sending, *worker._lingering]:
                worker._close(conn)
            worker.murder_keepalived(force=True)
            self.stack.close()


TestWorkerMachine = WorkerMachine.TestCase
TestWorkerMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
