"""The classes of a call's arguments that a user has written: the called code reads their methods and attributes."""

from __future__ import annotations

from typing import Any

from torch.utils import _pytree as pytree

from threadcast.capture.guards.libraries import is_library


def own_classes(arguments: Any) -> list[type]:
    """The classes of nested arguments, and of what they hold, that are of no library; each once."""
    found: dict[type, None] = {}

    def note(value: Any) -> bool:
        found[type(value)] = None
        return False

    pytree.tree_flatten(arguments, is_leaf=note)
    return [kind for kind in found if not is_library(kind.__module__)]
