"""Runs an op on other data each time, so that it finds the caches as it does in the middle of a step.

An op that is repeated on the same tensors finds them in the cache. In a step it does not: weights and saved activations
were last used many ops ago. So copies of the inputs are used in turn, and outputs are held for a while so that new ones
get other memory. Before the first copy is used again, enough other bytes have been used to push it out of the caches.
Benchmarks of linear algebra call this rotating buffers.
"""

from __future__ import annotations

import math
import mmap
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from itertools import cycle
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from threadcast.collector.index_values import draw_indices
from threadcast.collector.operators import PreparedOp
from threadcast.collector.tensor_memory import all_memory

MAX_COPIES = 256
"""Most copies of small tensors: a step does not push them out of every cache either, and copying more would take
longer than timing."""

_MOST_BYTES_TAKEN = 1 << 30
"""Most memory that is taken for outputs before the first run, unless those that are held need more: 2 to 14 times an
output is usual."""
_MOST_TURNS, _MOST_OUTPUTS = 32, 1 << 13
"""Most often that memory is taken for each output that is held, after the first time, and for all outputs together."""

_Call = tuple[tuple[Any, ...], Mapping[str, Any]]


class RotatedOp:
    """Runs `prepared` on copies of its tensors in turn.

    The copies have at least `bytes_between` bytes together, or less where that would take more than MAX_COPIES copies.
    Each has indices of its own, and as many have as runs then use at least `bytes_between` bytes of a larger table.
    Create it on the thread that calls `run`, inside `program.below_autograd()`: the constructor runs the op once.
    """

    def __init__(self, prepared: PreparedOp, bytes_between: int) -> None:
        leaves, structure = pytree.tree_flatten((prepared.args, dict(prepared.kwargs)))
        tensors = {id(leaf): leaf for leaf in leaves if isinstance(leaf, Tensor)}
        self._target = prepared.target
        inputs = _storages(tensors.values())
        outputs = _storages(pytree.tree_leaves(self._target(*prepared.args, **prepared.kwargs)))
        new = {address: size for address, size in outputs.items() if address not in inputs}
        prepared.reset()
        copies = [tensors]
        self._written = list(prepared.written)
        for _ in range(_rounds(bytes_between, sum(inputs.values())) - 1):
            copies.append({name: _copy(tensor) for name, tensor in tensors.items()})
            self._written += [(copies[-1][id(tensor)], first) for tensor, first in prepared.written]
        turns = len(copies)
        drawn = {index.untyped_storage().data_ptr() for index, _ in prepared.indices}
        tables = [size for address, size in inputs.items() if address not in drawn]
        if drawn and tables:  # A run may use some rows only of the largest tensor.
            used = sum(inputs.values()) - max(tables) + sum(new.values())
            turns *= math.ceil(_rounds(bytes_between, used) / turns)
        generator = torch.Generator().manual_seed(prepared.seed)
        self._calls: list[_Call] = [(prepared.args, prepared.kwargs)]
        for turn in range(1, turns):
            of_turn = copies[turn % len(copies)] | {
                id(index): _drawn(index, limit, generator) for index, limit in prepared.indices
            }
            self._calls.append(pytree.tree_unflatten([of_turn.get(id(leaf), leaf) for leaf in leaves], structure))
        # Not a generator method: it and this object would refer to each other, and keep the copies in memory for long.
        self._turns = cycle(self._calls)
        self._runs = 0
        self._held: deque[Any] = deque(maxlen=_rounds(bytes_between, sum(new.values())))
        self._take_memory(list(new.values()))

    @property
    def copies(self) -> int:
        """How many sets of input tensors are used in turn; a table that indices point into may be in several."""
        return len(self._calls)

    def run(self) -> None:
        """Execute the op once, on the next copy."""
        self._runs += 1
        args, kwargs = next(self._turns)
        self._held.append(self._target(*args, **kwargs))

    def _take_memory(self, sizes: Sequence[int]) -> None:
        """Hold memory for outputs of these sizes, as runs will, until the C library gives only what it gave before.

        Runs whose outputs get memory new to the process would be timed with the system's page faults. Holding enough
        memory once does not prevent that: the C library cuts an aligned block out of a larger one and may give an end
        of that to others, so that the freed block is too small for the next output of its size.
        """
        in_turn = self._held.maxlen or 1
        most = max((in_turn + 1) * sum(sizes), _MOST_BYTES_TAKEN)
        taken = repeats = 0
        used: set[int] = set()
        for _ in range(in_turn + min(_MOST_TURNS * in_turn, _MOST_OUTPUTS // max(len(sizes), 1))):
            if repeats > in_turn + 2 or taken > most:
                break
            outputs = [torch.empty(size, dtype=torch.uint8) for size in sizes]
            new = [one for one in outputs if one.nbytes >= mmap.PAGESIZE and one.data_ptr() not in used]
            repeats = 0 if new else repeats + 1
            for output in new:
                output.zero_()
                used.add(output.data_ptr())
                taken += output.nbytes
            self._held.append(outputs)

    def reset(self) -> None:
        """Restore the first values of tensors that runs change, if every copy has been used since the last time."""
        if self._runs >= len(self._calls):
            for tensor, first in self._written:
                tensor.copy_(first)
            self._runs = 0


def _rounds(bytes_between: int, of_one: int) -> int:
    """How many sets of `of_one` bytes have `bytes_between` bytes together; 1 where they have none."""
    return max(1, min(math.ceil(bytes_between / of_one), MAX_COPIES)) if of_one else 1


def _storages(values: Iterable[Any]) -> dict[int, int]:
    """The bytes of the memory of the tensors among the values, by its address."""
    storages = [value.untyped_storage() for value in values if isinstance(value, Tensor)]
    return {storage.data_ptr(): storage.nbytes() for storage in storages}


def _drawn(index: Tensor, limit: int, generator: torch.Generator) -> Tensor:
    drawn = _copy(index)
    draw_indices(drawn, limit, generator)
    return drawn


def _copy(tensor: Tensor) -> Tensor:
    """The tensor in memory of its own with the same strides."""
    return all_memory(tensor).clone().as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
