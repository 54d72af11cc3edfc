"""Attacks on an HTTP server that echoes: slow clients, unread answers, and requests that can be read in two ways.

`holds` says whether other clients are still served. `readings` sends requests whose framing is odd, each followed by a
second request that must not be taken for anything else, and gives how the server read them.
"""

from __future__ import annotations

import contextlib
import random
import re
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

SOON_S = 2.0
"""Seconds in which another client must be served."""

PATIENCE_S = 25.0
"""Seconds after which a client that sends a byte now and then is taken to be served for ever."""

READ_S = 1.0
"""Seconds after which a server that neither answers nor closes is taken to wait for more."""

POST = b"POST /echo HTTP/1.1\r\nHost: a\r\n"
GET = b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
HIDDEN = b"GET /hidden HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
Address = tuple[str, int]

HOLDING = {
    "part of a head": (24, b"POST /echo HTTP/1.1\r\nHo"),
    "part of a body": (24, POST + b"Content-Length: 100\r\n\r\nx"),
    "part of a chunk": (24, POST + b"Transfer-Encoding: chunked\r\n\r\n64\r\nx"),
    "unread answers": (24, b"GET /long HTTP/1.1\r\nHost: a\r\n\r\n"),
    "900 connections": (900, b"GET /"),
}
"""What so many clients send, before they do nothing more."""


def served(address: Address) -> bool:
    """Whether a client gets an answer soon."""
    with contextlib.suppress(OSError), socket.create_connection(address, timeout=SOON_S) as connection:
        connection.sendall(GET)
        return connection.recv(100).startswith(b"HTTP/1.1 200")
    return False


def holds(address: Address, attack: str) -> bool:
    """Whether another client is served while an attack of `HOLDING` goes on."""
    clients, sent = HOLDING[attack]
    with contextlib.ExitStack() as stack:
        for _ in range(clients):
            with contextlib.suppress(OSError):
                connection = stack.enter_context(socket.create_connection(address, timeout=SOON_S))
                connection.sendall(sent)
        time.sleep(1.0)
        return served(address)


def trickled_s(address: Address) -> float | None:
    """Seconds after which a client is closed that sends a byte of a header each half second; None for never."""
    started_s = time.monotonic()
    with socket.create_connection(address, timeout=0.5) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: a\r\nX: ")
        while (taken_s := time.monotonic() - started_s) < PATIENCE_S:
            try:
                connection.sendall(b"x")
                if not connection.recv(1):
                    return taken_s
            except TimeoutError:
                continue
            except OSError:
                return taken_s
    return None


@dataclass(frozen=True, slots=True)
class Odd:
    """A request with an odd framing; `ambiguous`: RFC 9112 wants it refused, since others may read it differently."""

    sent: bytes
    ambiguous: bool


@dataclass(frozen=True, slots=True)
class Reading:
    """How a server read one of them: the bodies that it echoed, and how many hidden requests it answered."""

    accepted: bool
    bodies: tuple[bytes, ...] = ()


LENGTHS = [
    (b"Content-Length: %d", False),
    (b"Content-Length:%d", False),
    (b"Content-Length: 0%d", False),
    (b"Content-Length: +%d", True),
    (b"Content-Length: %d ", False),
    (b"Content-Length : %d", True),
    (b"Content-Length: %d, 3", True),
    (b"Content-Length: 3\r\nContent-Length: %d", True),
    (b"Content-Length: %d_", True),
    (b"Content-Length: \x0b%d", True),
    (b"content-length: %d", False),
    (b"Content-Length:\r\n %d", True),
    (b" Content-Length: %d", True),
    (b"X: a\rContent-Length: %d", True),
]
SAME_TWICE = (b"Content-Length: 3, 3", b"Content-Length: 3\r\nContent-Length: 3")
"""Lengths that may be accepted, since both are the same (RFC 9112, 6.3)."""
CODINGS = [(b"Transfer-Encoding: chunked", False), (b"Transfer-Encoding: Chunked", False),
           (b"Transfer-Encoding:\tchunked", False), (b"Transfer-Encoding: chunked, identity", True),
           (b"Transfer-Encoding: identity, chunked", True), (b"Transfer-Encoding : chunked", True),
           (b"Transfer-Encoding: xchunked", True), (b"Transfer-Encoding: chunked\r\nTransfer-Encoding: x", True),
           (b"Transfer-Encoding:\r\n chunked", True), (b"Transfer-Encoding: \x0bchunked", True),
           (b"Transfer-Encoding: \"chunked\"", True), (b"X: a\rTransfer-Encoding: chunked", True),
           (b"Transfer_Encoding: chunked", False)]  # fmt: skip
NO_CODING = b"Transfer_Encoding"
"""Another field than Transfer-Encoding: what it says must be ignored, so that nothing is read as chunks."""
ENDS = [(b"\r\n", False), (b"\n", False), (b"\r\r\n", True)]
SIZES = [
    (b"%x", False),
    (b"%X", False),
    (b"0%x", False),
    (b"%x;a=b", False),
    (b'%x;a="\r\n"', True),
    (b"0x%x", True),
    (b"+%x", True),
    (b"-%x", True),
    (b" %x", True),
    (b"%x ", True),
    (b"%x;a\n", True),
    (b"1000000000000000%x", True),
]
"""Variants, the plain one first, each with whether it must be refused."""

PLAIN = 0.7
"""Share of the parts that are plain, so that most requests have one odd part."""


def odd_requests(count: int, *, seed: int = 0) -> list[Odd]:
    """So many requests, drawn at random; the same for every server."""
    draw = random.Random(seed)
    return [_odd_request(draw) for _ in range(count)]


def _odd_request(draw: random.Random) -> Odd:
    ambiguous = False

    def part(variants: list[tuple[bytes, bool]], *, counts: bool = True) -> bytes:
        nonlocal ambiguous
        text, bad = variants[0] if draw.random() < PLAIN else draw.choice(variants)
        ambiguous |= bad and counts
        return text

    with_length, with_chunks = draw.choice([(True, False), (False, True), (False, True), (True, True)])
    body, lines, end = b"q" * draw.randrange(1, 30), [], part(ENDS)
    content = body
    if with_chunks:
        lines.append(part(CODINGS))
        coded = not lines[0].startswith(NO_CODING)
        ambiguous |= coded and with_length
        chunk_end = part(ENDS, counts=coded)
        ambiguous |= coded and chunk_end == b"\n"  # only lines of the head may end so
        content = part(SIZES, counts=coded) % len(body) + chunk_end + body + b"\r\n0\r\n\r\n"
    if with_length:
        said = len(content) if draw.random() < PLAIN else draw.choice([0, len(content) + 9])
        at, before = draw.randrange(2), ambiguous
        line = part(LENGTHS) % said
        if line in SAME_TWICE:
            ambiguous = before
        lines.insert(at, line)
    head = end.join([b"POST /echo HTTP/1.1", b"Host: a", *lines, b"", b""])
    return Odd(head + content + HIDDEN, ambiguous)


_STATUS = re.compile(rb"HTTP/1\.[01] (\d\d\d)")
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)


def reading(address: Address, odd: Odd) -> Reading:
    """How the server reads it."""
    arrived = bytearray()
    with contextlib.suppress(OSError), socket.create_connection(address, timeout=READ_S) as connection:
        connection.sendall(odd.sent)
        while data := connection.recv(65536):
            arrived += data
    bodies, at = [], 0
    while (found := _STATUS.match(arrived, at)) is not None:
        end = arrived.find(b"\r\n\r\n", at)
        length = _LENGTH.search(arrived, at, end + 2)
        if found[1] != b"200" or length is None:
            break
        bodies.append(bytes(arrived[end + 4 : end + 4 + int(length[1])]))
        at = end + 4 + int(length[1])
    return Reading(bool(bodies), tuple(bodies))


def readings(address: Address, requests: list[Odd]) -> list[Reading]:
    """How the server reads each of them."""
    with ThreadPoolExecutor(8) as pool:
        return list(pool.map(lambda odd: reading(address, odd), requests))
