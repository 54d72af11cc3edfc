"""Changes of the Python values that a model and a loss read besides their arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from threadcast.capture.guards.python_state import PythonState, Table
from threadcast.runtime.engine.native.library import loaded_library


class ReadsWatch:
    """Finds changes of the Python values that code reads, in microseconds where the native library is loaded.

    For most dictionaries it is enough to read their counter of changes. Some change often in items that the code does
    not read, as the global variables of a script do in each turn of its loop. From the first such change on, these are
    looked at one by one, and compared item by item after each change.
    """

    def __init__(self, model: nn.Module, functions: Sequence[Any]) -> None:
        self.state = PythonState((model, *functions), besides=model)
        self._quick: Any = None
        self._assigned: Any = None
        self._each: list[Any] = []
        self._often: list[tuple[Table, Any]] = []

    def changed(self) -> str | None:
        """The first value found to have changed since this object was made, as text; None where none has."""
        if self._quick is not None and self._quick.holds():
            changed = self._changed_often() if self._often else None
            changed = changed or self._changed_attributes()
            return changed or (self.state.changed_elsewhere() if self.state.reads_elsewhere else None)
        library = loaded_library()
        if library is None or not library.tagged:
            return self.state.changed()
        known = [table for table, _ in self._often]
        often = [table for table in self.state.tables if table in known or self._has_changed(table)]
        rest = [table for table in self.state.tables if table not in often]
        self._often = [(table, library.Untouched([table.items], [], [])) for table in often]
        self._each = [(table, library.Untouched([table.items], [], [])) for table in rest]
        self._quick = library.Untouched([table.items for table in rest], self.state.lists, [])
        self._assigned = library.Unassigned(self.state.attributes)
        if (changed := self.state.changed()) is not None:
            self._quick = None
        return changed

    def _changed_often(self) -> str | None:
        for i, (table, untouched) in enumerate(self._often):
            if untouched.holds():
                continue
            library = loaded_library()
            assert library is not None
            now = library.Untouched([table.items], [], [])
            if (changed := self.state.changed_in([table])) is not None:
                return changed
            self._often[i] = table, now
        return None

    def _changed_attributes(self) -> str | None:
        if self._assigned.holds():
            return self.state.changed_attributes(self._assigned.rest) if self._assigned.rest else None
        library = loaded_library()
        assert library is not None
        now = library.Unassigned(self.state.attributes)
        changed = self.state.changed_attributes(range(len(self.state.attributes)))
        if changed is None:  # other objects that are equal
            self._assigned = now
        return changed

    def _has_changed(self, table: Table) -> bool:
        return any(own is table and not untouched.holds() for own, untouched in self._each)
