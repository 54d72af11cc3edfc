"""Which names code may put together while it runs, as `getattr(losses, f"{kind}_loss")` does."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


class ComputedNames:
    """Finds in dictionaries the names that code may put together of the texts that it has.

    A name counts where it is a text that code can reach, and where it begins or ends with what code adds to others with
    an underscore between: "focal_loss" with "_loss". Any part of a name, or words in any order, would lead through most
    of a large library's modules.
    """

    def __init__(self) -> None:
        self._texts: set[str] = set()
        self._parts: set[str] = set()
        self._found: dict[int, tuple[int, frozenset[str]]] = {}

    def __len__(self) -> int:
        """How many different texts and parts are known: where it is as before, so is what `among` returns."""
        return len(self._parts) + len(self._texts)

    def add_parts(self, parts: Iterable[str]) -> None:
        """Add parts of names that code adds to others; they begin or end with an underscore."""
        self._parts.update(parts)

    def add_texts(self, values: Iterable[Any]) -> None:
        """Add values that code can reach, as far as they are texts."""
        for text in {value for value in values if type(value) is str} - self._texts:
            self._texts.update((text, text.lower()))

    def among(self, table: Mapping[Any, Any], *, loosely: bool) -> frozenset[str]:
        """The names in `table` that may be put together; special ones (`__init__`) are not.

        What is joined to a part must be a text that code can reach or a number; where `loosely`, it may be anything.
        """
        known, found = self._found.get(id(table), (-1, frozenset[str]()))
        if known != len(self):
            found = frozenset(name for name in table if isinstance(name, str) and self._may_be(name, loosely))
            self._found[id(table)] = len(self), found
        return found

    def _may_be(self, name: str, loosely: bool) -> bool:
        if name.startswith("__"):
            return False
        joints = [i for i in range(1, len(name)) if name[i] == "_"]
        joined = [(name[: i + 1], name[i + 1 :]) for i in joints] + [(name[i:], name[:i]) for i in joints]
        return name in self._texts or any(
            part in self._parts and (loosely or rest in self._texts or rest.isdigit()) for part, rest in joined
        )
