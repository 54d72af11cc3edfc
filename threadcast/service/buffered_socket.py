"""What a thread reads and writes in place of a socket: a whole request, and a whole answer."""

from __future__ import annotations

import socket
import time
from collections import deque
from typing import Any

from gunicorn.http.parser import RequestParser

JOINED_BYTES = 64 << 10
"""Parts of an answer that are longer together are not put together: that would double them."""


class GivenParser(RequestParser):  # type: ignore[misc]
    """Parses what it is given and never reads the socket, where a thread would wait as long as the client likes."""

    def __init__(self, cfg: Any, address: Any) -> None:
        super().__init__(cfg, (), address)

    def finish_body(self, deadline: float | None = None, max_bytes: int | None = None) -> bool:
        """Drop what is left of the body, however long: it is here."""
        return bool(super().finish_body())


class OnePiece:
    """A client's socket that keeps what is written until it is sent as a whole: head and body in one packet."""

    def __init__(self, client: socket.socket) -> None:
        self._client = client
        self._parts: deque[memoryview] = deque()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def sendall(self, data: bytes) -> None:
        """Keep it."""
        self._parts.append(memoryview(data))

    def flush(self, timeout_s: float) -> bool:
        """Send what was kept, for this long at most; whether that was all. OSError where the client is gone."""
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
