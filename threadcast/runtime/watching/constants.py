"""The attributes of a module that a graph has built in as numbers and texts."""

from __future__ import annotations

from collections.abc import Container, Iterator
from typing import Any

from torch import Tensor

_CONSTANTS = (bool, int, float, complex, str, bytes, tuple, type(None))


def constants_of(attributes: dict[str, Any], names: Container[str]) -> Iterator[tuple[str, Any]]:
    """Names and values of a module's mode, and of its public numbers, texts, tuples and Nones that are in `names`."""
    for name, value in attributes.items():
        if isinstance(value, _CONSTANTS) and not name.startswith("_") and (name in names or name == "training"):
            yield name, _hashable(value)


def _hashable(value: Any) -> Any:
    """`value` in a form that can be compared and hashed."""
    if isinstance(value, Tensor):
        return id(value) if value.numel() > 1 else value.item()
    if isinstance(value, list | tuple):
        items = tuple(map(_hashable, value))
        return items if type(value) in (list, tuple) else (type(value), items)
    if isinstance(value, dict):
        return tuple([(name, _hashable(one)) for name, one in value.items()])
    return exact(value) if isinstance(value, _CONSTANTS) else repr(value)


def exact(value: Any) -> tuple[type, Any]:
    """A key of a constant that differs wherever code may tell two apart: 1, 1.0 and True, or 0.0 and -0.0."""
    if isinstance(value, float | complex):  # a subclass may show fewer digits
        return type(value), float.__repr__(value) if isinstance(value, float) else complex.__repr__(value)
    return type(value), value
