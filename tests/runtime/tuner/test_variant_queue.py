"""Which variants of a graph are searched, and in which order."""

from __future__ import annotations

from threadcast.runtime.plans.variant import MemoryFormat, Variant
from threadcast.runtime.tuning.variant_queue import VariantQueue

AS_GIVEN, CHANNELS_LAST = map(Variant, MemoryFormat)
FUSED = Variant(MemoryFormat.AS_GIVEN, fused=True)


def test_all_formats_come_and_then_the_fastest_fused() -> None:
    queue = VariantQueue(list(MemoryFormat), fuse=True)
    for variant, step_s in ((AS_GIVEN, 2.0), (CHANNELS_LAST, 1.0)):
        assert queue.next() == variant
        queue.add(variant, step_s)
    fused = Variant(MemoryFormat.CHANNELS_LAST, fused=True)
    assert queue.next() is None
    assert queue.fused() == fused
    queue.no_fused()
    queue.add(fused, 1.5)
    assert queue.fused() is None
    assert queue.planned == (CHANNELS_LAST, fused, AS_GIVEN)
    queue.drop(CHANNELS_LAST)
    queue.drop(CHANNELS_LAST)
    assert queue.planned == (fused, AS_GIVEN)


def test_nothing_is_fused_where_no_variant_has_a_plan() -> None:
    queue = VariantQueue([MemoryFormat.AS_GIVEN], fuse=True)
    assert queue.next() == AS_GIVEN
    assert queue.next() is None
    assert queue.fused() is None


def test_beside_a_known_plan_only_fused_operators_may_be_tried() -> None:
    for variant, fuse, wanted in ((AS_GIVEN, True, True), (AS_GIVEN, False, False), (FUSED, True, False)):
        queue = VariantQueue(list(MemoryFormat), fuse=True)
        queue.known(variant, 1.0, fuse=fuse)
        assert queue.next() is None
        assert queue.fused() == (FUSED if wanted else None)
