"""Identifies what runs a call: the default, a plan for a graph variant, eager in a memory format, or a backend."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from threadcast.runtime.plans.variant import MemoryFormat, Variant


class Kind(Enum):
    """The kinds of contenders."""

    DEFAULT = "default"
    """The caller's own function or step, as it runs without threadcast."""
    PLAN = "plan"
    """A plan, run by an engine."""
    EAGER = "eager"
    """The default in another memory format."""
    BACKEND = "backend"
    """The whole model on another runtime."""


@dataclass(frozen=True, slots=True)
class ContenderId:
    """Identifies a contender; `str` returns the name that reports print.

    Only a plan has a `variant`, only eager PyTorch a `memory_format`, only a backend a `backend`: its name and setting.
    """

    kind: Kind
    variant: Variant | None = None
    memory_format: MemoryFormat | None = None
    backend: str = ""

    def __str__(self) -> str:
        details = {Kind.PLAN: self.variant, Kind.EAGER: self.memory_format}
        if self.kind is Kind.BACKEND:
            return self.backend
        return f"{self.kind.value}, {details[self.kind]}" if self.kind in details else self.kind.value


DEFAULT = ContenderId(Kind.DEFAULT)


def plan_of(variant: Variant) -> ContenderId:
    """Return the id of the best plan of this variant."""
    return ContenderId(Kind.PLAN, variant=variant)


def eager_in(memory_format: MemoryFormat) -> ContenderId:
    """Return the id of the default with its tensors in this memory format."""
    return ContenderId(Kind.EAGER, memory_format=memory_format)


def backend(name: str) -> ContenderId:
    """Return the id of the backend of this name."""
    return ContenderId(Kind.BACKEND, backend=name)
