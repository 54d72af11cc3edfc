"""A connection between two processes for messages in both directions that never blocks."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

from threadcast.malleable.lines import Lines, line

_READ_BYTES = 1 << 16


class Channel:
    """One end of a connection. It owns the stream socket `connected` and makes it non-blocking."""

    def __init__(self, connected: socket.socket) -> None:
        connected.setblocking(False)
        self._socket, self._lines, self._unsent = connected, Lines(), b""

    def fileno(self) -> int:
        """Return the socket's file descriptor, for a selector."""
        return self._socket.fileno()

    @property
    def has_unsent(self) -> bool:
        """Whether part of the last message is still unsent because the other side has not read."""
        return bool(self._unsent)

    def receive(self) -> Iterator[dict[str, Any]]:
        """Yield the messages that have arrived; none where there is nothing to read.

        OSError once the other side has closed the connection; FormatError at a line that is no JSON object.
        """
        try:
            data = self._socket.recv(_READ_BYTES)
        except BlockingIOError:
            return
        if not data:
            raise ConnectionResetError("the other side has closed the connection")
        yield from self._lines.feed(data)

    def send(self, message: dict[str, Any]) -> None:
        """Send a message, or as much of it as fits into the socket's buffer; `flush` sends the rest.

        OSError where the connection has ended, and where part of an earlier message is still unsent.
        """
        if self._unsent:
            raise BlockingIOError("it does not read what it is sent")
        self._unsent = line(message)
        self.flush()

    def flush(self) -> None:
        """Send as much as fits of the rest of the last message; OSError where the connection has ended."""
        try:
            self._unsent = self._unsent[self._socket.send(self._unsent) :]
        except BlockingIOError:
            return

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()
