"""Documents in which one value has another JSON type, for tests of what reads them."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

OF_EACH_TYPE: tuple[Any, ...] = (None, True, 0, 2.5, "a", [], ["a"], {}, {"a": []})


def places(document: Any) -> Iterator[tuple[Any, ...]]:
    """The path of every value in a document, the document itself first."""
    yield ()
    members = (
        document.items() if isinstance(document, dict) else enumerate(document if isinstance(document, list) else ())
    )
    for key, value in members:
        for path in places(value):
            yield (key, *path)


def retyped(document: Any) -> Iterator[Any]:
    """The document with each of `OF_EACH_TYPE` in every place, one at a time."""
    for path in places(document):
        for value in OF_EACH_TYPE:
            yield _replaced(document, path, copy.deepcopy(value))


def _replaced(document: Any, path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    changed = copy.copy(document)
    changed[path[0]] = _replaced(document[path[0]], path[1:], value)
    return changed
