"""A request parser and a socket for threads that never wait for a client: both work on bytes in memory."""

from __future__ import annotations

import socket
import time
from collections import deque
from typing import Any

from gunicorn.http.parser import RequestParser

JOINED_BYTES = 64 << 10
"""Answers up to this length are copied into one piece, so that head and body are sent in one packet."""


class BufferedRequestParser(RequestParser):  # type: ignore[misc]
    """gunicorn's parser for bytes that have arrived already; it never reads the socket, on which it might wait.

    The worker gives it the bytes with `unreader.unread`.
    """

    def __init__(self, cfg: Any, address: Any) -> None:
        super().__init__(cfg, (), address)

    def finish_body(self, deadline: float | None = None, max_bytes: int | None = None) -> bool:
        """Drop the rest of the body. All of it is in memory, so gunicorn's limits on time and bytes do not apply."""
        return bool(super().finish_body())


class BufferedSocket:
    """A client's socket whose `sendall` only stores the data; `flush` sends them."""

    def __init__(self, client: socket.socket) -> None:
        self._client = client
        self._parts: deque[memoryview] = deque()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def sendall(self, data: bytes) -> None:
        """Store `data` until `flush`."""
        self._parts.append(memoryview(data))

    def flush(self, timeout_s: float) -> bool:
        """Send the stored data, for `timeout_s` seconds at most; return whether all of them are sent.

        OSError when the client has closed the connection.
        """
        if sum(map(len, self._parts)) <= JOINED_BYTES:
            self._parts = deque([memoryview(b"".join(self._parts))])
        until_s = time.monotonic() + timeout_s
        try:
            while self._parts:
                self._client.settimeout(max(until_s - time.monotonic(), 0.0))
                sent = self._client.send(self._parts[0])
                self._parts[0] = self._parts[0][sent:]
                if not self._parts[0]:
                    self._parts.popleft()
        except (TimeoutError, BlockingIOError):
            return False
        return True
