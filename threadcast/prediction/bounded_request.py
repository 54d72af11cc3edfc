"""HTTP requests that end by a deadline over all their parts: name look-up, connecting, sending, reading."""

from __future__ import annotations

import contextlib
import http.client
import os
import socket
import ssl
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import TypeVar

import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import LocationParseError
from urllib3.util import parse_url

from threadcast.core.errors import DeadlineExceeded, InvalidInput, NotAsked, ServiceError, ServiceUnavailable
from threadcast.core.fork_lock import ForkLock
from threadcast.core.secret import Secret
from threadcast.prediction.http_answer import JSON, Answer, accept, read_answer

T = TypeVar("T")

DEADLINE_HEADER = "X-Deadline-S"
"""Header of a request with the seconds after which the client stops waiting."""

MAX_EXCHANGES = 64
"""Most requests of a client at once. A thread in a name look-up cannot be ended; this bounds the number of threads."""


@dataclass(frozen=True, slots=True)
class Request:
    """A POST of JSON to `path`, or a GET where `body` is None, whose answer has at most `max_answer_bytes`.

    `safe`: the request changes nothing at the service, so that it may be repeated. An answer has the HTTP `status` and
    one of the media types `forms`, the first of which is preferred. `idempotency_key`: what is sent again under the
    same key is done once.
    """

    path: str
    body: bytes | None
    max_answer_bytes: int
    safe: bool
    status: int = 200
    forms: tuple[str, ...] = (JSON,)
    idempotency_key: str | None = None


class BoundedClient:
    """Posts JSON to the service at `url`; each request returns to its caller by its deadline.

    A socket's time-out bounds only one read, so a server that sends a byte now and then never runs into it. Here a
    thread of its own does each exchange (name look-up, connecting, TLS, request, answer, parsing), while the caller
    waits at most until the deadline. Then the socket is shut down, which ends the thread. Each exchange has a
    connection of its own: callers ask seldom, and for much at a time.

    Redirects are not followed, so `key` goes to this service alone. Certificates are checked, by `ssl_context` where
    one is given. InvalidInput for a `url` that is not http(s) or holds a name or password. Safe to use from threads.
    """

    def __init__(self, url: str, *, key: Secret | None = None, ssl_context: ssl.SSLContext | None = None) -> None:
        try:
            parsed = parse_url(url)
        except LocationParseError:
            parsed = parse_url("")
        if parsed.auth is not None or "@" in url:
            raise InvalidInput("url must not hold a name or password, which would be shown; give a key in its place")
        if parsed.scheme not in ("http", "https") or not parsed.host:
            raise InvalidInput(f"url={url!r} must be http://host[:port] or https://host[:port]")
        self._secure = parsed.scheme == "https"
        self._host, self._port = parsed.host.strip("[]"), parsed.port
        self._prefix = (parsed.path or "").rstrip("/")
        self._context = ssl_context or (ssl.create_default_context() if self._secure else None)
        self._key = key
        self._lock = ForkLock()
        self._live: frozenset[_Exchange] = frozenset()
        self._closed = False
        self.url = url.rstrip("/")

    def post(self, request: Request, read: Callable[[Answer], T], *, deadline_s: float) -> T:
        """Make the request and return `read(answer)`, all within `deadline_s` seconds from now.

        Raises DeadlineExceeded when time is up; NotAsked where the request is not made (too many at once, or closed);
        ServiceUnavailable where there is no complete HTTP answer; ServiceRefused where the answer's status is not the
        request's; ServiceError where the answer is too long or damaged, or where `read` raises it.
        """
        exchange = _Exchange(self._connect, self._prefix, request, self._key, time.monotonic() + deadline_s)
        self._admit(exchange)
        answer: Future[T] = Future()
        worker = threading.Thread(
            target=self._run, args=(exchange, read, answer), name="threadcast-bounded-request", daemon=True
        )
        try:
            worker.start()
        except RuntimeError as error:  # no more threads, or the process is ending
            self._dismiss(exchange)
            raise NotAsked(f"the service cannot be asked: {error}") from error
        try:
            if wait([answer], timeout=exchange.remaining_s()).not_done:
                raise DeadlineExceeded(f"{self.url}{request.path} did not answer within {deadline_s:g} s")
            return answer.result()
        finally:
            exchange.abort()
            del answer  # the error's traceback has this frame, and the answer the error

    def close(self) -> None:
        """Abort all current requests, whose callers get ServiceUnavailable, and accept no more."""
        self._closed = True
        for exchange in self._live:
            exchange.abort()

    def _run(self, exchange: _Exchange, read: Callable[[Answer], T], answer: Future[T]) -> None:
        try:
            exchange.run(read, answer)
        finally:
            self._dismiss(exchange)

    def _admit(self, exchange: _Exchange) -> None:
        with self._lock:
            if self._closed:
                raise NotAsked(f"this client of {self.url} is closed")
            if len(self._live) >= MAX_EXCHANGES:
                raise NotAsked(f"{MAX_EXCHANGES} requests to {self.url} are under way; no more are made")
            self._live |= {exchange}

    def _dismiss(self, exchange: _Exchange) -> None:
        with self._lock:
            self._live -= {exchange}

    def _connect(self, timeout_s: float) -> HTTPConnection:
        if self._secure:
            return HTTPSConnection(self._host, self._port, timeout=timeout_s, ssl_context=self._context)
        return HTTPConnection(self._host, self._port, timeout=timeout_s)


class _Exchange:
    """A request in progress, which another thread may abort."""

    def __init__(
        self,
        connect: Callable[[float], HTTPConnection],
        prefix: str,
        request: Request,
        key: Secret | None,
        until_s: float,
    ) -> None:
        self._connect, self._prefix, self._request, self._key = connect, prefix, request, key
        self._until_s = until_s
        self._lock = ForkLock()
        self._socket: socket.socket | None = None
        self._aborted = False

    def remaining_s(self) -> float:
        return max(self._until_s - time.monotonic(), 0.0)

    def run(self, read: Callable[[Answer], T], answer: Future[T]) -> None:
        """Send the request, read the answer, and set the result of `answer`."""
        try:
            answer.set_result(read(self._fetch()))
        except BaseException as error:  # noqa: BLE001 - carried to the caller, who raises it
            answer.set_exception(error)
        finally:
            del answer  # the error's traceback has this frame, and the answer the error

    def _fetch(self) -> Answer:
        request = self._request
        connection = self._connect(max(self.remaining_s(), 1e-3))
        try:
            connection.connect()
            with self._lock:
                self._socket = connection.sock
                if self._aborted:
                    raise DeadlineExceeded("time was up before the connection stood")
            path = self._prefix + request.path
            method = "GET" if request.body is None else "POST"
            connection.request(method, path, request.body, self._headers(), preload_content=False)
            with contextlib.closing(connection.getresponse()) as response:
                return read_answer(
                    response,
                    max_bytes=request.max_answer_bytes,
                    forms=request.forms,
                    secret=self._key,
                    status=request.status,
                )
        except ServiceError:
            raise
        except urllib3.exceptions.NewConnectionError as error:  # a TimeoutError to urllib3
            raise ServiceUnavailable(f"the service cannot be reached: {error}") from error
        except (urllib3.exceptions.TimeoutError, TimeoutError) as error:
            raise DeadlineExceeded(f"the service did not answer in time: {error}") from error
        except (urllib3.exceptions.HTTPError, http.client.HTTPException, OSError, ValueError, AttributeError) as error:
            # http.client raises the last two on a socket that is shut down under it
            raise ServiceUnavailable(f"the service broke off: {error!r}") from error
        finally:
            connection.close()
            with self._lock:
                if self._socket is not None:  # a response that urllib3 refuses keeps it open
                    with contextlib.suppress(OSError):
                        os.close(self._socket.detach())

    def _headers(self) -> dict[str, str]:
        headers = {
            "Content-Type": "application/json", "Accept": accept(self._request.forms), "Accept-Encoding": "identity",
            "Connection": "close", DEADLINE_HEADER: f"{max(self.remaining_s(), 1e-3):.3f}",
        }  # fmt: skip
        if self._request.idempotency_key is not None:
            headers["Idempotency-Key"] = self._request.idempotency_key
        if self._key is not None:
            headers["Authorization"] = f"Bearer {self._key.reveal()}"
        return headers

    def abort(self) -> None:
        """Shut down the socket, so that the thread that waits for it ends."""
        with self._lock:
            self._aborted = True
            if self._socket is not None:
                with contextlib.suppress(OSError):  # already closed
                    self._socket.shutdown(socket.SHUT_RDWR)
