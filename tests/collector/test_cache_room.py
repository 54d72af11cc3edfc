"""How many bytes empty the caches."""

from __future__ import annotations

from threadcast.collector.cache_room import UNKNOWN_CACHE_BYTES, eviction_bytes
from threadcast.core.machine import Cache, Core, Machine

MIB = 2**20
TWO_SOCKETS = Machine(
    "two sockets",
    tuple(Core(i, (i,), group=i // 2, socket=i // 2) for i in range(4)),
    (*(Cache(2, MIB, (i,)) for i in range(4)), Cache(3, 16 * MIB, (0, 1)), Cache(3, 16 * MIB, (2, 3))),
)


def test_threads_of_one_cache_fill_it_twice_together():
    assert eviction_bytes(TWO_SOCKETS, (0,)) == eviction_bytes(TWO_SOCKETS, (0, 1)) == 32 * MIB


def test_every_last_cache_in_use_is_filled():
    assert eviction_bytes(TWO_SOCKETS, (0, 2)) == 2 * 32 * MIB
    assert eviction_bytes(TWO_SOCKETS, (0, 1, 2)) == 3 * 32 * MIB  # core 2 has a cache to itself; parts are equal


def test_private_caches_are_filled_where_they_are_larger_than_a_share():
    big = Machine("big private", TWO_SOCKETS.cores, (*(Cache(2, 20 * MIB, (i,)) for i in range(4)),))
    assert eviction_bytes(big, (0, 1)) == 2 * 40 * MIB


def test_without_known_caches_a_large_one_is_assumed_and_not_one_for_every_core():
    machine = Machine.uniform("unknown", 64)
    assert eviction_bytes(machine, (0,)) == eviction_bytes(machine, tuple(range(64))) == 2 * UNKNOWN_CACHE_BYTES


def test_a_cache_of_unknown_size_is_taken_to_be_large():
    """The kernel lists caches without their sizes on some Arm machines and in some virtual ones."""
    alone = Machine("m", (Core(0, (0,), 0),), (Cache(1, 0, (0,)),))
    assert eviction_bytes(alone, (0,)) == 2 * UNKNOWN_CACHE_BYTES
    last = Machine("last", TWO_SOCKETS.cores, (*(Cache(2, MIB, (i,)) for i in range(4)), Cache(3, 0, (0, 1, 2, 3))))
    assert eviction_bytes(last, (0,)) == eviction_bytes(last, (0, 1, 2, 3)) == 2 * UNKNOWN_CACHE_BYTES
    half = Machine("half", TWO_SOCKETS.cores, (Cache(3, 16 * MIB, (0, 1)), Cache(3, 0, (2, 3))))
    assert eviction_bytes(half, (0, 1)) == 32 * MIB, "one that is not used changes nothing"
