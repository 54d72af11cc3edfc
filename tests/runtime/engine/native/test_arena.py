"""Tensors lie in a region of their own: nothing overlaps, whatever comes and goes, in any thread and in forks."""

from __future__ import annotations

import os
import random
from concurrent.futures import ThreadPoolExecutor

import torch

from tests.runtime.compiler import needs_compiler
from threadcast.runtime.engine.native.library import native_library, return_free_memory

pytestmark = needs_compiler


def come_and_go(seed: int, rounds: int = 400) -> bool:
    """Make and drop tensors of all sizes, each full of a number of its own; whether all still were when dropped."""
    chance = random.Random(seed)
    living: list[tuple[float, torch.Tensor]] = []
    whole = True
    for number in range(rounds):
        size = chance.choice([1, 100, 4095, 4096, 5000, 40_000, 300_000])
        living.append((seed * 1e4 + number, torch.full((size,), seed * 1e4 + number)))
        if number % 50 == 0:
            return_free_memory()
        while len(living) > chance.randrange(1, 20):
            value, tensor = living.pop(chance.randrange(len(living)))
            whole = whole and bool((tensor == value).all())
    return whole and all(bool((tensor == value).all()) for value, tensor in living)


def test_tensors_do_not_overlap() -> None:
    native_library()
    assert come_and_go(1, rounds=2000)


def test_threads_share_the_region() -> None:
    native_library()
    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(come_and_go, range(4)))


def test_large_tensors_lie_in_the_region_and_small_ones_do_not() -> None:
    native_library()
    large = [torch.empty(1 << 20) for _ in range(2)]
    small = torch.empty(8)
    assert abs(large[0].data_ptr() - large[1].data_ptr()) < 1 << 32
    assert all(tensor.data_ptr() % 64 == 0 for tensor in large)
    assert abs(small.data_ptr() - large[0].data_ptr()) > 1 << 22


def test_a_fork_has_the_region_too() -> None:
    native_library()
    before = torch.arange(100_000.0)
    child = os.fork()
    if child == 0:
        torch.set_num_threads(1)  # libgomp's own pool does not come along
        fine = come_and_go(2, rounds=50) and torch.equal(before, torch.arange(100_000.0))
        os._exit(0 if fine else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
