"""The bounded cache: what was not used for longest goes."""

from __future__ import annotations

import os
from collections import OrderedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from threadcast.prediction.lru_cache import LruCache


@given(st.integers(1, 4), st.lists(st.tuples(st.sampled_from("pg"), st.integers(0, 6)), max_size=60))
def test_it_holds_what_was_used_last(most: int, uses: list[tuple[str, int]]) -> None:
    cache, used_last = LruCache[int, int](most), OrderedDict[int, int]()
    for number, (use, key) in enumerate(uses):
        if use == "p":
            cache.put(key, number)
            used_last.pop(key, None)
            used_last[key] = number
            while len(used_last) > most:
                used_last.popitem(last=False)
        else:
            assert cache.get(key) == used_last.get(key)
            if key in used_last:
                used_last.move_to_end(key)
    assert len(cache) == len(used_last)
    assert cache.get_many(range(7)) == dict(used_last)


def test_what_is_not_wanted_is_dropped() -> None:
    cache = LruCache[int, str](9)
    for number in range(4):
        cache.put(number, "")
    cache.drop(lambda number: number % 2 == 0)
    assert [number for number in range(4) if cache.get(number) is not None] == [1, 3]


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_child_that_was_forked_while_the_lock_was_held_can_use_it() -> None:
    cache = LruCache[str, int](1)
    cache.put("a", 1)
    with cache._lock:
        child = os.fork()
        if child == 0:
            os._exit(0 if cache.get("a") == 1 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
