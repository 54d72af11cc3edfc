"""gunicorn's threaded worker, which gives a thread to whole requests only.

gunicorn's own gives one to a connection once its first byte is there, and the thread then waits for the rest: as many
clients as there are threads, each a byte now and then, and nobody else is served. Here the main loop collects what
arrives, without waiting, refuses what is too long, too slow or too much, and sends what a client is slow to read.

A client that was just answered mostly asks again at once. While no other request waits for a thread, the thread waits
`NEXT_S` for that and answers it too: two changes of thread fewer, each of which costs more than a kept curve.
"""

from __future__ import annotations

import contextlib
import json
import selectors
import socket
import time
from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from typing import Any

from gunicorn.http import errors
from gunicorn.workers.gthread import TConn, ThreadWorker

from threadcast.service.buffered_socket import GivenParser, OnePiece
from threadcast.service.fair_lock import Turns
from threadcast.service.partial_request import Arrival, Refusal
from threadcast.service.problems import MEDIA_TYPE, document

SEND_S = 30.0
"""Seconds in which a client must have read the rest of its answer, once the main loop sends it."""

SEND_NOW_S = 0.5
"""Seconds for which a thread sends an answer; after that the main loop sends the rest."""

LINGER_S = 2.0
"""Seconds for which bytes after the last answer are read and dropped: closed at once, the client would not see it."""

NEXT_S = 0.002
"""Seconds for which a thread waits for the next request of the client that it has just answered."""

NEXT_BYTES = 64 << 10
"""A next request that is longer arrives by the main loop."""

TURN_S = 0.02
"""Seconds that a request waits for its turn; see `turns`."""

SCAN_S = 0.25
"""Seconds between looks for clients that are too slow."""

READ_BYTES = 256 << 10
HELD_BODIES = 4
"""Bodies of the greatest length that may be arriving at once, in memory; what comes beyond that is refused."""

SMALL_BYTES = 64 << 10
"""Requests up to this long are taken whatever else is arriving."""

FULL = 0.75
"""Share of the connections that may be incomplete requests; beyond it the oldest gives way to a new one."""

_STATUS = {errors.LimitRequestLine: 414, errors.LimitRequestHeaders: 431, errors.ExpectationFailed: 417}


class Worker(ThreadWorker):  # type: ignore[misc]
    """See the module; `receive_s` and `max_body_bytes` are set by `server` before there is a connection."""

    receive_s = 10.0
    max_body_bytes = 32 << 20

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._turns = Turns()
        self._arriving: dict[TConn, Arrival] = {}
        self._lingering: dict[TConn, float] = {}
        self._left: dict[TConn, bytes] = {}
        self._unsent: dict[TConn, OnePiece] = {}
        self._sending: dict[TConn, float] = {}
        self._watched: set[TConn] = set()
        self._held_bytes = 0
        self._scanned_s = 0.0

    def accept(self, listener: socket.socket) -> None:
        """Take a connection and whatever it has brought."""
        try:
            client, address = listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.nr_conns += 1
        self._make_room()
        self._begin(TConn(self.cfg, client, address, listener.getsockname()), b"")

    def on_client_socket_readable(self, conn: TConn, client: socket.socket) -> None:
        """A kept connection brings its next request."""
        try:
            self.keepalived_conns.remove(conn)
        except ValueError:
            return  # it gave way to a connection that came at the same moment
        self.poller.unregister(client)
        self._begin(conn, b"")

    def finish_request(self, conn: TConn, fs: Any) -> None:
        """Keep the connection, and begin at once with what it has sent beyond the request that was answered."""
        if conn in self._unsent:
            self._send_on(conn, fs)
            return
        left = self._left.pop(conn, b"")
        if fs.exception() is not None or fs.result() is not True:
            self._linger(conn)  # gunicorn waits for the client's end here, and all others with it
        elif left:
            conn.sock.setblocking(False)
            self._begin(conn, left)
        else:
            super().finish_request(conn, fs)

    def handle(self, conn: TConn) -> Any:
        """Answer a request, and those that come right after it."""
        kept = self._answer(conn)
        while kept and conn not in self._unsent and self._has_next(conn):
            kept = self._answer(conn)
        return kept

    def _answer(self, conn: TConn) -> bool:
        """Answer one request in turn, and send the answer while the next one has its turn; whether to keep `conn`."""
        client = conn.sock
        conn.sock = answer = OnePiece(client)
        try:
            with self._turns.turn(TURN_S):
                kept = super().handle(conn)
        finally:
            conn.sock = client
        try:
            if not answer.flush(SEND_NOW_S):
                self._unsent[conn] = answer
        except OSError:  # it is gone
            return False
        return bool(kept)

    def handle_error(self, req: Any, client: socket.socket, addr: Any, exc: BaseException) -> None:
        """Answer what is no HTTP as a problem."""
        status = next((status for kind, status in _STATUS.items() if isinstance(exc, kind)), 400)
        if not isinstance(exc, errors.ParseException):
            self.log.exception("Error handling request")
            status = 500
        self._count("", status)
        detail = "the service failed" if status == 500 else f"this is no HTTP request: {exc}"
        self._send(client, Refusal(status, detail))

    def murder_pending(self) -> None:
        """Refuse who is too slow; let go of who was refused."""
        now_s = time.monotonic()
        if now_s - self._scanned_s < SCAN_S:
            return
        self._scanned_s = now_s
        for conn, arrival in list(self._arriving.items()):
            if now_s > arrival.until_s or not (self.alive or arrival.buffer):
                late = Refusal(408, f"the request did not arrive within receive_s={self.receive_s:g} s")
                self._end(conn, late if arrival.buffer else None)
        for conn, until_s in [*self._lingering.items(), *self._sending.items()]:
            if now_s > until_s:
                self._drop(conn)

    def _send_on(self, conn: TConn, fs: Any) -> None:
        """Send the rest as the client reads it; where more do not read than there are threads, one gives way."""
        self._sending[conn] = time.monotonic() + SEND_S
        self._watch(conn, selectors.EVENT_WRITE, partial(self._on_writable, conn, fs))
        if len(self._sending) > self.cfg.threads:
            self._drop(next(iter(self._sending)))

    def _on_writable(self, conn: TConn, fs: Any, client: socket.socket) -> None:
        if conn not in self._sending:
            return
        try:
            whole = self._unsent[conn].flush(0.0)
        except OSError:
            self._drop(conn)
            return
        if whole:
            del self._unsent[conn], self._sending[conn]
            self._unwatch(conn)
            self.finish_request(conn, fs)

    def _begin(self, conn: TConn, data: bytes) -> None:
        arrival = self._arriving[conn] = Arrival(time.monotonic() + self.receive_s, self.max_body_bytes)
        if data:
            self._take_in(conn, arrival, data)
        else:
            self._on_readable(conn, conn.sock)  # mostly it is all there
        if conn in self._arriving:
            self._watch(conn, selectors.EVENT_READ, partial(self._on_readable, conn))

    def _has_next(self, conn: TConn) -> bool:
        """Whether a whole request comes in time, for this thread; what is less is for `finish_request`."""
        if not self.alive or conn in self._left or self.tpool._work_queue.qsize():
            return False
        try:
            conn.sock.settimeout(NEXT_S)
            data = conn.sock.recv(NEXT_BYTES)
        except OSError:  # not in time; or gone, as the main loop will find
            return False
        arrival = Arrival(0.0, self.max_body_bytes)
        if arrival.add(data) is None and arrival.whole_bytes == len(arrival.buffer):
            conn.parser.unreader.unread(bytes(arrival.buffer))
            return True
        if data:
            self._left[conn] = data
        return False

    def _watch(self, conn: TConn, event: int, then: Callable[[socket.socket], None]) -> None:
        self._watched.add(conn)
        self.poller.register(conn.sock, event, then)

    def _unwatch(self, conn: TConn) -> None:
        if conn in self._watched:
            self._watched.remove(conn)
            self.poller.unregister(conn.sock)

    def _on_readable(self, conn: TConn, client: socket.socket) -> None:
        if conn not in self._arriving and conn not in self._lingering:
            return  # it gave way to a connection that came at the same moment
        try:
            data = client.recv(READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        arrival = self._arriving.get(conn)
        if not data:
            self._drop(conn)
        elif arrival is not None:  # else it lingers, and this is dropped
            self._take_in(conn, arrival, data)

    def _take_in(self, conn: TConn, arrival: Arrival, data: bytes) -> None:
        before = len(arrival.buffer)
        refusal = arrival.add(data)
        self._held_bytes += len(arrival.buffer) - before
        many = self._held_bytes > HELD_BODIES * self.max_body_bytes
        if refusal is None and many and len(arrival.buffer) > SMALL_BYTES:
            refusal = Refusal(503, "too much is arriving at once; try again shortly")
        if refusal is not None:
            self._end(conn, refusal)
        elif arrival.whole:
            self._dispatch(conn, arrival)
        elif arrival.expects_continue():
            with contextlib.suppress(OSError):  # it is gone, as its next event will say
                conn.sock.send(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _dispatch(self, conn: TConn, arrival: Arrival) -> None:
        self._forget(conn)
        request, left = arrival.take()
        if left:
            self._left[conn] = left
        if conn.parser is None:
            conn.parser, conn.initialized = GivenParser(self.cfg, conn.client), True
        conn.data_ready = True
        conn.parser.unreader.unread(request)
        self.enqueue_req(conn)

    def _end(self, conn: TConn, refusal: Refusal | None) -> None:
        """Refuse and linger; without a refusal just close."""
        arrival = self._arriving.get(conn)
        if refusal is None or arrival is None:
            self._drop(conn)
            return
        self._count(arrival.method, refusal.status)
        self._send(conn.sock, refusal)
        self._forget(conn)
        self._linger(conn)

    def _linger(self, conn: TConn) -> None:
        """Say that this was all, and wait for the client's end, for `LINGER_S` at most."""
        try:
            conn.sock.setblocking(False)
            conn.sock.shutdown(socket.SHUT_WR)
        except OSError:
            self._drop(conn)
            return
        self._lingering[conn] = time.monotonic() + LINGER_S
        self._watch(conn, selectors.EVENT_READ, partial(self._on_readable, conn))

    def _send(self, client: socket.socket, refusal: Refusal) -> None:
        content = json.dumps(document(refusal.status, refusal.detail)).encode()
        retry = "Retry-After: 1\r\n" if refusal.status == 503 else ""
        head = (
            f"HTTP/1.1 {refusal.status} {HTTPStatus(refusal.status).phrase}\r\nConnection: close\r\n{retry}"
            f"Content-Type: {MEDIA_TYPE}\r\nContent-Length: {len(content)}\r\n\r\n"
        )
        with contextlib.suppress(OSError):
            client.send(head.encode() + content)

    def _drop(self, conn: TConn) -> None:
        self._forget(conn)
        self.nr_conns -= 1
        conn.close()

    def _forget(self, conn: TConn) -> None:
        arrival = self._arriving.pop(conn, None)
        if arrival is not None:
            self._held_bytes -= len(arrival.buffer)
        self._lingering.pop(conn, None)
        self._sending.pop(conn, None)
        self._unsent.pop(conn, None)
        self._left.pop(conn, None)
        self._unwatch(conn)

    def _make_room(self) -> None:
        if len(self._arriving) + len(self._lingering) > FULL * self.worker_connections:
            waiting = self._lingering or self._arriving
            self._drop(next(iter(waiting)))
        if self.nr_conns >= self.worker_connections and self.keepalived_conns:
            idle = self.keepalived_conns.popleft()
            self.poller.unregister(idle.sock)
            self._drop(idle)

    def _count(self, method: str, status: int) -> None:
        self.wsgi.extensions["threadcast"].metrics.count_unmatched(method, status)
