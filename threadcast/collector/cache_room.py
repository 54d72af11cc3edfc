"""How many bytes must be used between two runs of an op so that none of its data is in a cache."""

from __future__ import annotations

from threadcast.core.machine import Machine

UNKNOWN_CACHE_BYTES = 64 * 2**20
"""Assumed size of all caches together where the machine does not say that of some: more than most have."""


def eviction_bytes(machine: Machine, cores: tuple[int, ...]) -> int:
    """Bytes that threads on these core ids must use together so that no other data stay in any of their caches.

    The threads use equal parts, so each must fill twice its share of the largest cache that it uses: some lines
    survive a single filling where caches are not inclusive, or do not strictly replace the oldest line first.
    """
    used = [cache for cache in machine.caches if not set(cores).isdisjoint(cache.cores)]
    shares = [cache.size_bytes / sum(core in cache.cores for core in cores) for cache in used]
    if not all(shares):  # a size of 0 is not known
        shares.append(UNKNOWN_CACHE_BYTES / len(cores))
    return round(2 * max(shares, default=UNKNOWN_CACHE_BYTES / len(cores)) * len(cores))
