"""Reads requests of HTTP/1 from a connection within limits (RFC 9112): heads, and bodies by length or in chunks."""

from __future__ import annotations

import asyncio
import re
import zlib
from collections.abc import Callable

from tornado.httputil import HTTPHeaders, HTTPInputError, RequestStartLine, parse_request_start_line
from tornado.iostream import IOStream
from tornado.util import GzipDecompressor

from threadcast.service.problems import Where

MAX_HEAD_BYTES = 32 << 10
"""Longest request line and headers, together; also longest trailers of a body in chunks."""

PIECE_BYTES = 64 << 10
"""Most bytes that are read, or unpacked, at once."""

CHUNKS_AT_ONCE = 1024
"""Chunks that are read before other connections get their turn."""

_HEAD_END = re.compile(rb"\r?\n\r?\n")
_METHOD = re.compile(rb"([A-Z]{1,20}) ")
_DIGITS = re.compile("[0-9]+")
_HOST = re.compile(r"[A-Za-z0-9._~%!$&'()*+;=:\[\]-]+")
"""Characters of a host and a port (RFC 3986, 3.2), without the comma that joins several headers."""
_ABSOLUTE = re.compile("[A-Za-z][A-Za-z0-9+.-]*://([^/?#]*)")
"""The beginning of a target in absolute form, with the host that it names."""
_TOKEN = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_QUOTED = rb'"(?:[\t \x21\x23-\x5b\x5d-\x7e\x80-\xff]|\\[\t \x21-\x7e\x80-\xff])*"'
_CHUNK = re.compile(
    rb"(0*[0-9A-Fa-f]{1,15})((?:[ \t]*;[ \t]*%b(?:[ \t]*=[ \t]*(?:%b|%b))?)*)" % (_TOKEN, _TOKEN, _QUOTED)
)

Take = Callable[[bytes], None]
"""Gets the bytes of a body as they arrive; may raise `Refused`."""


class Refused(Exception):
    """A request is refused with this status before all of it was read; the connection can serve no further one.

    `pointer` points into `where`, as in every problem. `method` is that of a head that could not be read.
    """

    def __init__(
        self, status: int, detail: str, *, pointer: str = "", where: Where = "body", method: str = "-"
    ) -> None:
        super().__init__(detail)
        self.status, self.detail, self.method = status, detail[:300], method
        self.pointer, self.where = pointer, where


class Incoming:
    """What arrives over a connection: one request after the other, each its head and then its body.

    StreamClosedError where the connection ends. Anything that two servers could read differently is refused.
    """

    def __init__(self, stream: IOStream) -> None:
        self._stream, self._held = stream, bytearray()

    @property
    def has_more(self) -> bool:
        """Whether bytes have arrived that were not asked for yet."""
        return bool(self._held)

    async def head(self) -> tuple[RequestStartLine, HTTPHeaders]:
        """The request line and the headers; empty lines before them are passed over."""
        held, searched = self._held, 0
        while True:
            if not searched and held.startswith((b"\r", b"\n")):
                del held[: len(held) - len(held.lstrip(b"\r\n"))]
            end = _HEAD_END.search(held, max(searched - 3, 0))
            if (end.end() if end else len(held)) > MAX_HEAD_BYTES:
                raise _too_long(held)
            if end:
                break
            searched = len(held)
            held += await self._arrived()
        line, _, fields = held[: end.end()].decode("latin-1").partition("\n")
        del held[: end.end()]
        try:
            return parse_request_start_line(line.removesuffix("\r")), HTTPHeaders.parse(fields)
        except HTTPInputError as error:
            raise Refused(
                400, f"this is no request of HTTP/1: {error}", where="header", method=_method(line.encode())
            ) from None

    async def body(self, length: int | None, take: Take) -> None:
        """Give the bytes of the body to `take`: so many, or with None those of chunks, without extensions and
        trailers."""
        if length is not None:
            await self._pass(length, take)
            return
        spare, chunks = MAX_HEAD_BYTES, 0
        while True:
            found = _CHUNK.fullmatch(await self._line(MAX_HEAD_BYTES))
            if found is None:
                raise Refused(400, "the size of a chunk must be hexadecimal digits, followed by its extensions, if any")
            size = int(found[1], 16)
            spare += size - len(found[2])
            if spare < 0:
                raise Refused(400, f"the extensions of chunks are {MAX_HEAD_BYTES} bytes longer than their contents")
            if not size:
                break
            await self._pass(size, take)
            if await self._line(MAX_HEAD_BYTES):
                raise Refused(400, "a chunk is longer than its size")
            chunks += 1
            if not chunks % CHUNKS_AT_ONCE:
                await asyncio.sleep(0)
        await self._pass_trailers()

    async def drop(self, *, silence_s: float) -> None:
        """Drop what arrives; TimeoutError where nothing does for so long."""
        self._held.clear()
        while True:
            async with asyncio.timeout(silence_s):
                await self._arrived()
            await asyncio.sleep(0)

    async def _pass_trailers(self) -> None:
        left = MAX_HEAD_BYTES
        while line := await self._line(MAX_HEAD_BYTES, status=431):
            left -= len(line) + 2
            if left < 0:
                raise Refused(431, f"trailers must be at most {MAX_HEAD_BYTES} bytes, together")
            try:
                HTTPHeaders().parse_line(line.decode("latin-1"))
            except HTTPInputError as error:
                raise Refused(400, f"a trailer is no header: {error}") from None

    async def _pass(self, size: int, take: Take) -> None:
        while size:
            if not self._held:
                self._held += await self._arrived()
                await asyncio.sleep(0)  # a client that sends fast must not keep others waiting
            part = bytes(self._held[:size])
            del self._held[:size]
            size -= len(part)
            take(part)

    async def _line(self, most: int, *, status: int = 400) -> bytes:
        """The next line, without its CRLF."""
        held, searched = self._held, 0
        while (end := held.find(b"\n", searched)) < 0 and len(held) <= most:
            searched = len(held)
            held += await self._arrived()
        if not 0 <= end <= most:
            raise Refused(status, f"a line between or behind the chunks of the body is longer than {most} bytes")
        if held[end - 1 : end] != b"\r":
            raise Refused(400, "lines of a body in chunks must end with CR LF")
        line = bytes(held[: end - 1])
        del held[: end + 1]
        return line

    async def _arrived(self) -> bytes:
        return await self._stream.read_bytes(PIECE_BYTES, partial=True)


def require_host(line: RequestStartLine, headers: HTTPHeaders) -> None:
    """Refused unless exactly one host is named (RFC 9112, 3.2), which HTTP/1.0 may leave out; and where the target
    names another thing than a host."""
    host, named = headers.get("Host"), _ABSOLUTE.match(line.path)
    if named is not None and not _HOST.fullmatch(named[1]):
        raise Refused(400, f"the target must name one host, not {named[1][:80]!r}", where="path")
    if host is None and line.version == "HTTP/1.0":
        return
    if host is None or not _HOST.fullmatch(host):
        why = "HTTP/1.1 needs a Host header" if host is None else f"Host must name one host, not {host[:80]!r}"
        raise Refused(400, why, pointer="/Host", where="header")


def length_of(headers: HTTPHeaders) -> int | None:
    """The length of the body in bytes, 0 where there is none, None for one in chunks; Refused for anything else."""
    coding, length = headers.get("Transfer-Encoding"), headers.get("Content-Length")
    if coding is not None:
        if length is not None or coding.lower() != "chunked":
            what = "a body has either a Content-Length or the Transfer-Encoding chunked"
            raise Refused(400, what, pointer="/Transfer-Encoding", where="header")
        return None
    first, *others = re.split(r",[ \t]*", "0" if length is None else length)
    if not _DIGITS.fullmatch(first) or any(other != first for other in others):
        what = f"Content-Length must be one number of bytes, got {length!r}"
        raise Refused(400, what, pointer="/Content-Length", where="header")
    return int(first.lstrip("0")[:18] or 0)  # a longer one is beyond any limit as it is


def stays_open(line: RequestStartLine, headers: HTTPHeaders) -> bool:
    """Whether the client may send another request over the connection (RFC 9112, 9.3)."""
    wanted = {option.strip().lower() for option in headers.get("Connection", "").split(",")}
    if line.version == "HTTP/1.0":
        return "keep-alive" in wanted and "Transfer-Encoding" not in headers
    return "close" not in wanted


class Unpacking:
    """Gives what gzip data unpack to to `take`, in pieces."""

    def __init__(self, take: Take) -> None:
        self._take, self._gzip = take, GzipDecompressor()

    def __call__(self, packed: bytes) -> None:
        """Unpack the next part of the data; Refused where they are no gzip data."""
        try:
            while packed:
                if unpacked := self._gzip.decompress(packed, PIECE_BYTES):
                    self._take(unpacked)
                packed = self._gzip.unconsumed_tail
        except zlib.error as error:
            raise _no_gzip(error) from None

    def finish(self) -> None:
        """Refused where the data are not complete."""
        try:
            self._gzip.flush()
        except zlib.error as error:
            raise _no_gzip(error) from None


def codings_of(headers: HTTPHeaders) -> list[str]:
    """What the body is encoded by, the last one last; nothing where it is sent as it is."""
    named = [coding.strip().lower() for coding in headers.get("Content-Encoding", "").split(",")]
    return ["gzip" if coding == "x-gzip" else coding for coding in named if coding not in ("", "identity")]


def _no_gzip(error: zlib.error) -> Refused:
    return Refused(400, f"the body is no gzip data, as Content-Encoding says: {error}")


def _too_long(held: bytearray) -> Refused:
    """The refusal of a head that is too long, or of what is none."""
    method, line = _method(held), held.find(b"\n")
    if not 0 <= line <= MAX_HEAD_BYTES // 2:
        if method == "-":
            return Refused(400, "this is no request of HTTP/1", where="header")
        what = f"the request line must leave room for headers within {MAX_HEAD_BYTES} bytes"
        return Refused(414, what, where="path", method=method)
    what = f"request line and headers must be at most {MAX_HEAD_BYTES} bytes, together"
    return Refused(431, what, where="header", method=method)


def _method(head: bytes | bytearray) -> str:
    found = _METHOD.match(head)
    return "-" if found is None else found[1].decode()
