"""Where a value was found, by which a user knows it, and the dictionaries of which code can read all items or some."""

from __future__ import annotations

import reprlib
from dataclasses import dataclass, field
from types import FunctionType, MethodType, ModuleType
from typing import Any, Literal, NamedTuple


class Place(NamedTuple):
    """Where a value was found, by which a user knows it: `Net.info["steps"]`, not "a dictionary"."""

    value: Any
    key: Any
    """Its name; of a part of `parent` that of the attribute, or the key of the item."""
    parent: Place | None = None
    item: bool = False
    of: str = ""
    """What the name is one of: " (a variable of loss)"."""

    def part(self, value: Any, key: Any, *, item: bool = False) -> Place:
        """Where a part of the value is, which code reads in this way."""
        return Place(value, key, self, item)

    @property
    def name(self) -> str:
        """The name of the value. What is ours has none: a model in it is called as it is alone."""
        place, parts = self, list[str]()
        while (above := place.parent) is not None:
            if type(above.value).__module__.startswith("threadcast.runtime.") and place.value is not None:
                place = called(place.value)
                continue
            parts.append(f"[{reprlib.repr(place.key)}]" if place.item else f".{place.key}")
            place = above
        return "".join([place.key, *reversed(parts), place.of])


def called(value: Any) -> Place:
    """A value that is known by the name of a function, a class or a module, else by that of its class."""
    of = value
    while isinstance(of, MethodType):
        of = of.__self__
    name = of.__name__ if isinstance(of, FunctionType | type | ModuleType) else type(of).__name__
    return Place(value, str(name))


@dataclass(frozen=True, slots=True, eq=False)
class Dictionary:
    """A dictionary of which code can read all items or some, and whose it is."""

    items: dict[Any, Any]
    place: Place
    kind: Literal["globals", "attributes", "all attributes", "items", "library"]
    holder: Any = None
    """The object or the class whose attributes these are; None for others, and for functions."""
    globals: set[str] = field(default_factory=set)
    """The global variables that code names."""

    def called(self, key: Any) -> str:
        """The name of an item."""
        return Place(None, key, self.place, self.kind == "items").name
