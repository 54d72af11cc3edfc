"""A stand-in for what decides what runs programs of `torch.compile`."""

from __future__ import annotations

from typing import Any

from threadcast.runtime.compiled.whole_calls import Turn, WholeCalls
from threadcast.runtime.plans.variant import MemoryFormat

layouts: dict[WholeCalls, MemoryFormat] = {}
"""Of programs that are not to run as given."""


def by_the_graphs(calls: WholeCalls, *_: object, **__: Any) -> Turn:
    """In place of `WholeCalls.next_turn`: graphs run in all calls, which may be slower than eager PyTorch."""
    return Turn(layouts.get(calls, MemoryFormat.AS_GIVEN))
