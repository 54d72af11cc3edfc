"""Copies of values whose mappings are read-only."""

from __future__ import annotations

from dataclasses import fields
from types import MappingProxyType
from typing import Any


def made_anew(value: Any) -> tuple[Any, ...]:
    """What `__reduce__` returns for a dataclass that holds read-only mappings, which cannot be pickled: it is made anew
    of its fields, with plain mappings for these."""
    given = (getattr(value, field.name) for field in fields(value) if field.init)
    return type(value), tuple(dict(part) if isinstance(part, MappingProxyType) else part for part in given)
