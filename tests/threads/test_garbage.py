"""No garbage is collected within the context, and the collector is afterwards as the user had it."""

from __future__ import annotations

import gc

import pytest

from threadcast.threads.garbage import without_garbage_collection


@pytest.mark.parametrize("enabled", [True, False])
def test_the_collector_is_off_and_then_as_it_was(enabled: bool) -> None:
    before = gc.isenabled()
    (gc.enable if enabled else gc.disable)()
    try:
        with without_garbage_collection():
            assert not gc.isenabled()
        assert gc.isenabled() is enabled
    finally:
        (gc.enable if before else gc.disable)()
