"""Writes and reads JSON messages, one a line, for a socket."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from threadcast.core.errors import FormatError
from threadcast.core.json_reading import parse

LONGEST, LONGEST_ANSWER = 1 << 16, 1 << 24
"""Most bytes of a line: of a message, and of an answer, which may list hundreds of processes."""


def line(message: dict[str, Any]) -> bytes:
    """Return the bytes of a message: a line of JSON."""
    return json.dumps(message, allow_nan=False).encode() + b"\n"


class Lines:
    """Splits a stream of bytes into messages of at most `longest` bytes each."""

    def __init__(self, longest: int = LONGEST) -> None:
        self._rest, self._longest = b"", longest

    def feed(self, data: bytes) -> Iterator[dict[str, Any]]:
        """Yield the messages that `data` completes; FormatError for a line that is no JSON object or too long."""
        self._rest += data
        while b"\n" in self._rest:
            text, _, self._rest = self._rest.partition(b"\n")
            yield _message(text)
        if len(self._rest) > self._longest:
            raise FormatError(f"a line of more than {self._longest} bytes")


def _message(text: bytes) -> dict[str, Any]:
    found = parse(text, what=f"the line {text[:80]!r}")
    if not isinstance(found, dict):
        raise FormatError(f"not an object: {text[:80]!r}")
    return found
