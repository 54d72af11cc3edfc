"""Describes, for the user, why a call needs a graph of its own: how it differs from the calls captured before."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from typing import Any

_PARTS = (
    "shapes, types or values of the arguments",
    "whether tensors share memory",
    "the model or the optimizer",
    "PyTorch's default type",
)
"""What each member of a call's key stands for, in the order of the key."""


def differences(key: tuple[Hashable, ...], others: Iterable[tuple[Hashable, ...]]) -> str:
    """Return a text that names the parts in which the call with this `key` differs from the calls with keys `others`.

    A part is named if it differs from that of any other call, with the names of the settings that differ. A key has one
    member for each of `_PARTS`; settings in it are pairs (name, value), nested to any depth.
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
    """Names of the pairs (name, value) that differ between two nested tuples of the same structure."""
    if one == other or not isinstance(one, tuple) or not isinstance(other, tuple):
        return
    if len(one) == len(other) == 2 and isinstance(one[0], str) and one[0] == other[0]:
        yield one[0]
    elif len(one) == len(other):
        for mine, theirs in zip(one, other, strict=True):
            yield from _names(mine, theirs)
