"""How many files this process may still open; perf events need one for every event and thread."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager

RESERVE = 64
"""Descriptors that are left for everything else that the process may open meanwhile."""


@contextmanager
def room_for_descriptors(count: int) -> Iterator[int]:
    """The number of descriptors that may be opened inside the block, `count` where the hard limit allows it.

    Inside the block the soft limit (`ulimit -n`) is raised as far as needed and allowed; afterwards it is as before.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    missing = count - _free(soft)
    ceiling = soft + missing if hard == resource.RLIM_INFINITY else min(soft + missing, hard)
    raised = missing > 0 and ceiling > soft
    if raised:
        resource.setrlimit(resource.RLIMIT_NOFILE, (ceiling, hard))
    try:
        yield max(0, min(count, _free(ceiling if raised else soft)))
    finally:
        if raised:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def _free(limit: int) -> int:
    """New descriptors have numbers below the limit, and get the lowest that is free."""
    return limit - RESERVE - sum(int(name) < limit for name in os.listdir("/proc/self/fd"))
