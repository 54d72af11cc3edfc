"""Reading members of a JSON document; errors point at the member that is wrong."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from threadcast.core.errors import FormatError, InvalidInput

T = TypeVar("T")
_REQUIRED: Any = object()
_NAMES = {dict: "an object", list: "an array", str: "a string", int: "an integer", float: "a number", bool: "a boolean"}


def parse(text: str | bytes, *, what: str) -> Any:
    """The value in a JSON text. FormatError names the document (`what`), the line and the column.

    A member given twice in an object is an error too: JSON readers differ in which of the two they use (RFC 8259, 4).
    """
    try:
        return json.loads(text, object_pairs_hook=unique_members)
    except FormatError as error:
        raise FormatError(f"{what}: {error}") from error
    except (ValueError, RecursionError) as error:  # ValueError: syntax, encoding, or more digits than Python reads
        raise FormatError(f"{what} is not JSON: {error}") from error


def unique_members(members: list[tuple[str, Any]]) -> dict[str, Any]:
    """The object with these members, for `object_pairs_hook`; FormatError where one is there twice."""
    unique = dict(members)
    if len(unique) < len(members):
        ((twice, _),) = Counter(name for name, _ in members).most_common(1)
        raise FormatError(f"an object has the member {twice!r} twice")
    return unique


def read_json(path: Path | str, make: Callable[[Any], T]) -> T:
    """What `make` returns for the JSON document in `path`; FormatError names the file, OSError if it cannot be read."""
    document = parse(Path(path).read_bytes(), what=str(path))
    try:
        return make(document)
    except FormatError as error:
        raise FormatError(f"{error} (in {path})", pointer=error.pointer) from error


def member(document: Any, name: str, kind: type[T], *, pointer: str = "", default: Any = _REQUIRED) -> T:
    """Return `document[name]`, which must be of `kind`; if missing `default`, or FormatError if no default is given."""
    if not isinstance(document, dict):
        raise FormatError(f"must be an object, got {_short(document)}", pointer=pointer)
    if name not in document:
        if default is _REQUIRED:
            raise FormatError(f"{name!r} is missing; it must be {_NAMES[kind]}", pointer=pointer)
        return default  # type: ignore[no-any-return]
    value = document[name]
    wrong_bool = isinstance(value, bool) and kind is not bool
    if wrong_bool or not isinstance(value, kind):
        raise FormatError(f"{name} must be {_NAMES[kind]}, got {_short(value)}", pointer=f"{pointer}/{name}")
    return value


def checked(make: Callable[[], T], *, pointer: str) -> T:
    """Return `make()`; where `make` raises InvalidInput, raise FormatError with this `pointer` instead."""
    try:
        return make()
    except FormatError:
        raise
    except InvalidInput as error:
        raise FormatError(str(error), pointer=pointer) from error


def number(
    document: Any, name: str, *, pointer: str = "", minimum: float = -math.inf, default: Any = _REQUIRED
) -> float:
    """Return the finite number `document[name]` of at least `minimum` as a float."""
    if isinstance(document, dict) and name not in document and default is not _REQUIRED:
        return float(default)
    value = document.get(name) if isinstance(document, dict) else None
    if value is None:
        member(document, name, float, pointer=pointer)
    return finite(value, pointer=f"{pointer}/{name}", minimum=minimum)


def finite(value: Any, *, pointer: str, minimum: float = -math.inf) -> float:
    """Return `value` as a float, which must be a finite JSON number of at least `minimum`."""
    try:
        converted = float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
    except OverflowError:  # an integer beyond 1.8e308
        converted = math.inf
    if not math.isfinite(converted):
        raise FormatError(f"must be a finite number, got {_short(value)}", pointer=pointer)
    if converted < minimum:
        raise FormatError(f"must be at least {minimum:g}, got {value!r}", pointer=pointer)
    return converted


def check_schema(document: Any, schema: str, *, pointer: str = "") -> None:
    """FormatError unless the document says that it follows `schema` ("threadcast.graph/1")."""
    if (found := member(document, "schema", str, pointer=pointer)) != schema:
        raise FormatError(f"schema is {found!r}, expected {schema!r}", pointer=f"{pointer}/schema")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
