"""Where a scheduler gets its curves: one interface, in process or over HTTP."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from threadcast.core import Case, CurveTable, Machine, Op


@runtime_checkable
class Predictor(Protocol):
    """Gives the curves of ops at the cases of one machine."""

    machine: Machine

    def curves(self, ops: Sequence[Op], *, cases: Sequence[Case] | None = None) -> CurveTable:
        """Return one row an op over `cases` (None: all of the machine's); raises within its deadline or not at all."""
        ...
