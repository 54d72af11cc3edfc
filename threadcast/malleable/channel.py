"""A connection between two processes over which messages go both ways, without anybody waiting."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

from threadcast.malleable.lines import Lines, line

_READ_BYTES = 1 << 16


class Channel:
    """One end of a connection on a stream socket, which is made non-blocking; the channel owns it."""

    def __init__(self, connected: socket.socket) -> None:
        connected.setblocking(False)
        self._socket, self._lines, self._unsent = connected, Lines(), b""

    def fileno(self) -> int:
        """The descriptor, for a selector."""
        return self._socket.fileno()

    @property
    def has_unsent(self) -> bool:
        """Whether a part of the last message still waits for the other side to read."""
        return bool(self._unsent)

    def receive(self) -> Iterator[dict[str, Any]]:
        """The messages that have arrived; none where there is nothing to read.

        OSError once the other side has closed the connection; FormatError at a line that is no message.
        """
        try:
            data = self._socket.recv(_READ_BYTES)
        except BlockingIOError:
            return
        if not data:
            raise ConnectionResetError("the other side has closed the connection")
        yield from self._lines.feed(data)

    def send(self, message: dict[str, Any]) -> None:
        """Send one message, or as much of it as the other side has room for: `flush` sends the rest.

        OSError where the connection has ended, and where the rest of an earlier message still waits.
        """
        if self._unsent:
            raise BlockingIOError("it does not read what it is sent")
        self._unsent = line(message)
        self.flush()

    def flush(self) -> None:
        """Send what is left of the last message, as far as there is room; OSError where the connection has ended."""
        try:
            self._unsent = self._unsent[self._socket.send(self._unsent) :]
        except BlockingIOError:
            return

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()
