"""A snapshot of the Python values that functions read besides their arguments, to find later changes.

A captured graph has such values built in: an attribute of a loss module, a closure's variable, a global one.
"""

from __future__ import annotations

import copy
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import is_
from typing import Any

import numpy as np
from torch import nn

from threadcast.capture.guards.objects import CONSTANTS, attribute_of, contents_of, is_constant, is_opaque, items_of
from threadcast.capture.guards.reachable import Reachable
from threadcast.capture.guards.value_names import name_of

_MISSING, _ORDER = object(), object()
_CONTENTS = "cell_contents"


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """The items of a dictionary that are watched for changes: those with certain names, all where `names` is None."""

    items: dict[Any, Any]
    owner: str
    names: frozenset[str] | None
    before: dict[Any, Any]
    settable: type | None
    """The class whose attributes the dictionary holds, which can only be set with `setattr`; None for others."""
    constants: bool = True
    """Whether it is a difference that a public constant has become another one, has come or has gone."""

    def present(self) -> dict[Any, Any]:
        """The watched items, as they are now."""
        return items_of(self.items, self.names)

    def difference(self) -> tuple[Any] | None:
        """The name of the first item that has changed, or `_ORDER` for that of all; None where none has."""
        if not (self.before or dict.__len__(self.items)):
            return None
        now = self.present()
        for name in {**self.before, **now}:
            one, other = now.get(name, _MISSING), self.before.get(name, _MISSING)
            if not (same(one, other) or (not self.constants and _is_setting(name, one) and _is_setting(name, other))):
                return (name,)
        return (_ORDER,) if self.names is None and not all(map(is_, now, self.before)) else None

    def restore(self) -> None:
        """Give every watched item the value that it had when the snapshot was taken."""
        now = self.present()
        for name in {**self.before, **now}:
            if same(now.get(name, _MISSING), value := self.before.get(name, _MISSING)):
                continue
            if self.settable is not None:
                delattr(self.settable, name) if value is _MISSING else setattr(self.settable, name, value)
            elif value is _MISSING:
                del self.items[name]
            else:
                self.items[name] = value
        if self.names is None and not all(map(is_, self.items, self.before)):
            self.items.clear()
            self.items.update(self.before)


class PythonState:
    """A snapshot of what `roots` (functions and modules) can read besides their arguments, without tensors' values.

    That a public constant of a module in `besides` becomes another one counts as no change. `changed` compares the
    present values with the snapshot. Source of the idea: the guards of `torch.compile`.

    Of an object, attributes that code names are in it; `wholly`: all of them where code may set others (`setattr`).
    """

    def __init__(self, roots: Iterable[Any], *, besides: nn.Module | None = None, wholly: bool = False) -> None:
        self._roots = tuple(roots)
        found = Reachable(self._roots)
        whole = found.set_by_name if wholly else frozenset()
        known = set() if besides is None else {id(vars(module)) for module in besides.modules()}
        self.tensors, self.modules, self.names = found.tensors, found.modules, found.names
        self.generators = found.generators
        self.unwatchable = found.unwatchable
        """A value that is read but cannot be watched for changes, as text; None where there is none."""
        tables = ((table, owner, None if id(table) in whole else names, of) for table, owner, names, of in found.tables)
        self.tables = [
            Table(table, owner, names, items_of(table, names), of, constants=id(table) not in known)
            for table, owner, names, of in tables
        ]
        self._ordered = [
            table for table in self.tables
            if isinstance(table.items, OrderedDict) and table.names is None and len(table.before) > 1
        ]  # fmt: skip
        """Dictionaries whose order can change alone, which their counters of changes do not show."""
        self.caches = found.caches
        """The caches of functions (`functools.lru_cache`)."""
        self.lists = [value for value in found.containers if isinstance(value, list)]
        self._lists = [list(value) for value in self.lists]
        self._others = [(value, copy.copy(value)) for value in found.containers if not isinstance(value, list)]
        self._variables = [(variable, variable.get(_MISSING)) for variable in found.variables]
        self.attributes = found.attributes
        """Pairs of an owner and the name of an attribute that is not stored in a dictionary."""
        self._values = [_value_of(owner, name) for owner, name in self.attributes]

    def changed(self) -> str | None:
        """The name of the first value that differs from the snapshot; None where all are the same."""
        attributes = self.changed_attributes(range(len(self.attributes)))
        return self.changed_in(self.tables) or self._changed_lists() or attributes or self.changed_elsewhere()

    def changed_in(self, tables: Iterable[Table]) -> str | None:
        """As `changed`, for these tables only."""
        for table in tables:
            if (found := table.difference()) is None:
                continue
            (key,) = found
            if key is _ORDER:
                return f"the order of {name_of(self._roots, table.items) or table.owner}"
            return name_of(self._roots, table.items, key) or f"{key!r} of {table.owner}"
        return None

    def _changed_lists(self) -> str | None:
        pairs = zip(self.lists, self._lists, strict=True)
        return next((self._named(now) for now, before in pairs if not _same_items(now, before)), None)

    def _named(self, value: Any) -> str:
        return name_of(self._roots, value) or f"a {type(value).__name__}"

    def changed_attributes(self, numbers: Iterable[int]) -> str | None:
        """As `changed`, for the `attributes` with these numbers only."""
        for i in numbers:
            owner, name = self.attributes[i]
            if (now := _value_of(owner, name)) is self._values[i] or same(now, self._values[i]):
                continue
            if name == _CONTENTS:
                return name_of(self._roots, owner) or "a variable of a closure"
            of: str = attribute_of(owner, "__qualname__", type(owner).__name__)
            return name_of(self._roots, owner, name) or f"{name!r} of {of}"
        return None

    def changed_elsewhere(self) -> str | None:
        """As `changed`, only for context variables, the order of dictionaries, sets, arrays and their kind."""
        for variable, value in self._variables:
            if not same(variable.get(_MISSING), value):
                return f"the context variable {variable.name}"
        for table in self._ordered:
            if not all(map(is_, table.items, table.before)):
                return f"the order of {name_of(self._roots, table.items) or table.owner}"
        for value, before in self._others:
            if not _same_contents(value, before):
                return self._named(value)
        return None

    def restore(self) -> str | None:
        """Give everything its value in the snapshot; return what `changed` returned before."""
        if (changed := self.changed()) is None:
            return None
        for table in self.tables:
            table.restore()
        for held, items in zip(self.lists, self._lists, strict=True):
            held[:] = items
        for (owner, name), value in zip(self.attributes, self._values, strict=True):
            if _value_of(owner, name) is not value:
                delattr(owner, name) if value is _MISSING else setattr(owner, name, value)
        for variable, value in self._variables:
            if value is not _MISSING and variable.get(_MISSING) is not value:
                variable.set(value)
        for held, before in self._others:
            if isinstance(held, np.ndarray | bytearray):
                held[:] = before
            else:
                held.clear()
                _filling(held)(before)
        return changed


def _value_of(owner: Any, name: str) -> Any:
    if name == _CONTENTS:
        return contents_of(owner)
    try:  # as `attribute_of`, without its call: there may be thousands
        return getattr(owner, name, _MISSING)
    except Exception:  # noqa: BLE001 - of a user's own `__getattr__`
        return _MISSING


def same(now: Any, before: Any) -> bool:
    """Whether a value is the same object, or an equal constant of the same type, or a tuple of such values."""
    if now is before:
        return True
    if type(now) is not type(before):
        return False
    if isinstance(now, tuple):
        return len(now) == len(before) and all(map(same, now, before))
    if not isinstance(now, CONSTANTS) or not is_opaque(now):
        return False
    return repr(now) == repr(before) if isinstance(now, float | complex) else bool(now == before)  # 0.0 is not -0.0


def _is_setting(name: Any, value: Any) -> bool:
    """Whether it is a public constant, or is missing."""
    return isinstance(name, str) and not name.startswith("_") and (value is _MISSING or is_constant(value))


def _same_items(now: Sequence[Any], before: Sequence[Any]) -> bool:
    return len(now) == len(before) and all(map(same, now, before))


def _same_contents(now: Any, before: Any) -> bool:
    """As `_same_items`, for arrays, deques, sets and their kind."""
    if isinstance(now, deque):
        return _same_items(now, before)
    if isinstance(now, np.ndarray):
        return now.shape == before.shape and now.dtype == before.dtype and bool(now.tobytes() == before.tobytes())
    return bool(now == before)


def _filling(held: Any) -> Callable[[Any], None]:
    fill: Callable[[Any], None] = held.update if isinstance(held, set) else held.extend
    return fill
