"""In what calls differ that need graphs of their own, in words for the user."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from typing import Any

_PARTS = (
    "shapes, types or values of the arguments",
    "whether tensors share memory",
    "the model or the optimizer",
    "PyTorch's default type",
)
"""What the members of the keys of calls say."""


def differences(key: tuple[Hashable, ...], others: Iterable[tuple[Hashable, ...]]) -> str:
    """What of a call differs from all of `others`, and which settings, where it is these.

    A key has as many members as there are parts; settings in it are pairs of name and value, however nested.
    """
    known = list(others)
    found = []
    for i, part in enumerate(_PARTS):
        if all(key[i] == other[i] for other in known):
            continue
        names = sorted({name for other in known for name in _names(key[i], other[i])})
        found.append(f"{part} ({', '.join(names)})" if names else part)
    return "they differ by " + " and by ".join(found)


def _names(one: Any, other: Any) -> Iterator[str]:
    """The names of pairs (name, value) that differ, in nested tuples of one form."""
    if one == other or not isinstance(one, tuple) or not isinstance(other, tuple):
        return
    if len(one) == len(other) == 2 and isinstance(one[0], str) and one[0] == other[0]:
        yield one[0]
    elif len(one) == len(other):
        for mine, theirs in zip(one, other, strict=True):
            yield from _names(mine, theirs)
