"""gunicorn's threaded worker, except that only complete requests are given to threads.

gunicorn's own worker gives a connection to a thread once its first byte has arrived; the thread then waits for the
rest. So as many clients as there are threads, each sending a byte now and then, block all other clients. Here the main
loop collects the bytes of requests without waiting for any client, refuses requests that are too long, too slow or too
many, and sends the rest of answers that a client is slow to read. A connection is always in one of these states:


    receiving   the main loop collects a request's bytes               until `receive_s`, then 408
    answering   a thread has the complete request
    sending     the main loop sends what the client has not read yet   until `SEND_S`, then closed
    idle        kept for the next request, by gunicorn                 until its `keepalive`, then closed
    lingering   all is sent; what still arrives is dropped             until the client closes, or `LINGER_S`

A client that got its answer often sends the next request at once. While no other request waits for a thread, the thread
waits `NEXT_REQUEST_S` for that request and answers it too. This saves two changes of thread, each of which costs more
than a curve from the cache.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from gunicorn.http import errors
from gunicorn.workers.gthread import TConn, ThreadWorker

from threadcast.service.buffered_socket import BufferedRequestParser, BufferedSocket
from threadcast.service.fair_lock import FairLock
from threadcast.service.partial_request import PartialRequest, Refusal
from threadcast.service.problems import message

SEND_S = 30.0
"""Seconds in which a client must have read the rest of its answer, once the main loop sends it."""

SEND_NOW_S = 0.5
"""Seconds for which a thread sends an answer; after that the main loop sends the rest."""

LINGER_S = 2.0
"""Longest time in `lingering`, in seconds: if a socket is closed at once, the client may lose the end of its answer."""

NEXT_REQUEST_S = 0.002
"""Seconds for which a thread waits for the next request of the client that it has just answered."""

NEXT_REQUEST_BYTES = 64 << 10
"""Most bytes that the thread reads of that next request; the main loop receives longer ones."""

LOCK_WAIT_S = 0.02
"""Most seconds that a request waits for the one before it; see `fair_lock`."""

SCAN_S = 0.25
"""Seconds between two checks for clients that are too slow."""

READ_BYTES = 256 << 10
"""Most bytes that are read from one client before others have their turn."""

BODIES_IN_MEMORY = 4
"""All incomplete requests together may be as long as so many of the longest bodies.

Beyond that requests are refused.
"""

SMALL_BYTES = 64 << 10
"""Requests up to this length are not refused for that reason."""

RECEIVING_SHARE = 0.75
"""Share of the connections that may be receiving or lingering; beyond it the oldest of them is closed for a new one."""

_STATUS = {errors.LimitRequestLine: 414, errors.LimitRequestHeaders: 431, errors.ExpectationFailed: 417}


class Worker(ThreadWorker):  # type: ignore[misc]
    """The worker that the module describes.

    `server` sets `receive_s` and `max_body_bytes` before the first connection.
    """

    receive_s = 10.0
    max_body_bytes = 32 << 20
    clock = staticmethod(time.monotonic)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._app_lock = FairLock()
        self._receiving: dict[TConn, PartialRequest] = {}
        self._lingering: dict[TConn, float] = {}
        """With the time at which they are closed."""
        self._sending: dict[TConn, float] = {}
        """With the time at which they are closed."""
        self._unsent: dict[TConn, BufferedSocket] = {}
        """Answers that a thread could not send completely."""
        self._next_bytes: dict[TConn, bytes] = {}
        """The bytes that clients sent after the request that is being answered."""
        self._watched: set[TConn] = set()
        """Connections that are registered with the poller; gunicorn registers idle ones itself."""
        self._received_bytes = 0
        """Bytes of all incomplete requests together."""
        self._scanned_s = 0.0

    # gunicorn's main loop calls these.

    def accept(self, listener: socket.socket) -> None:
        """Accept a connection and read what it has sent already."""
        try:
            client, address = listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.nr_conns += 1
        self._make_room()
        self._receive(TConn(self.cfg, client, address, listener.getsockname()), b"")

    def on_client_socket_readable(self, conn: TConn, client: socket.socket) -> None:
        """Receive the next request of an idle connection."""
        try:
            self.keepalived_conns.remove(conn)
        except ValueError:
            return  # it was closed for a new connection since the poller reported it
        self.poller.unregister(client)
        self._receive(conn, b"")

    def finish_request(self, conn: TConn, fs: Any) -> None:
        """Go on with a connection whose request a thread has answered.

        The result of `fs` is whether to keep it open.
        """
        if conn in self._unsent:
            self._send_rest(conn, fs)
            return
        next_bytes = self._next_bytes.pop(conn, b"")
        if fs.exception() is not None or fs.result() is not True:
            self._linger(conn)  # gunicorn would wait for the client to close, and every other client with it
        elif next_bytes:
            conn.sock.setblocking(False)
            self._receive(conn, next_bytes)
        else:
            super().finish_request(conn, fs)

    def murder_pending(self) -> None:
        """Refuse requests that arrive too slowly, and close connections whose time is over."""
        now_s = self.clock()
        if now_s - self._scanned_s < SCAN_S:
            return
        self._scanned_s = now_s
        for conn, request in list(self._receiving.items()):
            if request.buffer and now_s > request.due_s:
                self._refuse(conn, Refusal(408, f"the request did not arrive within receive_s={self.receive_s:g} s"))
            elif not request.buffer and (now_s > request.due_s or not self.alive):
                self._close(conn)
        for conn, until_s in [*self._lingering.items(), *self._sending.items()]:
            if now_s > until_s:
                self._close(conn)

    # Threads call these.

    def handle(self, conn: TConn) -> Any:
        """Answer a complete request, and requests that follow at once; return whether to keep the connection."""
        keep = self._answer(conn)
        while keep and conn not in self._unsent and self._next_request_arrives(conn):
            keep = self._answer(conn)
        return keep

    def handle_error(self, req: Any, client: BufferedSocket, addr: Any, exc: BaseException) -> None:
        """Answer bytes that are no HTTP request with a problem document; `_answer` sends it as any other answer."""
        status = next((status for kind, status in _STATUS.items() if isinstance(exc, kind)), 400)
        if not isinstance(exc, errors.ParseException):
            self.log.exception("Error handling request")
            status = 500
        self._count("", status)
        detail = "the service failed" if status == 500 else f"this is no HTTP request: {exc}"
        client.sendall(message(status, detail))

    def _answer(self, conn: TConn) -> bool:
        """Compute one answer under the lock, and send it after that; return whether to keep the connection."""
        client = conn.sock
        conn.sock = answer = BufferedSocket(client)
        try:
            with self._app_lock.held(LOCK_WAIT_S):
                keep = super().handle(conn)
        finally:
            conn.sock = client
        try:
            if not answer.flush(SEND_NOW_S):
                self._unsent[conn] = answer
        except OSError:  # the client has closed the connection
            return False
        return bool(keep)

    def _next_request_arrives(self, conn: TConn) -> bool:
        """Whether exactly one complete request arrives at once; any other bytes are left to `finish_request`."""
        if not self.alive or conn in self._next_bytes or self.tpool._work_queue.qsize():
            return False
        try:
            conn.sock.settimeout(NEXT_REQUEST_S)
            data = conn.sock.recv(NEXT_REQUEST_BYTES)
        except OSError:  # none in time, or the client is gone, which the main loop will find out
            return False
        request = PartialRequest(0.0, self.max_body_bytes)
        if request.add(data) is None and request.total_bytes == len(request.buffer):
            conn.parser.unreader.unread(bytes(request.buffer))
            return True
        if data:
            self._next_bytes[conn] = data
        return False

    # These change a connection's state; only the main loop calls them.

    def _receive(self, conn: TConn, data: bytes) -> None:
        """Begin to receive a request, with `data` that have arrived already, or else with the bytes in the socket."""
        request = self._receiving[conn] = PartialRequest(self.clock() + self.receive_s, self.max_body_bytes)
        if data:
            self._add(conn, request, data)
        else:
            self._on_readable(conn, conn.sock)  # mostly all of it is there
        if conn in self._receiving:
            self._watch(conn, selectors.EVENT_READ, partial(self._on_readable, conn))

    def _on_readable(self, conn: TConn, client: socket.socket) -> None:
        if conn not in self._receiving and conn not in self._lingering:
            return  # it was closed for a new connection since the poller reported it
        try:
            data = client.recv(READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._close(conn)
        elif conn in self._receiving:
            self._add(conn, self._receiving[conn], data)

    def _add(self, conn: TConn, request: PartialRequest, data: bytes) -> None:
        before = len(request.buffer)
        refusal = request.add(data)
        self._received_bytes += len(request.buffer) - before
        too_much = self._received_bytes > BODIES_IN_MEMORY * self.max_body_bytes
        if refusal is None and too_much and len(request.buffer) > SMALL_BYTES:
            refusal = Refusal(503, "too much is arriving at once; try again shortly")
        if refusal is not None:
            self._refuse(conn, refusal)
        elif request.complete:
            self._dispatch(conn, request)
        elif request.expects_continue():
            with contextlib.suppress(OSError):  # the client is gone, as the next event will say
                conn.sock.send(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _dispatch(self, conn: TConn, request: PartialRequest) -> None:
        """Give a complete request to a thread."""
        self._forget(conn)
        complete, next_bytes = request.split()
        if next_bytes:
            self._next_bytes[conn] = next_bytes
        if conn.parser is None:
            conn.parser, conn.initialized = BufferedRequestParser(self.cfg, conn.client), True
        conn.data_ready = True
        conn.parser.unreader.unread(complete)
        self.enqueue_req(conn)

    def _refuse(self, conn: TConn, refusal: Refusal) -> None:
        self._count(self._receiving[conn].method, refusal.status)
        _send_refusal(conn.sock, refusal)
        self._forget(conn)
        self._linger(conn)

    def _send_rest(self, conn: TConn, fs: Any) -> None:
        """Send the rest of an answer as the client reads it.

        If there are more such connections than threads, the oldest is closed.
        """
        self._sending[conn] = self.clock() + SEND_S
        self._watch(conn, selectors.EVENT_WRITE, partial(self._on_writable, conn, fs))
        if len(self._sending) > self.cfg.threads:
            self._close(next(iter(self._sending)))

    def _on_writable(self, conn: TConn, fs: Any, client: socket.socket) -> None:
        if conn not in self._sending:
            return
        try:
            sent = self._unsent[conn].flush(0.0)
        except OSError:
            self._close(conn)
            return
        if sent:
            del self._unsent[conn], self._sending[conn]
            self._unwatch(conn)
            self.finish_request(conn, fs)

    def _linger(self, conn: TConn) -> None:
        """Tell the client that nothing more will be sent, and wait until it closes the connection."""
        try:
            conn.sock.setblocking(False)
            conn.sock.shutdown(socket.SHUT_WR)
        except OSError:
            self._close(conn)
            return
        self._lingering[conn] = self.clock() + LINGER_S
        self._watch(conn, selectors.EVENT_READ, partial(self._on_readable, conn))

    def _close(self, conn: TConn) -> None:
        self._forget(conn)
        self.nr_conns -= 1
        conn.close()

    def _forget(self, conn: TConn) -> None:
        """Remove a connection from the state that it is in."""
        request = self._receiving.pop(conn, None)
        if request is not None:
            self._received_bytes -= len(request.buffer)
        self._lingering.pop(conn, None)
        self._sending.pop(conn, None)
        self._unsent.pop(conn, None)
        self._next_bytes.pop(conn, None)
        self._unwatch(conn)

    def _make_room(self) -> None:
        """Close the oldest waiting connection where there are too many connections for a new one."""
        if len(self._receiving) + len(self._lingering) > RECEIVING_SHARE * self.worker_connections:
            self._close(next(iter(self._lingering or self._receiving)))
        if self.nr_conns >= self.worker_connections and self.keepalived_conns:
            idle = self.keepalived_conns.popleft()
            self.poller.unregister(idle.sock)
            self._close(idle)

    def _watch(self, conn: TConn, event: int, then: Callable[[socket.socket], None]) -> None:
        self._watched.add(conn)
        self.poller.register(conn.sock, event, then)

    def _unwatch(self, conn: TConn) -> None:
        if conn in self._watched:
            self._watched.remove(conn)
            self.poller.unregister(conn.sock)

    def _count(self, method: str, status: int) -> None:
        self.wsgi.extensions["threadcast"].metrics.count_unmatched(method, status)


def _send_refusal(client: socket.socket, refusal: Refusal) -> None:
    """Send the refusal, or the part of it that fits into the socket's buffer, without waiting.

    The connection then ends.
    """
    with contextlib.suppress(OSError):
        client.send(message(refusal.status, refusal.detail))
