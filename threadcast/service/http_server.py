"""The HTTP server of a worker process: Tornado's, with bounds on connections, memory and unread answers."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from dataclasses import dataclass
from email.utils import formatdate
from typing import TYPE_CHECKING, Any, cast

from tornado.httpserver import HTTPServer

from threadcast.service.http_exchange import Exchange
from threadcast.service.listener import Listener
from threadcast.service.logs import Access

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication

CONNECTIONS = 512
"""Most connections of a worker process, well below the 1,024 files that a process may commonly have open."""

BODIES_IN_MEMORY = 4
"""All bodies in memory together may be as long as so many of the longest; beyond that, long ones are refused."""

MAX_HEAD_BYTES = 32 << 10
"""Longest request line and headers, together."""

_UNPACKED = 256 << 10
"""Bytes by which Tornado's own limit of a body is higher than ours, which answers with a problem."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """What one request may take."""

    max_body_bytes: int = 32 << 20
    """Also of a body that arrived compressed, unpacked."""
    receive_s: float = 10.0
    """Seconds in which the head must have arrived since the connection was free for it, and the body since then."""
    answer_s: float = 31.0
    """Seconds from the arrival of the request to its answer."""


class HttpServer(HTTPServer):
    """Answers requests with a WSGI application in threads; `http_exchange` has the life of a request.

    `refused` is called with method and status of each answer that the application did not give, `access` with every
    answer. Make it in the event loop. When there are more than `CONNECTIONS` connections, the one that has waited
    longest for a request is closed. Where no file can be opened for one, it waits (`listener`).
    """

    def initialize(  # type: ignore[override]  # of Tornado's Configurable, which calls it in place of __init__
        self, app: WSGIApplication, threads: Executor, bounds: Bounds, *, address: tuple[str, int], most_sending: int,
        refused: Callable[[str, int], None], tls: ssl.SSLContext | None = None,
        access: Callable[[Access], None] | None = None,
    ) -> None:  # fmt: skip
        super().initialize(
            self, ssl_options=tls, decompress_request=True, max_header_size=MAX_HEAD_BYTES,
            idle_connection_timeout=bounds.receive_s, body_timeout=bounds.receive_s,
            max_body_size=bounds.max_body_bytes + _UNPACKED,
        )  # fmt: skip
        self.loop = asyncio.get_running_loop()
        self.app, self.threads, self.address, self.refused = app, threads, address, refused
        self.access = access
        self.max_body_bytes, self.answer_s = bounds.max_body_bytes, bounds.answer_s
        self.bytes_in_memory = 0
        """Of the bodies of all requests that are not answered yet."""
        self._most_sending = most_sending
        self._open: dict[object, Exchange] = {}
        """The current exchange of each connection; first the connections that have waited longest for a request."""
        self._busy: set[Exchange] = set()
        """The exchanges whose head has arrived."""
        self._sending: dict[Exchange, None] = {}
        """The exchanges whose client has not read all of the answer, oldest first."""
        self._idle = asyncio.Event()
        self._dated = (0, "")

    @property
    def too_much_in_memory(self) -> bool:
        """Whether long bodies are refused."""
        return self.bytes_in_memory > BODIES_IN_MEMORY * self.max_body_bytes

    def add_sockets(self, sockets: Iterable[socket.socket]) -> None:
        super().add_sockets(cast("Iterable[socket.socket]", map(Listener, sockets)))

    def start_request(self, server_conn: object, request_conn: Any) -> Exchange:
        self._end(server_conn)
        exchange = self._open[server_conn] = Exchange(self, request_conn)
        if len(self._open) > CONNECTIONS:
            next(held for held in self._open.values() if held.waiting).close()  # the new one, if no other
        return exchange

    def on_close(self, server_conn: object) -> None:
        self._end(server_conn)
        super().on_close(server_conn)

    def _end(self, server_conn: object) -> None:
        """End the exchange of a connection, if it has one; the client may have gone before it was over."""
        exchange = self._open.pop(server_conn, None)
        if exchange is not None:
            exchange.end()

    def begin(self, exchange: Exchange) -> None:
        """Note that a head has arrived."""
        self._busy.add(exchange)
        self._idle.clear()

    def sends(self, exchange: Exchange) -> None:
        """Note that a client has not read all of an answer; the oldest such connection gives way if there are many."""
        self._sending[exchange] = None
        if len(self._sending) > self._most_sending:
            oldest = next(iter(self._sending))
            del self._sending[oldest]
            oldest.close()

    def end(self, exchange: Exchange) -> None:
        """Note that an exchange has ended."""
        self._sending.pop(exchange, None)
        self._busy.discard(exchange)
        if not self._busy:
            self._idle.set()

    async def drain(self, limit_s: float) -> None:
        """Accept no more connections, finish the requests whose head has arrived, and close all connections.

        Requests that take longer than `limit_s` seconds are cut off.
        """
        self.stop()
        self.conn_params.no_keep_alive = True
        if self._busy:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._idle.wait(), limit_s)
        await self.close_all_connections()

    def date(self) -> str:
        """The Date header."""
        now = int(time.time())
        if self._dated[0] != now:
            self._dated = (now, formatdate(now, usegmt=True))
        return self._dated[1]
