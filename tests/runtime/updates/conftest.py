"""Fixtures of the tests of optimizers' steps."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tests.runtime.updates.pairs import Clock
from threadcast.runtime.engine.native.library import native_library
from threadcast.runtime.updates.fused_updates import FusedUpdates


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def updates(clock: Clock) -> Iterator[FusedUpdates]:
    assert native_library() is not None
    found = FusedUpdates(clock=clock)
    yield found
    found.close()
