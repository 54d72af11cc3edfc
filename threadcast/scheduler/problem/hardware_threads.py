"""Finds which hardware threads of its cores an op uses; for launches, running ops and placements alike."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol


class OnCores(Protocol):
    """An op with its cores, its thread count and its first hardware thread on each core."""

    @property
    def cores(self) -> tuple[int, ...]: ...
    @property
    def threads(self) -> int: ...
    @property
    def hardware_thread(self) -> int: ...


def hardware_threads(op: OnCores) -> range:
    """Return the numbers of the hardware threads that `op` uses on each of its cores: ceil(threads / cores) of them."""
    return range(op.hardware_thread, op.hardware_thread - (-op.threads // len(op.cores)))


def may_share_cores(op: OnCores) -> bool:
    """Return whether `op` uses other hardware threads than the first of a core, so that ops may share its cores."""
    return op.hardware_thread > 0 or op.threads > len(op.cores)


def any_shares_cores(ops: Iterable[OnCores]) -> bool:
    """Return whether any of `ops` may share a core; if not, each core runs one op at a time."""
    return any(may_share_cores(op) for op in ops)
