"""How much of an HTTP/1 request has arrived: whether it is whole, and whether it may become so."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

MAX_HEAD_BYTES = 32 << 10
"""Request line and headers; what is longer is refused."""

_LENGTH = re.compile(rb"^content-length:[ \t]*([0-9]+)[ \t]*\r$", re.IGNORECASE | re.MULTILINE)
_DIGITS = 19
"""Digits of a length that are looked at; a number that has more is too long whatever they are."""

_CODING = re.compile(rb"^transfer-encoding[ \t]*:", re.IGNORECASE | re.MULTILINE)
_EXPECT = re.compile(rb"^expect:[ \t]*100-continue[ \t]*\r\n", re.IGNORECASE | re.MULTILINE)
_METHOD = re.compile(rb"[A-Z]{1,16}(?= )")


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request is not received further."""

    status: int
    detail: str


@dataclass(slots=True)
class Arrival:
    """What has arrived of one request, and when that must be all. Decides; reads and writes nothing."""

    until_s: float
    max_body_bytes: int
    buffer: bytearray = field(default_factory=bytearray)
    whole_bytes: int | None = None
    """Bytes of head and body, once the head is there."""
    awaits_word: bool = False
    """Whether the client waits to be told that it may send the body."""

    def add(self, data: bytes) -> Refusal | None:
        """Take in more bytes; the refusal where there will be no request."""
        searched = max(len(self.buffer) - 3, 0)
        self.buffer += data
        if self.whole_bytes is not None:
            return None
        end = self.buffer.find(b"\r\n\r\n", searched)
        if end < 0 and len(self.buffer) <= MAX_HEAD_BYTES:
            return None
        if end < 0 or end > MAX_HEAD_BYTES:
            return Refusal(431, f"the headers are longer than {MAX_HEAD_BYTES} bytes")
        return self._read_head(end + 4)

    @property
    def whole(self) -> bool:
        """Whether the request is there."""
        return self.whole_bytes is not None and len(self.buffer) >= self.whole_bytes

    @property
    def method(self) -> str:
        """The request's method, as far as can be told."""
        found = _METHOD.match(self.buffer)
        return found[0].decode() if found else ""

    def take(self) -> tuple[bytes, bytes]:
        """The bytes of the request, and those that came after it."""
        assert self.whole_bytes is not None
        return bytes(self.buffer[: self.whole_bytes]), bytes(self.buffer[self.whole_bytes :])

    def expects_continue(self) -> bool:
        """Whether the client waits to be told that it may send the body; once."""
        awaits, self.awaits_word = self.awaits_word, False
        return awaits

    def _read_head(self, head_bytes: int) -> Refusal | None:
        head = bytes(self.buffer[:head_bytes])
        if _CODING.search(head):
            return Refusal(411, "send Content-Length; bodies in chunks are not taken")
        lengths = _LENGTH.findall(head)
        digits = lengths[0].lstrip(b"0")[:_DIGITS] if len(lengths) == 1 else b""  # the parser refuses two
        body_bytes = int(digits or b"0")
        if body_bytes > self.max_body_bytes:
            return Refusal(413, f"the body is longer than max_body_bytes={self.max_body_bytes} of /v1/info")
        plain = _EXPECT.sub(b"", head)  # the answer to it is given here, not by the parser
        self.awaits_word = len(plain) < head_bytes
        self.buffer[:head_bytes] = plain
        self.whole_bytes = len(plain) + body_bytes
        return None
