"""Fixtures of the tests of optimizers' steps."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from threadcast.runtime.engine.native.library import native_library
from threadcast.runtime.updates import fused_fit
from threadcast.runtime.updates.fused_updates import FusedUpdates


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def updates(monkeypatch: pytest.MonkeyPatch) -> Iterator[FusedUpdates]:
    """Updates of however few parameters."""
    assert native_library() is not None
    monkeypatch.setattr(fused_fit, "FEW", dict.fromkeys(fused_fit.FEW, 0))
    found = FusedUpdates()
    yield found
    found.close()
