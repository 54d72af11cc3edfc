"""Finds out before each call whether a function would still return what it returned before for the same arguments."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any

from torch import nn

from threadcast.runtime.backends.weight_versions import WeightVersions
from threadcast.runtime.watching.model import Watch


class Change(Enum):
    """What has changed of all that a function reads besides its arguments."""

    NONE = "nothing"
    VALUES = "values: tensors were written to, or a number, a text, a mode or a hook of a module has changed"
    OBJECTS = "objects: a tensor, a layer or another value was replaced by another"


class HeldState:
    """Compares what `function` (a module or a plain function) reads besides its arguments with its state at the start.

    These are parameters, buffers, layers, attributes, globals and variables of closures. A write by way of `.data` or
    NumPy that changes few elements may be missed (`WeightVersions`). `unwatchable` says why changes cannot be found.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        model = function if isinstance(function, nn.Module) else nn.Module()
        self._watch = Watch(model, functions=(function,))
        self._before = self._observed()[1]
        self._tensors = self._watch.tensors
        self.unwatchable = ""
        if not self._watch.watchable:
            self.unwatchable = "the function reads values that cannot be watched for changes"
        elif any(tensor.is_inference() for tensor in self._tensors):
            self.unwatchable = "tensors made under torch.inference_mode do not count writes to them"
        else:
            self._versions = WeightVersions(self._tensors)

    def changed(self) -> Change:
        """Return what has changed since the last call of this, or since the start. Only where `unwatchable` is empty.

        After `Change.OBJECTS` this object is out of date.
        """
        replaced, now = self._observed()
        if replaced:
            return Change.OBJECTS
        set_otherwise, self._before = now != self._before, now
        written = not self._versions.unchanged()
        if written:
            self._versions = WeightVersions(self._tensors)
        return Change.VALUES if written or set_otherwise else Change.NONE

    def follow_moves(self) -> None:
        """Expect all tensors where they are in memory now: a call may have changed their memory format."""
        self._watch.follow_moves()

    def _observed(self) -> tuple[bool, tuple[Any, ...]]:
        """Whether any object was replaced, and all settings and the owner of hooks."""
        now = self._watch.observe()
        return now.changed or not self._watch.watchable, (now.hooked, now.settings)
