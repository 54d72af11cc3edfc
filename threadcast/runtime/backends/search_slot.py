"""Lets one search for backends of a model be at work at a time, however many kinds of calls the model has."""

from __future__ import annotations

import weakref
from collections.abc import Callable

from threadcast.runtime.backends.search import BackendSearch


class SearchSlot:
    """Holds the search of one model that is at work."""

    def __init__(self) -> None:
        self._search: weakref.ref[BackendSearch] | None = None

    def fill(self, make: Callable[[], BackendSearch]) -> BackendSearch | None:
        """Return the search that `make` returns; None, and nothing is made, while the one before is at work."""
        before = None if self._search is None else self._search()
        if before is not None and before.working:
            return None
        search = make()
        self._search = weakref.ref(search)
        return search
