"""Processes keep the cores that they have, get whole cache groups where it can be, and nobody gets another's."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from threadcast.core import Machine
from threadcast.scheduler.malleable.placement import place

EIGHT = Machine.uniform("eight", 8, group_size=4)


def test_groups_are_kept_whole():
    found = place({"a": 4, "b": 4}, EIGHT, {})
    assert sorted(found.values()) == [(0, 1, 2, 3), (4, 5, 6, 7)]


def test_cores_are_kept_and_given_up_where_a_process_has_fewest_of_a_group():
    assert place({"a": 4, "b": 2}, EIGHT, {"a": (0, 1, 2, 3, 4)}) == {"a": (0, 1, 2, 3), "b": (4, 5)}
    assert place({"a": 3}, EIGHT, {"a": (0, 4, 5)}) == {"a": (0, 4, 5)}


def test_further_cores_come_from_groups_where_a_process_has_some():
    assert place({"a": 3}, EIGHT, {"a": (4,)}) == {"a": (4, 5, 6)}


def test_more_processes_than_cores_share_by_turns():
    two = Machine.uniform("two", 2)
    found = place(dict.fromkeys("abc", 1), two, {"c": (0,)})
    assert found["c"] == (0,)
    assert sorted(core for cores in found.values() for core in cores) in ([0, 0, 1], [0, 1, 1])


@given(
    st.lists(st.integers(1, 3), min_size=1, max_size=6),
    st.lists(st.frozensets(st.integers(0, 9), max_size=5), min_size=6, max_size=6),
)
@settings(max_examples=100, deadline=None)
def test_everybody_gets_as_many_as_counted_and_no_core_twice(counts, had):
    names = "abcdef"[: len(counts)]
    asked = dict(zip(names, counts, strict=True))
    if sum(counts) > len(EIGHT):
        return
    found = place(asked, EIGHT, dict(zip(names, had, strict=False)))
    assert {name: len(cores) for name, cores in found.items()} == asked
    given_out = [core for cores in found.values() for core in cores]
    assert len(set(given_out)) == len(given_out)
