"""One HTTP request and its answer, over a connection of Tornado's HTTP server.

Tornado's event loop frames requests, waits for their bytes, and sends answers. A thread gets a request when all of it
has arrived, and is free again when it has computed the answer: no client can hold a thread. An exchange is always in
one of these states:

    receiving   head or body arrive                           until `receive_s` each, then the connection is closed
    refused     the problem is sent; what arrives is dropped  until the end of the body, or `LINGER_S`
    queued      a thread is to take it                        until `answer_s`, then 503
    answering   a thread computes the answer                  until `answer_s`, then 503 and the answer is dropped
    sending     what the client has not read yet is sent      until `SEND_S`, then the connection is closed
    ended
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Protocol

from tornado.http1connection import HTTP1Connection
from tornado.httputil import HTTPHeaders, HTTPMessageDelegate, RequestStartLine, ResponseStartLine

from threadcast.service.logs import GONE, Access
from threadcast.service.problems import MEDIA_TYPE, document
from threadcast.service.request_marks import ID, KEY, REQUEST_ID, id_of
from threadcast.service.wsgi_call import Answer, Place, call, environ_of

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication

LINGER_S = 2.0
"""Longest time for which the body of a refused request is dropped, in seconds: if a connection is closed while bytes
arrive, the client may lose the answer."""

SEND_S = 30.0
"""Seconds in which a client must have read its answer."""

SMALL_BYTES = 64 << 10
"""Bodies up to this length are taken even where all bodies together are too long."""

TOO_LONG = "the body is longer than max_body_bytes of /v1/info"

_UNBOUNDED = 10**4000
"""More than any Content-Length that Tornado reads: nothing of a refused request is kept, so it needs no bound."""

_log = logging.getLogger(__name__)


class Shared(Protocol):
    """What all exchanges of a process have in common: `HttpServer`."""

    app: WSGIApplication
    threads: Executor
    loop: asyncio.AbstractEventLoop
    address: tuple[str, int]
    refused: Callable[[str, int], None]
    access: Callable[[Access], None] | None
    max_body_bytes: int
    answer_s: float
    bytes_in_memory: int

    @property
    def too_much_in_memory(self) -> bool:
        """Whether long bodies are refused."""

    def begin(self, exchange: Exchange) -> None:
        """Note that a head has arrived."""

    def sends(self, exchange: Exchange) -> None:
        """Note that a client has not read all of an answer."""

    def end(self, exchange: Exchange) -> None:
        """Note that an exchange has ended."""

    def date(self) -> str:
        """The Date header."""


class Exchange(HTTPMessageDelegate):
    """Collects one request within bounds, has a thread answer it, and sends the answer.

    Tornado calls the methods of `HTTPMessageDelegate`. All but `_computed_in_thread` run in the event loop.
    """

    def __init__(self, server: Shared, connection: HTTP1Connection) -> None:
        self.waiting = True
        """Whether not all of the request has arrived."""
        self._server, self._connection = server, connection
        self._body = bytearray()
        self._refused = self._answered = self._ended = False
        self._environ: dict[str, Any] = {}
        self._computing: Future[Answer] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def headers_received(self, start_line: Any, headers: HTTPHeaders) -> None:
        self._line: RequestStartLine = start_line
        self._headers = headers
        self._id, self._started_s = id_of(headers.get(REQUEST_ID, "")), time.perf_counter()
        self._server.begin(self)
        length = headers.get("Content-Length", "")
        if length.isascii() and length.isdigit() and int(length.lstrip("0")[:19] or 0) > self._server.max_body_bytes:
            self._refuse(413, TOO_LONG)

    def data_received(self, chunk: bytes) -> None:
        if self._refused:
            return
        self._body += chunk
        self._server.bytes_in_memory += len(chunk)
        if len(self._body) > self._server.max_body_bytes:
            self._refuse(413, TOO_LONG)
        elif len(self._body) > SMALL_BYTES and self._server.too_much_in_memory:
            self._refuse(503, "too much is arriving at once; try again shortly")

    def finish(self) -> None:
        self.waiting = False
        if self._refused:
            self._connection.finish()
            self.end()
            return
        try:
            self._environ = environ_of(self._line, self._headers, self._body, self._place())
        except ValueError:
            self._respond(self._problem(400, f"the target {self._line.path[:80]!r} is no URL"))
            return
        self._environ[ID] = self._id
        self._timer = self._server.loop.call_later(self._server.answer_s, self._out_of_time)
        self._computing = self._server.threads.submit(call, self._server.app, self._environ)
        self._computing.add_done_callback(self._computed_in_thread)

    def on_connection_close(self) -> None:
        self.end()

    def end(self) -> None:
        """Release everything; called when the answer is sent, or when the client is gone."""
        self._drop_body()
        self._cancel_timer()
        if self._computing is not None:
            self._computing.cancel()
        if not self._ended:
            self._ended = True
            if self._computing is not None and not self._answered:
                self._note(GONE, 0)
            self._computing = None  # it holds the answer, and by its callback this exchange
            self._server.end(self)

    def close(self) -> None:
        """Close the connection."""
        self._connection.stream.close()

    def _place(self) -> Place:
        context: Any = self._connection.context
        return Place(context.remote_ip, *self._server.address, context.protocol)

    def _refuse(self, status: int, detail: str) -> None:
        """Answer before all of the body has arrived, and drop the rest of it."""
        self._refused = True
        self._server.refused(self._line.method, status)
        # The client may wait for the answer before it sends anything, or unpacking the rest may take long.
        closes = "Expect" in self._headers or "X-Consumed-Content-Encoding" in self._headers
        self._write(self._problem(status, detail), closes=closes)
        if closes:
            self._connection.finish()
        else:
            self._connection.set_max_body_size(_UNBOUNDED)
            self._connection.set_body_timeout(LINGER_S)

    def _computed_in_thread(self, computing: Future[Answer]) -> None:
        if not computing.cancelled():
            with contextlib.suppress(RuntimeError):  # the loop has ended, and with it the connection
                self._server.loop.call_soon_threadsafe(self._computed, computing)

    def _computed(self, computing: Future[Answer]) -> None:
        if self._ended or self._answered:
            return  # the client is gone, or was told that the time is up
        error = computing.exception()
        if error is not None:
            what = f"{self._line.method} {self._line.path}"
            _log.error("%s failed", what, exc_info=error, extra={"request_id": self._id})
        self._respond(self._problem(500, "the service failed") if error is not None else computing.result())

    def _out_of_time(self) -> None:
        assert self._computing is not None
        why = "no thread was free for this" if self._computing.cancel() else "this was not done"
        self._server.refused(self._line.method, 503)
        self._respond(self._problem(503, f"{why} within {self._server.answer_s:g} s; ask for less, or later"))

    def _respond(self, answer: Answer) -> None:
        self._answered = True
        self._write(answer)
        if not self._connection.stream.closed():
            self._connection.finish()

    def _write(self, answer: Answer, *, closes: bool = False) -> None:
        self._drop_body()
        self._cancel_timer()
        self._note(answer.status, len(answer.body))
        headers = HTTPHeaders()
        for name, value in answer.headers:
            if name in headers:
                headers.add(name, value)
            else:
                headers[name] = value  # Tornado checks for line breaks when it writes them
        headers["Date"] = self._server.date()
        if closes:
            headers["Connection"] = "close"
        line = ResponseStartLine("HTTP/1.1", answer.status, answer.reason)
        sent = self._connection.write_headers(line, headers, answer.body)
        if not sent.done():
            self._timer = self._server.loop.call_later(SEND_S, self.close)
            self._server.sends(self)
        sent.add_done_callback(self._sent)

    def _sent(self, sent: asyncio.Future[None]) -> None:
        sent.exception()  # the client is gone, which is no fault
        if self._answered:
            self.end()

    def _problem(self, status: int, detail: str) -> Answer:
        content = json.dumps(document(status, detail, self._id)).encode()
        headers = [("Content-Type", MEDIA_TYPE), ("Content-Length", str(len(content))), (REQUEST_ID, self._id)]
        if status == 503:
            headers.append(("Retry-After", "1"))
        return Answer(status, HTTPStatus(status).phrase, headers, content)

    def _note(self, status: int, sent_bytes: int) -> None:
        """Write a line of the access log, if there is one."""
        if self._server.access is not None:
            path = self._line.path.partition("?")[0]
            client = self._environ.get("REMOTE_ADDR") or self._place().client
            took_ms = (time.perf_counter() - self._started_s) * 1e3
            self._server.access(Access(
                client, self._line.method, path, status, sent_bytes, round(took_ms, 3), self._id,
                self._environ.get(KEY, ""),
            ))  # fmt: skip

    def _drop_body(self) -> None:
        self._server.bytes_in_memory -= len(self._body)
        self._body = bytearray()

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
