"""Reads UBJSON as XGBoost writes it, so that a damaged model is refused here and does not end the process.

XGBoost 3.2 aborts on a model that is cut short. Source of the format: https://ubjson.org, draft 12.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

from threadcast.core.errors import FormatError

MAX_DEPTH = 32
"""Largest depth of nested containers; XGBoost's models have nine."""

_NUMBERS = {"i": ">i1", "U": ">u1", "I": ">i2", "l": ">i4", "L": ">i8", "d": ">f4", "D": ">f8"}
_WORDS = {"Z": None, "T": True, "F": False}


def parse(data: bytes) -> Any:
    """The document: dicts, lists, text, numbers; arrays of one number type as numpy arrays. FormatError otherwise."""
    reader = _Reader(data)
    try:
        document = reader.value(reader.marker(), 0)
    except (IndexError, struct.error, UnicodeDecodeError) as error:
        raise FormatError(f"not UBJSON: {error}") from error
    if reader.at != len(data):
        raise FormatError(f"not UBJSON: {len(data) - reader.at} bytes follow the document")
    return document


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data, self.at = data, 0

    def value(self, marker: str, depth: int) -> Any:
        if depth > MAX_DEPTH:
            raise FormatError(f"not UBJSON: containers are nested deeper than {MAX_DEPTH}")
        if marker in _NUMBERS:
            return self._numbers(marker, 1)[0].item()
        if marker in _WORDS:
            return _WORDS[marker]
        if marker in "SC":
            return self._text() if marker == "S" else self._take(1).decode()
        if marker == "[":
            return self._array(depth)
        if marker == "{":
            return self._object(depth)
        raise FormatError(f"not UBJSON: unknown type {marker!r} at byte {self.at - 1}")

    def marker(self) -> str:
        return self._take(1).decode("ascii")

    def _array(self, depth: int) -> Any:
        kind, count = self._type_and_count()
        if kind in _NUMBERS and count is not None:
            return self._numbers(kind, count)
        items: list[Any] = []
        while self._more(count, len(items), "]"):
            items.append(self.value(kind or self.marker(), depth + 1))
        return items

    def _object(self, depth: int) -> dict[str, Any]:
        kind, count = self._type_and_count()
        members: dict[str, Any] = {}
        read = 0
        while self._more(count, read, "}"):
            name = self._text()
            if name in members:
                raise FormatError(f"not UBJSON: the name {name!r} is used twice in one object")
            members[name] = self.value(kind or self.marker(), depth + 1)
            read += 1
        return members

    def _type_and_count(self) -> tuple[str, int | None]:
        kind = ""
        if self._next_is("$"):
            kind = self.marker()
            if not self._next_is("#"):
                raise FormatError(f"not UBJSON: a typed container without a count at byte {self.at}")
            return kind, self._length()
        return kind, self._length() if self._next_is("#") else None

    def _more(self, count: int | None, read: int, end: str) -> bool:
        if count is None:
            return not self._next_is(end)
        if count > len(self._data):  # each item takes a byte at least, also where its type is said once
            raise FormatError(f"not UBJSON: {count} items in {len(self._data)} bytes")
        return read < count

    def _next_is(self, character: str) -> bool:
        found = self._data[self.at : self.at + 1] == character.encode()
        self.at += found
        return found

    def _text(self) -> str:
        return self._take(self._length()).decode()

    def _length(self) -> int:
        marker = self.marker()
        if marker not in "iUIlL":
            raise FormatError(f"not UBJSON: a length of type {marker!r} at byte {self.at - 1}")
        return int(self._numbers(marker, 1)[0])

    def _numbers(self, marker: str, count: int) -> Any:
        dtype = np.dtype(_NUMBERS[marker])
        return np.frombuffer(self._take(count * dtype.itemsize), dtype=dtype)

    def _take(self, count: int) -> bytes:
        if count < 0 or self.at + count > len(self._data):
            raise FormatError(f"not UBJSON: {count} bytes are wanted at byte {self.at} of {len(self._data)}")
        data = self._data[self.at : self.at + count]
        self.at += count
        return data
