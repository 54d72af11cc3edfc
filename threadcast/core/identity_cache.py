"""A cache of a function of one object that finds its results by the object itself, not by what it equals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

Argument = TypeVar("Argument")
Result = TypeVar("Result")

MOST = 64
"""Results that are kept; beyond that all are dropped."""


class CachedByIdentity(Generic[Argument, Result]):
    """Calls `function` once for each object, which must never change: the cases of a machine are one tuple, and to hash
    or compare it takes as long as a tenth of an answer. Keeps the objects, too. Safe to use from threads.

    Use it as a decorator.
    """

    def __init__(self, function: Callable[[Argument], Result]) -> None:
        self.__doc__ = function.__doc__
        self._function = function
        self._found: dict[int, tuple[Any, Result]] = {}

    def __call__(self, argument: Argument) -> Result:
        found = self._found.get(id(argument))
        if found is not None and found[0] is argument:
            return found[1]
        result = self._function(argument)
        if len(self._found) >= MOST:
            self._found = {}
        self._found[id(argument)] = argument, result
        return result
