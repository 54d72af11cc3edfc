"""One HTTP exchange that never keeps its caller past a total deadline."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import TypeVar

import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.util import parse_url

from threadcast.core.errors import DeadlineExceeded, InvalidInput, ServiceError, ServiceUnavailable

T = TypeVar("T")


class BoundedClient:
    """Posts JSON to one service; each exchange ends, for its caller, by its deadline.

    A socket's time-out bounds one read, so a server that sends a byte now and then outlasts any of them. Here a
    thread of its own does the exchange (name lookup, connect, TLS, request, answer, parsing) while the caller waits
    on a clock; when that runs out, the socket is shut down, which ends the thread. One connection an exchange: the
    caller asks seldom and for much. Safe to use from threads and after a fork, since nothing outlives an exchange.
    """

    def __init__(self, url: str, *, ssl_context: ssl.SSLContext | None = None) -> None:
        parsed = parse_url(url)
        if parsed.scheme not in ("http", "https") or not parsed.host:
            raise InvalidInput(f"url={url!r} must be http://host[:port] or https://host[:port]")
        self._secure = parsed.scheme == "https"
        self._host, self._port = parsed.host.strip("[]"), parsed.port
        self._prefix = (parsed.path or "").rstrip("/")
        self._context = ssl_context or (ssl.create_default_context() if self._secure else None)
        self.url = url.rstrip("/")

    def post(
        self, path: str, body: bytes, *, deadline_s: float, max_answer_bytes: int, read: Callable[[bytes], T]
    ) -> T:
        """Post `body` and return `read(answer)`, all within `deadline_s` seconds from now.

        Raises DeadlineExceeded when time is up, ServiceUnavailable when there is no HTTP answer, ServiceError when
        its status is not 200, it is longer than `max_answer_bytes`, or `read` raises one.
        """
        exchange = _Exchange(self._connect, self._prefix + path, body, time.monotonic() + deadline_s, max_answer_bytes)
        answer: Future[T] = Future()
        threading.Thread(
            target=exchange.run, args=(read, answer), name="threadcast-bounded-request", daemon=True
        ).start()
        try:
            if wait([answer], timeout=exchange.remaining_s()).not_done:
                raise DeadlineExceeded(f"{self.url}{path} did not answer within {deadline_s:g} s")
            return answer.result()
        finally:
            exchange.abort()

    def _connect(self, timeout_s: float) -> HTTPConnection:
        if self._secure:
            return HTTPSConnection(self._host, self._port, timeout=timeout_s, ssl_context=self._context)
        return HTTPConnection(self._host, self._port, timeout=timeout_s)


class _Exchange:
    """A request under way, which another thread may abort."""

    def __init__(
        self, connect: Callable[[float], HTTPConnection], path: str, body: bytes, until_s: float, max_bytes: int
    ) -> None:
        self._connect, self._path, self._body, self._until_s, self._max_bytes = connect, path, body, until_s, max_bytes
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._aborted = False

    def remaining_s(self) -> float:
        return max(self._until_s - time.monotonic(), 0.0)

    def run(self, read: Callable[[bytes], T], answer: Future[T]) -> None:
        """Do the exchange and settle `answer`."""
        try:
            answer.set_result(read(self._fetch()))
        except BaseException as error:  # noqa: BLE001 - carried to the caller, who raises it
            answer.set_exception(error)

    def _fetch(self) -> bytes:
        connection = self._connect(max(self.remaining_s(), 1e-3))
        try:
            connection.connect()
            with self._lock:
                self._socket = connection.sock
                if self._aborted:
                    raise DeadlineExceeded("time was up before the connection stood")
            headers = {"Content-Type": "application/json", "Accept": "application/json", "Connection": "close"}
            connection.request("POST", self._path, self._body, headers, preload_content=False)
            with contextlib.closing(connection.getresponse()) as response:
                content = response.read(self._max_bytes + 1, decode_content=False)
        except urllib3.exceptions.NewConnectionError as error:  # a TimeoutError to urllib3
            raise ServiceUnavailable(f"the service cannot be reached: {error}") from error
        except (urllib3.exceptions.TimeoutError, TimeoutError) as error:
            raise DeadlineExceeded(f"the service did not answer in time: {error}") from error
        except (urllib3.exceptions.HTTPError, OSError, ValueError, AttributeError) as error:
            # http.client raises the last two on a socket that is shut down under it
            raise ServiceUnavailable(f"the service broke off: {error!r}") from error
        finally:
            connection.close()
        if response.status != 200:
            raise ServiceError(f"the service answered {response.status}: {content[:200].decode(errors='replace')}")
        if len(content) > self._max_bytes:
            raise ServiceError(f"the answer is longer than the {self._max_bytes} bytes that it can need")
        return content

    def abort(self) -> None:
        """Wake the exchange out of whatever it waits for on its socket."""
        with self._lock:
            self._aborted = True
            if self._socket is not None:
                with contextlib.suppress(OSError):  # already closed
                    self._socket.shutdown(socket.SHUT_RDWR)
