"""The operators of a captured program that ones of our own are faster than on this machine."""

from __future__ import annotations

from threadcast.capture.graph.captured import Captured
from threadcast.runtime.operators.pools import with_pools
from threadcast.runtime.operators.products import with_products


def with_faster_operators(captured: Captured) -> Captured:
    """Return `captured` with operators of our own in place of slower ones; `captured` itself where there are none.

    Products of matrices (`products`), and pools of images (`pools`). The first call on a machine may compile the native
    engine.
    """
    return with_pools(with_products(captured))
