"""The HTTP server of a worker process: Tornado's, with bounds on connections, memory and unread answers."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from dataclasses import dataclass
from email.utils import formatdate
from typing import TYPE_CHECKING, Any, cast

from tornado.iostream import IOStream, StreamClosedError
from tornado.tcpserver import TCPServer

from threadcast.service.http_exchange import Exchange
from threadcast.service.http_framing import Incoming
from threadcast.service.listener import Listener
from threadcast.service.logs import Access
from threadcast.service.wsgi_call import Place

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication

CONNECTIONS = 512
"""Most connections of a worker process, well below the 1,024 files that a process may commonly have open."""

BODIES_IN_MEMORY = 4
"""All bodies in memory together may be as long as so many of the longest; beyond that, long ones are refused."""

LINGER_S = 2.0
"""Time in seconds for which nothing arrives from a client whose request was refused before its connection is closed:
if it is closed while bytes arrive, the client may lose the answer."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """What one request may take."""

    max_body_bytes: int = 32 << 20
    """Also of a body that arrived compressed, unpacked."""
    receive_s: float = 10.0
    """Seconds in which the head must have arrived since the connection was free for it, and the body since then."""
    answer_s: float = 31.0
    """Seconds from the arrival of the request to its answer."""


class HttpServer(TCPServer):
    """Answers requests with a WSGI application in threads; `http_exchange` has the life of a request.

    `refused` is called with method and status of each answer that the application did not give, `access` with every
    answer. Make it in the event loop. When there are more than `CONNECTIONS` connections, the one that has waited
    longest for a request is closed. Where no file can be opened for one, it waits (`listener`).
    """

    def __init__(
        self, app: WSGIApplication, threads: Executor, bounds: Bounds, *, address: tuple[str, int], most_sending: int,
        refused: Callable[[str, int], None], tls: ssl.SSLContext | None = None,
        access: Callable[[Access], None] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(ssl_options=tls)
        self.app, self.threads, self.refused, self.access = app, threads, refused, access
        self.max_body_bytes, self.receive_s, self.answer_s = bounds.max_body_bytes, bounds.receive_s, bounds.answer_s
        self.bytes_in_memory = 0
        """Of the bodies of all requests that are not answered yet."""
        self.stopping = False
        self._address, self._scheme, self._most_sending = address, "https" if tls else "http", most_sending
        self._open: dict[IOStream, Exchange] = {}
        """The current exchange of each connection; first the connections that have waited longest for a request."""
        self._busy: set[Exchange] = set()
        """The exchanges whose head has arrived."""
        self._sending: dict[Exchange, None] = {}
        """The exchanges whose client has not read all of the answer, oldest first."""
        self._idle, self._all_closed = asyncio.Event(), asyncio.Event()

    @property
    def too_much_in_memory(self) -> bool:
        """Whether long bodies are refused."""
        return self.bytes_in_memory > BODIES_IN_MEMORY * self.max_body_bytes

    def add_sockets(self, sockets: Iterable[socket.socket]) -> None:
        super().add_sockets(cast("Iterable[socket.socket]", map(Listener, sockets)))

    async def handle_stream(self, stream: IOStream, address: tuple[Any, ...]) -> None:
        """Answer the requests of one connection, one after the other."""
        incoming, place = Incoming(stream), Place(str(address[0]), *self._address, self._scheme)
        self._all_closed.clear()
        try:
            stays = True
            while stays:
                self._open.pop(stream, None)  # from now on it waits
                exchange = self._open[stream] = Exchange(self, stream, incoming, place)
                if len(self._open) > CONNECTIONS:
                    next(held for held in self._open.values() if held.waiting).close()  # the new one, if no other
                stays = await exchange.run()
            if exchange.lingers:
                await self._linger(stream, incoming)
        except (StreamClosedError, TimeoutError):
            pass  # the client has gone, or was too slow
        finally:
            stream.close()
            del self._open[stream]
            if not self._open:
                self._all_closed.set()

    async def _linger(self, stream: IOStream, incoming: Incoming) -> None:
        """Tell the client that nothing more will come, and drop what it sends until it closes the connection."""
        if self._scheme == "http":  # nothing could be read over TLS any more
            with contextlib.suppress(OSError):  # the client has gone
                stream.socket.shutdown(socket.SHUT_WR)
        async with asyncio.timeout(self.receive_s):
            await incoming.drop(silence_s=LINGER_S)

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
        self.stopping = True
        if self._busy:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._idle.wait(), limit_s)
        for exchange in [*self._open.values()]:
            exchange.close()
        if self._open:
            await self._all_closed.wait()

    def date(self) -> str:
        """The Date header."""
        return formatdate(usegmt=True)
