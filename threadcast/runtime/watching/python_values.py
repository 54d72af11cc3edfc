"""Changes of the Python values that a model and a loss read besides their arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from threadcast.capture.python_state import PythonState, Table
from threadcast.runtime.engines.native.library import loaded_library


class ReadsWatch:
    """Finds changes of the Python values that code reads, in microseconds where the native library is loaded.

    For most dictionaries it is enough to read their counter of changes. Some change often in items that the code does
    not read, as the global variables of a script do in each turn of its loop. These are compared item by item from
    their first such change on.
    """

    def __init__(self, model: nn.Module, functions: Sequence[Any]) -> None:
        self.state = PythonState((model, *functions), besides=model)
        self._quick: Any = None
        self._each: list[Any] = []
        self._often: list[Table] = []

    def changed(self) -> str | None:
        """The first value found to have changed since this object was made, as text; None where none has."""
        if self._quick is not None and self._quick.holds():
            return self.state.changed_in(self._often) or self.state.changed_elsewhere()
        library = loaded_library()
        if library is None or not library.tagged:
            return self.state.changed()
        self._often = [t for t in self.state.tables if t in self._often or self._has_changed(t)]
        rest = [table for table in self.state.tables if table not in self._often]
        self._each = [(table, library.Untouched([table.items], [], [])) for table in rest]
        self._quick = library.Untouched([table.items for table in rest], self.state.lists, [])
        if (changed := self.state.changed()) is not None:
            self._quick = None
        return changed

    def _has_changed(self, table: Table) -> bool:
        return any(own is table and not untouched.holds() for own, untouched in self._each)
