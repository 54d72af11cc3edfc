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
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from threadcast.service import worker as worker_module
from threadcast.service.metrics import Metrics
from threadcast.service.partial_request import PartialRequest
from threadcast.service.worker import LINGER_S, SCAN_S, SEND_S, Worker

THREADS = 2
SEND_BUFFER_BYTES = 64 << 10
"""Size of the send buffer of the worker's sockets, set here because each machine has its own default."""

LONG_ANSWER = 400_000
"""Bytes, several times what a socket takes without its client reading."""

ROUNDS_TO_REST = 2_000
"""Turns of main loop, threads and clients after which nothing may be left to do; 40 long answers take 250."""


class Application:
    """Answers `/NUMBER/LENGTH` with the number, filled up with dots to that length."""

    extensions = {"threadcast": SimpleNamespace(metrics=Metrics())}  # noqa: RUF012

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        number, length = environ["PATH_INFO"].split("/")[1:]
        environ["wsgi.input"].read()
        start_response("200 OK", [("Content-Length", length)])
        return [number.encode().ljust(int(length), b".")]


class WatchedSocket(socket.socket):
    """The worker's end of a connection. The test fails where a call could wait for the client."""

    def send(self, *args: Any) -> int:
        assert self.gettimeout() == 0.0
        return super().send(*args)

    def recv(self, *args: Any) -> bytes:
        assert self.gettimeout() == 0.0
        return super().recv(*args)


class Client:
    """One end of a connection, the requests that it has sent and the answers that it has read."""

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(False)
        self.socket = end
        self.outgoing = b""
        self.sent_bytes = 0
        self.asking: list[tuple[int, int]] = []
        """Of each request that is not sent as a whole: its number, and `sent_bytes` once it is."""
        self.asked: list[int] = []
        """Numbers of the requests that are sent as a whole."""
        self.answers: list[tuple[int, bytes]] = []
        """Status and content of the answers that are read as a whole, without "100 Continue"."""
        self.received = bytearray()
        """Bytes of the next answer."""
        self.nonsense = self.ended = False
        self.may_be_closed = False
        """Whether the worker may by now have closed the connection, or will after the next answer."""

    def ask(self, number: int, request: bytes) -> None:
        """Add a request to `outgoing`."""
        self.outgoing += request
        self.asking.append((number, self.sent_bytes + len(self.outgoing)))

    def send(self, count: int) -> None:
        """Send so many bytes of `outgoing`, or fewer when the socket takes no more."""
        try:
            sent = self.socket.send(self.outgoing[:count])
        except BlockingIOError:
            return
        except OSError:
            self.ended = True
            return
        self.outgoing = self.outgoing[sent:]
        self.sent_bytes += sent
        while self.asking and self.asking[0][1] <= self.sent_bytes:
            self.asked.append(self.asking.pop(0)[0])

    def read(self) -> None:
        """Read everything that has arrived."""
        with contextlib.suppress(BlockingIOError):
            while not self.ended:
                try:
                    data = self.socket.recv(1 << 20)
                except ConnectionError:
                    data = b""
                self.received += data
                self.ended = not data
        while (head_bytes := self.received.find(b"\r\n\r\n") + 4) > 3:
            status = int(self.received.split(maxsplit=2)[1])
            length = re.search(rb"(?i)content-length: (\d+)", self.received[:head_bytes])
            end = head_bytes + (int(length[1]) if length else 0)
            if len(self.received) < end:
                break
            if status != 100:
                self.answers.append((status, bytes(self.received[head_bytes:end])))
            del self.received[:end]


class WorkerMachine(RuleBasedStateMachine):
    """A worker whose main loop, threads, clock and clients the rules drive.

    Everything runs in the test's thread and no rule waits: the clock is a number, a rule does what a thread would, and
    what is sent through a pair of sockets has arrived when the call returns. So load on the machine changes nothing.
    """

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
        self.client_of: dict[TConn, Client] = {}
        self.number = 0

    @initialize(count=st.integers(1, 4))
    def first(self, count: int) -> None:
        for _ in range(count):
            self.connect()

    @precondition(lambda self: len(self.clients) < 4)
    @rule()
    def connect(self) -> None:
        end, there = socket.socketpair()
        here = WatchedSocket(fileno=end.detach())
        here.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        conn = TConn(self.worker.cfg, here, ("127.0.0.1", 1), ("127.0.0.1", 2))
        client = self.client_of[conn] = Client(there)
        client.may_be_closed = not self.worker.alive
        self.clients.append(client)
        self.worker.nr_conns += 1
        self.worker._make_room()
        self.worker._receive(conn, b"")

    def client(self, index: int) -> Client:
        return self.clients[index % len(self.clients)]

    @rule(
        index=st.integers(0, 3),
        length=st.sampled_from([10, LONG_ANSWER]),
        body=st.booleans(),
        expect=st.booleans(),
        count=st.sampled_from([1 << 20, 30, 0]),
        at_once=st.booleans(),
    )
    def ask(self, index: int, length: int, body: bool, expect: bool, count: int, at_once: bool) -> None:
        """Ask, send `count` bytes, let the main loop read them and, if `at_once`, the threads answer."""
        client = self.client(index)
        if not client.nonsense:
            self.number += 1
            more = "Content-Length: 5\r\n" + ("Expect: 100-continue\r\n" if expect else "") if body else ""
            head = f"{'POST' if body else 'GET'} /{self.number}/{length} HTTP/1.1\r\nHost: a\r\n{more}\r\n"
            client.ask(self.number, head.encode() + (b"hello" if body else b""))
            client.send(count)
            self.poll()
            while at_once and self.answering:
                self.answer(0)

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
        finished: Future[Any] = Future()
        finished.set_result(self.worker.handle(conn))
        sending = list(self.worker._sending)
        self.worker.finish_request(conn, finished)
        if len(sending) == THREADS and conn in self.worker._sending:
            self.client_of[sending[0]].may_be_closed = True

    @rule(passed_s=st.sampled_from([SCAN_S, LINGER_S, Worker.receive_s, SEND_S]))
    def wait(self, passed_s: float) -> None:
        self.now_s += passed_s * 1.01
        worker = self.worker
        due_s = {**worker._sending, **{conn: request.due_s for conn, request in worker._receiving.items()}}
        for conn, until_s in due_s.items():
            self.client_of[conn].may_be_closed |= until_s < self.now_s
        worker.murder_pending()
        assert all(until_s >= self.now_s for until_s in [*worker._lingering.values(), *worker._sending.values()])
        assert all(request.due_s >= self.now_s for request in worker._receiving.values())

    @precondition(lambda self: self.worker.keepalived_conns)
    @rule()
    def idle_too_long(self) -> None:
        for conn in self.worker.keepalived_conns:
            self.client_of[conn].may_be_closed = True
        self.worker.murder_keepalived(force=True)

    @precondition(lambda self: self.worker.alive)
    @rule()
    def stop(self) -> None:
        self.worker.alive = False
        for client in self.clients:
            client.may_be_closed = True

    @rule()
    def every_request_is_answered(self) -> None:
        self.run_until_nothing_is_left_to_do()
        self.answers_come_in_the_order_of_the_requests()
        for client in self.clients:
            if not client.may_be_closed and not client.nonsense:
                assert not client.ended
                assert [status for status, _ in client.answers] == [200] * len(client.asked)

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

    @invariant()
    def answers_come_in_the_order_of_the_requests(self) -> None:
        for client in self.clients:
            for (status, content), number in zip(client.answers, client.asked):
                assert status in (200, 408)
                assert status == 408 or content.rstrip(b".") == str(number).encode()
            statuses = [status for status, _ in client.answers]
            assert statuses.count(200) <= len(client.asked)
            assert all(status == 200 for status in statuses[:-1])  # nothing follows a refusal

    def run_until_nothing_is_left_to_do(self) -> None:
        for _ in range(ROUNDS_TO_REST):
            for client in self.clients:
                client.send(1 << 20)
                client.read()
            if not self.answering and not self.worker.poller.select(0.0):
                return
            self.poll()
            while self.answering:
                self.answer(0)
        raise AssertionError("the worker never comes to rest")

    def teardown(self) -> None:
        worker = self.worker
        try:
            self.every_request_is_answered()
            self.every_connection_is_in_one_state()
            while self.clients:
                self.clients.pop().socket.close()
            self.run_until_nothing_is_left_to_do()
            assert worker.nr_conns == 0
        finally:
            for client in self.clients:
                client.socket.close()
            for conn in self.client_of:
                conn.close()
            self.stack.close()


TestWorkerMachine = WorkerMachine.TestCase
TestWorkerMachine.settings = settings(
    max_examples=200,
    stateful_step_count=40,
    deadline=None,
    report_multiple_bugs=False,
    phases=(Phase.explicit, Phase.reuse, Phase.generate),  # a failure ends the test; Phase.shrink takes minutes
)
