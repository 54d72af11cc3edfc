"""One HTTP request and its answer, over a connection of Tornado's.

Tornado's event loop waits for bytes and sends answers. A thread gets a request when all of it has arrived, and is free
again when it has computed the answer: no client can hold a thread. An exchange is always in one of these states:

    receiving   head or body arrive                           until `receive_s` each, then the connection is closed
    queued      a thread is to take it                        until `answer_s`, then 503
    answering   a thread computes the answer                  until `answer_s`, then 503 and the answer is dropped
    sending     what the client has not read yet is sent      until `SEND_S`, then the connection is closed
    ended       after a request that was refused before all of it was read, what still arrives is dropped
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Protocol

from tornado.httputil import HTTPHeaders, RequestStartLine
from tornado.iostream import IOStream

from threadcast.service.http_framing import (
    Incoming,
    Refused,
    Unpacking,
    codings_of,
    length_of,
    require_host,
    stays_open,
)
from threadcast.service.logs import GONE, Access
from threadcast.service.problems import MEDIA_TYPE, Where, document
from threadcast.service.request_marks import ID, KEY, REQUEST_ID, id_of
from threadcast.service.wsgi_call import Answer, Place, call, environ_of

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication

SEND_S = 30.0
"""Seconds in which a client must have read its answer."""

SMALL_BYTES = 64 << 10
"""Bodies up to this length are taken even where all bodies together are too long."""

TOO_LONG = "the body is longer than max_body_bytes of /v1/info"

_WITHOUT_BODY = (204, 304)
"""Statuses of answers that have neither a body nor its length."""

_log = logging.getLogger(__name__)


class Shared(Protocol):
    """What all exchanges of a process have in common: `HttpServer`."""

    app: WSGIApplication
    threads: Executor
    refused: Callable[[str, int], None]
    access: Callable[[Access], None] | None
    max_body_bytes: int
    receive_s: float
    answer_s: float
    bytes_in_memory: int
    stopping: bool

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


class Exchange:
    """Collects one request within bounds, has a thread answer it, and sends the answer; call `run` once."""

    def __init__(self, server: Shared, stream: IOStream, incoming: Incoming, place: Place) -> None:
        self.waiting = True
        """Whether not all of the request has arrived."""
        self.lingers = False
        """Whether the client may still send what it was refused."""
        self._server, self._stream, self._incoming, self._place = server, stream, incoming, place
        self._body = bytearray()
        self._line, self._headers = RequestStartLine("-", "-", "HTTP/1.1"), HTTPHeaders()
        self._environ: dict[str, Any] = {}
        self._id, self._started_s = "", 0.0

    def close(self) -> None:
        """Close the connection."""
        self._stream.close()

    async def run(self) -> bool:
        """Whether the connection can be used for another request.

        TimeoutError or StreamClosedError where it is to be closed without (all of) an answer.
        """
        try:
            await self._receive()
            answer = await self._answer()
            if answer is None:
                self._note(GONE, 0)
                return False
            stays = not self._server.stopping and stays_open(self._line, self._headers)
            await self._send(answer, closes=not stays)
            return stays
        except Refused as refused:
            await self._refuse(refused)
            return False
        finally:
            self._drop_body()
            self._server.end(self)

    async def _receive(self) -> None:
        async with asyncio.timeout(self._server.receive_s):
            self._begin(*await self._incoming.head())
        require_host(self._line, self._headers)
        length = length_of(self._headers)
        if length is not None and length > self._server.max_body_bytes:
            raise Refused(413, TOO_LONG)
        asks = self._headers.get("Expect", "").lower() == "100-continue" and self._line.version != "HTTP/1.0"
        if asks and not self._incoming.has_more:
            await self._stream.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        codings = codings_of(self._headers)
        unpacking = Unpacking(self._take) if codings == ["gzip"] else None
        async with asyncio.timeout(self._server.receive_s):
            await self._incoming.body(length, unpacking or self._take)
        if unpacking is not None:
            unpacking.finish()
        if codings in ([], ["gzip"]):  # others the application refuses
            self._headers.pop("Content-Encoding", None)
        self.waiting = False

    def _begin(self, line: RequestStartLine, headers: HTTPHeaders) -> None:
        self._line, self._headers = line, headers
        self._id, self._started_s = id_of(headers.get(REQUEST_ID, "")), time.perf_counter()
        self._server.begin(self)

    def _take(self, part: bytes) -> None:
        self._body += part
        self._server.bytes_in_memory += len(part)
        if len(self._body) > self._server.max_body_bytes:
            raise Refused(413, TOO_LONG)
        if len(self._body) > SMALL_BYTES and self._server.too_much_in_memory:
            raise Refused(503, "too much is arriving at once; try again shortly")

    async def _refuse(self, refused: Refused) -> None:
        """Answer before all of the request was read."""
        if not self._id:
            self._begin(self._line._replace(method=refused.method), self._headers)
        self.lingers = True
        what = f"{self._line.method} {self._path} was refused with"
        _log.warning("%s %d: %s", what, refused.status, refused.detail, extra={"request_id": self._id})
        self._server.refused(self._line.method, refused.status)
        problem = self._problem(refused.status, refused.detail, pointer=refused.pointer, where=refused.where)
        await self._send(problem, closes=True)

    async def _answer(self) -> Answer | None:
        """The application's answer, or that of the server in its place; None where the client has gone."""
        try:
            self._environ = environ_of(self._line, self._headers, self._body, self._place)
        except ValueError:
            return self._problem(400, f"the target {self._line.path[:80]!r} is no URL", where="path")
        self._environ[ID] = self._id
        if self._stream.closed():
            return None
        gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._stream.set_close_callback(partial(gone.set_result, None))
        work = self._server.threads.submit(call, self._server.app, self._environ)
        computing = asyncio.wrap_future(work)
        try:
            await asyncio.wait((computing, gone), timeout=self._server.answer_s, return_when=asyncio.FIRST_COMPLETED)
            if gone.done():
                return None
            if not computing.done():
                return self._out_of_time(begun=not work.cancel())
            error = computing.exception()
            if error is None:
                return computing.result()
            what = f"{self._line.method} {self._line.path}"
            _log.error("%s failed", what, exc_info=error, extra={"request_id": self._id})
            return self._problem(500, "the service failed")
        finally:
            self._stream.set_close_callback(None)
            computing.cancel()

    def _out_of_time(self, *, begun: bool) -> Answer:
        why = "this was not done" if begun else "no thread was free for this"
        self._server.refused(self._line.method, 503)
        return self._problem(503, f"{why} within {self._server.answer_s:g} s; ask for less, or later")

    async def _send(self, answer: Answer, *, closes: bool) -> None:
        self._drop_body()
        headers = [*answer.headers, ("Date", self._server.date())]
        body = b"" if self._line.method == "HEAD" or answer.status in _WITHOUT_BODY else answer.body
        if answer.status not in _WITHOUT_BODY and not any(name.lower() == "content-length" for name, _ in headers):
            headers.append(("Content-Length", str(len(answer.body))))
        if closes:
            headers.append(("Connection", "close"))
        elif self._line.version == "HTTP/1.0":
            headers.append(("Connection", "keep-alive"))
        lines = [f"HTTP/1.1 {answer.status} {answer.reason}", *(f"{name}: {value}" for name, value in headers)]
        if any("\r" in line or "\n" in line for line in lines):
            raise ValueError(f"a header of the answer to {self._line.path!r} has a line break")
        self._note(answer.status, len(body))
        sent = self._stream.write("\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body)
        if not sent.done():
            self._server.sends(self)
            async with asyncio.timeout(SEND_S):
                await sent

    def _problem(self, status: int, detail: str, *, pointer: str = "", where: Where = "body") -> Answer:
        content = json.dumps(document(status, detail, self._id, pointer=pointer, where=where)).encode()
        headers = [("Content-Type", MEDIA_TYPE), (REQUEST_ID, self._id)]
        if status == 503:
            headers.append(("Retry-After", "1"))
        return Answer(status, HTTPStatus(status).phrase, headers, content)

    @property
    def _path(self) -> str:
        return self._line.path.partition("?")[0]

    def _note(self, status: int, sent_bytes: int) -> None:
        """Write a line of the access log, if there is one."""
        if self._server.access is not None:
            client = self._environ.get("REMOTE_ADDR") or self._place.client
            took_ms = (time.perf_counter() - self._started_s) * 1e3
            self._server.access(Access(
                client, self._line.method, self._path, status, sent_bytes, round(took_ms, 3), self._id,
                self._environ.get(KEY, ""),
            ))  # fmt: skip

    def _drop_body(self) -> None:
        self._server.bytes_in_memory -= len(self._body)
        self._body = bytearray()
