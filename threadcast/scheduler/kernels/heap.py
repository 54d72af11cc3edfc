"""A binary heap of ops in two arrays, for compiled loops: `keys[0]` is the least key and `ops[0]` its op.

The caller keeps the number of entries.
"""

from __future__ import annotations

from threadcast.scheduler.kernels.compiled import helper
from threadcast.scheduler.kernels.instance import Floats, Ints


@helper
def push(keys: Floats, ops: Ints, count: int, key: float, op: int) -> int:
    """Add `op` to a heap of `count` entries; return the new number of entries."""
    i = count
    while i > 0:
        parent = (i - 1) // 2
        if keys[parent] <= key:
            break
        keys[i], ops[i] = keys[parent], ops[parent]
        i = parent
    keys[i], ops[i] = key, op
    return count + 1


@helper
def drop_first(keys: Floats, ops: Ints, count: int) -> int:
    """Remove the op of least key from a heap of `count` entries; return the new number of entries."""
    count -= 1
    key, op = keys[count], ops[count]
    i = 0
    while True:
        child = 2 * i + 1
        if child >= count:
            break
        if child + 1 < count and keys[child + 1] < keys[child]:
            child += 1
        if keys[child] >= key:
            break
        keys[i], ops[i] = keys[child], ops[child]
        i = child
    keys[i], ops[i] = key, op
    return count
