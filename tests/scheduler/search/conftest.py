"""Searches that end soon by themselves."""

from __future__ import annotations

import pytest

from threadcast.scheduler.search import core_layout, search


@pytest.fixture
def few_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Annealing ends after a tenth of its moves, so that searches of any budget are short and find the same everywhere.

    Their plans are up to 1 % longer.
    """
    monkeypatch.setattr(search, "ANNEALING_S", search.ANNEALING_S / 10)
    monkeypatch.setattr(core_layout, "MOVES_S", core_layout.MOVES_S / 10)
