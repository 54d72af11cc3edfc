"""The bounded cache: what was not used for longest goes."""

from __future__ import annotations

from collections import OrderedDict

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
