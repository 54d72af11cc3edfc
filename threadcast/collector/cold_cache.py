"""Emptying the caches of an op's data before each run, for cold timings."""

from __future__ import annotations

from collections.abc import Callable

from threadcast.core.machine import Machine

UNKNOWN_CACHE_BYTES = 64 * 2**20
"""Assumed size of all caches together where the machine does not say that of some: more than most have."""

_FLOAT_BYTES = 4


def eviction_bytes(machine: Machine, cores: tuple[int, ...]) -> int:
    """Bytes that threads on these core ids must stream together so that no other data stay in any of their caches.

    The threads stream equal parts, so each must fill twice its share of the largest cache that it uses: some lines
    survive a single filling where caches are not inclusive, or do not strictly replace the oldest line first.
    """
    used = [cache for cache in machine.caches if not set(cores).isdisjoint(cache.cores)]
    shares = [cache.size_bytes / sum(core in cache.cores for core in cores) for cache in used]
    if not all(shares):  # a size of 0 is not known
        shares.append(UNKNOWN_CACHE_BYTES / len(cores))
    return round(2 * max(shares, default=UNKNOWN_CACHE_BYTES / len(cores)) * len(cores))


def make_evictor(machine: Machine, cores: tuple[int, ...]) -> Callable[[], None]:
    """Return a function that streams a buffer of its own through the caches.

    Call this and the function in the leader of the op's team: the whole team streams, since the private caches of its
    workers hold the op's data too.
    """
    import torch

    buffer = torch.zeros(eviction_bytes(machine, cores) // _FLOAT_BYTES)

    def evict() -> None:
        buffer.add_(1.0)

    return evict
