"""The bytes of one HTTP/1 request as they arrive: whether it is complete, and whether it must be refused.

This module only decides: it does not read from or write to sockets, and does not read the clock.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

MAX_HEAD_BYTES = 32 << 10
"""Longest request line and headers, together, that are accepted."""

_LENGTH = re.compile(rb"^content-length:[ \t]*([0-9]+)[ \t]*\r$", re.IGNORECASE | re.MULTILINE)
_LENGTH_DIGITS = 19
"""Number of digits of a Content-Length that are read: any longer number is beyond every limit."""

_TRANSFER_ENCODING = re.compile(rb"^transfer-encoding[ \t]*:", re.IGNORECASE | re.MULTILINE)
_EXPECT_CONTINUE = re.compile(rb"^expect:[ \t]*100-continue[ \t]*\r\n", re.IGNORECASE | re.MULTILINE)
_METHOD = re.compile(rb"[A-Z]{1,16}(?= )")


@dataclass(frozen=True, slots=True)
class Refusal:
    """The status and the reason with which a request is refused before all of it has arrived."""

    status: int
    detail: str


@dataclass(slots=True)
class PartialRequest:
    """The bytes of one request so far. `due_s` is the moment, on the caller's clock, when it must be complete."""

    due_s: float
    max_body_bytes: int
    buffer: bytearray = field(default_factory=bytearray)
    """Head and body; the beginning of the next request may follow them."""
    total_bytes: int | None = None
    """Length of head and body; None until the head has arrived."""
    _expects_continue: bool = False

    def add(self, data: bytes) -> Refusal | None:
        """Append bytes; return a refusal as soon as it is clear that the request will not be accepted."""
        searched = max(len(self.buffer) - 3, 0)  # the end of the head may be split between two pieces
        self.buffer += data
        if self.total_bytes is not None:
            return None
        end = self.buffer.find(b"\r\n\r\n", searched)
        if end < 0 and len(self.buffer) <= MAX_HEAD_BYTES:
            return None
        if end < 0 or end > MAX_HEAD_BYTES:
            return Refusal(431, f"the headers are longer than {MAX_HEAD_BYTES} bytes")
        return self._read_head(end + 4)

    @property
    def complete(self) -> bool:
        """Whether all of head and body has arrived."""
        return self.total_bytes is not None and len(self.buffer) >= self.total_bytes

    @property
    def method(self) -> str:
        """The request's method; empty as long as it cannot be read."""
        found = _METHOD.match(self.buffer)
        return found[0].decode() if found else ""

    def split(self) -> tuple[bytes, bytes]:
        """The bytes of the complete request, and those of the next one that have arrived behind it."""
        if self.total_bytes is None:
            raise ValueError("the request is not complete")
        return bytes(self.buffer[: self.total_bytes]), bytes(self.buffer[self.total_bytes :])

    def expects_continue(self) -> bool:
        """Whether to send the client "100 Continue", for which it waits before it sends the body; True only once."""
        expects, self._expects_continue = self._expects_continue, False
        return expects

    def _read_head(self, head_bytes: int) -> Refusal | None:
        head = bytes(self.buffer[:head_bytes])
        if _TRANSFER_ENCODING.search(head):
            return Refusal(411, "send Content-Length; bodies in chunks are not taken")
        lengths = _LENGTH.findall(head)
        digits = lengths[0].lstrip(b"0")[:_LENGTH_DIGITS] if len(lengths) == 1 else b""  # gunicorn refuses two
        body_bytes = int(digits or b"0")
        if body_bytes > self.max_body_bytes:
            return Refusal(413, f"the body is longer than max_body_bytes={self.max_body_bytes} of /v1/info")
        without_expect = _EXPECT_CONTINUE.sub(b"", head)  # answered by the worker; gunicorn's parser must not see it
        self._expects_continue = len(without_expect) < head_bytes
        self.buffer[:head_bytes] = without_expect
        self.total_bytes = len(without_expect) + body_bytes
        return None
