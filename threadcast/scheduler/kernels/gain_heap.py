"""A binary heap of ops by gain, for compiled loops: of equal gains the lower op comes first, as in `heapq` of pairs.

`heapq` itself takes numba a second longer to compile.
"""

from __future__ import annotations

from typing import NamedTuple

from threadcast.scheduler.kernels.compiled import helper, inlined
from threadcast.scheduler.kernels.instance import Floats, Ints


class GainHeap(NamedTuple):
    """The heap: its entries are the first `size[0]` of `gain` and `op`, which have room for all ops."""

    gain: Floats
    op: Ints
    size: Ints


@helper
def add(heap: GainHeap, gain: float, op: int) -> None:
    """Add an op, which must not be in the heap."""
    i = heap.size[0]
    heap.size[0] += 1
    while i > 0:
        parent = (i - 1) // 2
        if not _is_before(gain, op, heap.gain[parent], heap.op[parent]):
            break
        heap.gain[i], heap.op[i] = heap.gain[parent], heap.op[parent]
        i = parent
    heap.gain[i], heap.op[i] = gain, op


@helper
def take_first(heap: GainHeap) -> int:
    """Remove the op of least gain from the heap, which must not be empty, and return it."""
    first = int(heap.op[0])
    heap.size[0] -= 1
    size = heap.size[0]
    gain, op = heap.gain[size], heap.op[size]
    i = 0
    while True:
        child = 2 * i + 1
        if child >= size:
            break
        other = child + 1
        if other < size and _is_before(heap.gain[other], heap.op[other], heap.gain[child], heap.op[child]):
            child = other
        if not _is_before(heap.gain[child], heap.op[child], gain, op):
            break
        heap.gain[i], heap.op[i] = heap.gain[child], heap.op[child]
        i = child
    heap.gain[i], heap.op[i] = gain, op
    return first


@inlined
def _is_before(gain: float, op: int, other_gain: float, other_op: int) -> bool:
    return gain < other_gain or (gain == other_gain and op < other_op)
