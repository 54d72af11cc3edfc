"""Lines of JSON between a process, its arbiter, and whoever asks either: their form, and how they are read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from threadcast.core.errors import FormatError

LONGEST, LONGEST_ANSWER = 1 << 16, 1 << 24
"""Bytes of a line, at most, and of what somebody asked for: a machine may have hundreds of processes."""


def line(message: dict[str, Any]) -> bytes:
    """One message as it is sent."""
    return json.dumps(message, allow_nan=False).encode() + b"\n"


class Lines:
    """Messages out of the bytes that arrive, each of at most `longest` bytes."""

    def __init__(self, longest: int = LONGEST) -> None:
        self._rest, self._longest = b"", longest

    def feed(self, data: bytes) -> Iterator[dict[str, Any]]:
        """The messages that are complete with `data`; FormatError on what is none."""
        self._rest += data
        while b"\n" in self._rest:
            text, _, self._rest = self._rest.partition(b"\n")
            yield _message(text)
        if len(self._rest) > self._longest:
            raise FormatError(f"a line of more than {self._longest} bytes")


def _message(text: bytes) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError is a ValueError
        raise FormatError(f"not a line of JSON: {text[:80]!r}") from error
    if not isinstance(found, dict):
        raise FormatError(f"not an object: {text[:80]!r}")
    return found


def cpus_of(message: dict[str, Any], name: str) -> tuple[tuple[int, ...], ...]:
    """Cores, each as the kernel's numbers of its hardware threads; FormatError on anything else."""
    value = message.get(name)
    if not isinstance(value, list) or not all(
        isinstance(core, list) and core and all(type(cpu) is int and cpu >= 0 for cpu in core) for core in value
    ):
        raise FormatError(f"{name} must be cores, each a list of CPUs: {value!r}", pointer=f"/{name}")
    return tuple(map(tuple, value))
