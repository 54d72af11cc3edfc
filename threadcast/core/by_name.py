"""Things that are found by name, and imported when they are needed: built-in ones and those of third parties."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any, Generic, TypeVar, cast

from threadcast.core.arguments import did_you_mean
from threadcast.core.errors import InvalidInput, NotFound

T = TypeVar("T")


class ByName(Generic[T]):
    """Things of one `kind` ("model") by name, in the order in which they were added."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._things: dict[str, T] = {}

    def add(self, name: str, thing: T) -> None:
        """Add a thing; adding it again does nothing. InvalidInput for an empty name, and for one that another has."""
        if not name:
            raise InvalidInput(f"name={name!r}: the name of a {self._kind} must not be empty")
        if self._things.get(name, thing) != thing:
            raise InvalidInput(f"a {self._kind} named {name!r} is registered already; choose another name")
        self._things[name] = thing

    def remove(self, name: str) -> None:
        """Remove what has this name; NotFound where there is none."""
        self.find(name)
        del self._things[name]

    def find(self, name: str, *others: str) -> T:
        """What has this name; NotFound with the nearest one where there is none, and `others` that the caller knows."""
        if name not in self._things:
            known = (*others, *self._things)
            hint = f"{did_you_mean(name, known)}known: {', '.join(known)}"
            raise NotFound(f"no {self._kind} named {name[:80]!r}; {hint}")
        return self._things[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._things)

    def __contains__(self, name: object) -> bool:
        return name in self._things


def check_importable(what: str, thing: object) -> None:
    """Raise InvalidInput for what is neither callable nor the text "package.module:attribute"."""
    if not callable(thing) and not (isinstance(thing, str) and ":" in thing):
        raise InvalidInput(f"{what}={thing!r} must be a callable or 'package.module:attribute'")


def imported(thing: T | str) -> T:
    """The thing itself, or what the text "package.module:attribute" names."""
    if not isinstance(thing, str):
        return thing
    module, _, attribute = thing.partition(":")
    found: Any = getattr(importlib.import_module(module), attribute)
    return cast(T, found)
