"""Processes keep the cores that they have, get whole cache groups where it can be, and nobody gets another's."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_array
from scipy.sparse.csgraph import maximum_bipartite_matching

from threadcast.core import Machine
from threadcast.malleable.placement import place

EIGHT = Machine.uniform("eight", 8, group_size=4)


def test_groups_are_kept_whole():
    found = place({"a": 4, "b": 4}, EIGHT, {})
    assert sorted(found.values()) == [(0, 1, 2, 3), (4, 5, 6, 7)]


def test_cores_are_kept_and_given_up_where_a_process_has_fewest_of_a_group():
    assert place({"a": 4, "b": 2}, EIGHT, {"a": (0, 1, 2, 3, 4)}) == {"a": (0, 1, 2, 3), "b": (4, 5)}
    assert place({"a": 3}, EIGHT, {"a": (0, 4, 5)}) == {"a": (0, 4, 5)}
    assert place({"a": 3}, EIGHT, {"a": (4,)}) == {"a": (4, 5, 6)}, "further ones are of its group"


def test_more_processes_than_cores_share_by_turns():
    two = Machine.uniform("two", 2)
    found = place(dict.fromkeys("abc", 1), two, {"c": (0,)})
    assert found["c"] == (0,)
    assert sorted(core for cores in found.values() for core in cores) in ([0, 0, 1], [0, 1, 1])


def test_a_process_gets_only_cores_that_it_may_use_and_others_make_room():
    assert place({"a": 1, "b": 1}, EIGHT, {"b": (0,)}, {"a": {0}}) == {"a": (0,), "b": (1,)}
    assert place({"a": 2, "b": 2}, EIGHT, {}, {"a": {6, 7}, "b": {7, 0, 1}})["a"] == (6, 7)
    room_by_two = place({"a": 1, "b": 1, "c": 1}, EIGHT, {"b": (0,), "c": (1,)}, {"a": {0}, "b": {0, 1}, "c": {1, 2}})
    assert room_by_two == {"a": (0,), "b": (1,), "c": (2,)}


def test_processes_that_may_use_the_same_few_cores_share_them_evenly():
    assert sorted(place({"a": 2, "b": 2}, EIGHT, {}, {"a": {0, 1}, "b": {0, 1}}).values()) == [(0,), (1,)]
    assert place({"a": 1, "b": 1}, EIGHT, {}, {"a": {3}, "b": {3}}) == {"a": (3,), "b": (3,)}
    assert place({"a": 8}, EIGHT, {}, {"a": {99}}) == {"a": tuple(range(8))}, (
        "it may use none, and is placed like others"
    )


@given(
    st.lists(st.integers(1, 3), min_size=1, max_size=6),
    st.lists(
        st.just(frozenset(range(8))) | st.frozensets(st.integers(0, 7), min_size=1, max_size=5), min_size=6, max_size=6
    ),
    st.lists(st.frozensets(st.integers(0, 9), max_size=5), min_size=6, max_size=6),
)
@settings(max_examples=200, deadline=None)
def test_as_many_cores_as_can_be_go_to_processes_that_may_use_them(counts, may, had):
    names = "abcdef"[: len(counts)]
    if sum(counts) > len(EIGHT):
        return
    allowed = dict(zip(names, may, strict=False))
    found = place(dict(zip(names, counts, strict=True)), EIGHT, dict(zip(names, had, strict=False)), allowed)
    slots = [name for name, count in zip(names, counts, strict=True) for _ in range(count)]
    pairs = csr_array(np.array([[core in allowed[name] for core in range(8)] for name in slots]))
    given_out = [core for cores in found.values() for core in cores]
    for name, count in zip(names, counts, strict=True):
        assert len(found[name]) <= count
        assert allowed[name].issuperset(found[name])
    assert len(set(given_out)) == int((maximum_bipartite_matching(pairs) >= 0).sum())
