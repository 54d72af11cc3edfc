"""A snapshot of the Python values that functions read besides their arguments, to find later changes.

A captured graph has such values built in: an attribute of a loss module, a closure's variable, a global one.
"""

from __future__ import annotations

import copy
from collections import OrderedDict, deque
from collections.abc import Iterable
from dataclasses import dataclass
from operator import is_
from typing import Any

import numpy as np
from torch import nn

from threadcast.capture.guards.objects import CONSTANTS, contents_of, is_constant, is_opaque, items_of
from threadcast.capture.guards.places import Dictionary, Place
from threadcast.capture.guards.reachable import Reachable

_MISSING = object()
_CONTENTS = "cell_contents"


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """The items of a dictionary that are watched for changes: those with certain names, all where `names` is None."""

    of: Dictionary
    names: frozenset[str] | None
    before: dict[Any, Any]
    constants: bool = True
    """Whether it is a difference that a public constant has become another one, has come or has gone."""
    besides: frozenset[str] = frozenset()
    """Names whose values make no difference."""

    @property
    def items(self) -> dict[Any, Any]:
        """The dictionary."""
        return self.of.items

    def present(self) -> dict[Any, Any]:
        """The watched items, as they are now."""
        return items_of(self.items, self.names)

    def difference(self) -> str | None:
        """The name of the first item that has changed, or of the order of all; None where none has."""
        if not (self.before or dict.__len__(self.items)):
            return None
        now = self.present()
        for name in (name for name in {**self.before, **now} if name not in self.besides):
            one, other = now.get(name, _MISSING), self.before.get(name, _MISSING)
            if not (same(one, other) or (not self.constants and _is_setting(name, one) and _is_setting(name, other))):
                return self.of.called(name)
        ordered = self.names is not None or all(map(is_, now, self.before))
        return None if ordered else f"the order of {self.of.place.name}"

    def restore(self) -> None:
        """Give every watched item the value that it had when the snapshot was taken."""
        now = self.present()
        kind = self.of.holder if isinstance(self.of.holder, type) else None  # its attributes are set with `setattr`
        for name in {**self.before, **now}:
            if same(now.get(name, _MISSING), value := self.before.get(name, _MISSING)):
                continue
            if kind is not None:
                delattr(kind, name) if value is _MISSING else setattr(kind, name, value)
            elif value is _MISSING:
                del self.items[name]
            else:
                self.items[name] = value
        if self.names is None and not all(map(is_, self.items, self.before)):
            self.items.clear()
            self.items.update(self.before)


@dataclass(frozen=True, slots=True, eq=False)
class Container:
    """A list, a deque, a set or an array, and what it held."""

    place: Place
    before: Any

    @classmethod
    def at(cls, place: Place) -> Container:
        """One with what it holds now."""
        held = place.value
        return cls(place, list(held) if isinstance(held, list) else copy.copy(held))

    def difference(self) -> str | None:
        """The name of the container where it holds something else now; else None."""
        now, before = self.place.value, self.before
        if isinstance(now, list | deque):
            alike = len(now) == len(before) and all(map(same, now, before))
        elif isinstance(now, np.ndarray):
            alike = now.shape == before.shape and now.dtype == before.dtype and now.tobytes() == before.tobytes()
        else:
            alike = bool(now == before)
        return None if alike else self.place.name

    def restore(self) -> None:
        """Let it hold again what it held."""
        held = self.place.value
        if isinstance(held, list | np.ndarray | bytearray):
            held[:] = self.before
        else:
            held.clear()
            held.update(self.before) if isinstance(held, set) else held.extend(self.before)


class PythonState:
    """A snapshot of what `roots` (functions and modules) can read besides their arguments, without tensors' values.

    That a public constant of a module in `besides` becomes another one counts as no change. `changed` compares the
    present values with the snapshot. Source of the idea: the guards of `torch.compile`.
    """

    def __init__(self, roots: Iterable[Any], *, besides: nn.Module | None = None) -> None:
        found = Reachable(roots)
        known = set() if besides is None else {id(vars(module)) for module in besides.modules()}
        self.tensors, self.modules, self.names = found.tensors, found.modules, found.read.names
        self.generators = found.generators
        self.unwatchable = found.unwatchable
        """A value that is read but cannot be watched for changes, as text; None where there is none."""
        self.tables = [
            Table(one, names := found.read.of(one), items_of(one.items, names), constants=id(one.items) not in known)
            for one in found.dictionaries
        ]
        self._ordered = [
            table for table in self.tables
            if isinstance(table.items, OrderedDict) and table.names is None and len(table.before) > 1
        ]  # fmt: skip
        """Dictionaries whose order can change alone, which their counters of changes do not show."""
        self.caches = found.caches
        """The caches of functions (`functools.lru_cache`)."""
        containers = [Container.at(place) for place in found.containers]
        self._lists = [one for one in containers if isinstance(one.place.value, list)]
        self._others = [one for one in containers if not isinstance(one.place.value, list)]
        self.lists = [one.place.value for one in self._lists]
        self._variables = [(variable, variable.get(_MISSING)) for variable in found.variables]
        self.reads_elsewhere = bool(self._variables or self._ordered or self._others)
        """Whether `changed_elsewhere` has anything to look at."""
        self._attributes = found.attributes
        self.attributes = [(place.value, name) for place, name in found.attributes]
        """Pairs of an owner and the name of an attribute that is not stored in a dictionary."""
        self._values = [_value_of(owner, name) for owner, name in self.attributes]
        self._modules = {id(module): found.places[id(module)] for module in found.modules}

    def name_of(self, module: nn.Module, key: str) -> str | None:
        """What a user calls something that a module holds; None for a module that was not found."""
        place = self._modules.get(id(module))
        return None if place is None else Place(None, key, place).name

    def changed(self) -> str | None:
        """The name of the first value that differs from the snapshot; None where all are the same."""
        attributes = self.changed_attributes(range(len(self.attributes)))
        held = self.changed_in([*self.tables, *self._lists])
        return held or attributes or self.changed_elsewhere()

    def changed_in(self, held: Iterable[Table | Container]) -> str | None:
        """As `changed`, for these only."""
        return next(filter(None, (one.difference() for one in held)), None)

    def changed_attributes(self, numbers: Iterable[int]) -> str | None:
        """As `changed`, for the `attributes` with these numbers only."""
        for i in numbers:
            owner, name = self.attributes[i]
            if (now := _value_of(owner, name)) is not self._values[i] and not same(now, self._values[i]):
                place = self._attributes[i][0]
                return place.name if name == _CONTENTS else Place(None, name, place).name
        return None

    def changed_elsewhere(self) -> str | None:
        """As `changed`, only for context variables, the order of dictionaries, sets, arrays and their kind."""
        for variable, value in self._variables:
            if not same(variable.get(_MISSING), value):
                return f"the context variable {variable.name}"
        for table in self._ordered:
            if not all(map(is_, table.items, table.before)):
                return f"the order of {table.of.place.name}"
        return self.changed_in(self._others)

    def restore(self) -> str | None:
        """Give everything its value in the snapshot; return what `changed` returned before."""
        if (changed := self.changed()) is None:
            return None
        for table in self.tables:
            table.restore()
        for container in (*self._lists, *self._others):
            container.restore()
        for (owner, name), value in zip(self.attributes, self._values, strict=True):
            if _value_of(owner, name) is not value:
                delattr(owner, name) if value is _MISSING else setattr(owner, name, value)
        for variable, value in self._variables:
            if value is not _MISSING and variable.get(_MISSING) is not value:
                variable.set(value)
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
