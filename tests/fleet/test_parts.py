"""Which machine measures which ops."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from threadcast.core import Op, TensorSpec
from threadcast.fleet.parts import ATTEMPTS, Parts, together

OPS = [Op("add", (TensorSpec((n,), "float32"),) * 2) for n in range(1, 11)]
RUNS = dict.fromkeys(OPS, 1)


def test_machines_of_one_kind_share_the_ops_and_other_kinds_measure_all() -> None:
    parts = Parts(RUNS, size=4)
    assert not parts.finished, "before the first machine comes"
    for machine, kind in (("a", "large"), ("b", "large"), ("c", "small")):
        parts.come(machine, kind)
    measured: dict[str, list[Op]] = {"large": [], "small": []}
    while not parts.finished:
        parts.next()
        for machine, part in list(parts.running.items()):
            measured[part.kind] += part.ops
            parts.ended(machine)
    assert measured == {"large": OPS, "small": OPS}
    assert parts.count() == (6, 6)


def test_what_a_lost_machine_had_not_ended_goes_to_another_one_of_its_kind() -> None:
    parts = Parts(RUNS, size=10)
    parts.come("a", "large")
    parts.come("c", "small")
    begun = dict(parts.next())
    assert parts.gone("a") == begun["a"]
    parts.ended("c")
    assert parts.next() == []
    assert parts.waiting() == [begun["a"]]
    assert not parts.finished
    parts.come("b", "large")
    assert parts.next() == [("b", begun["a"])]
    parts.ended("b")
    assert parts.finished
    assert not parts.given_up


def test_a_part_over_which_machines_are_lost_again_and_again_is_given_up_and_others_go_on() -> None:
    parts = Parts(RUNS, size=5)
    deadly = None
    for i in range(ATTEMPTS):
        parts.come(f"a{i}", "large")
        begun = dict(parts.next())
        if deadly is not None and begun[f"a{i}"] != deadly:
            parts.ended(f"a{i}")
            begun = dict(parts.next())
        deadly = begun[f"a{i}"]
        parts.gone(f"a{i}")
    assert parts.given_up == [deadly]
    assert parts.finished


def test_machines_that_do_other_work_are_not_the_fault_of_a_part() -> None:
    parts = Parts(RUNS, size=100)
    for i in range(2 * ATTEMPTS):
        parts.come(f"a{i}", "large")
        assert len(parts.next()) == 1
        parts.gone(f"a{i}", by_part=False)
    assert (len(parts.waiting()), parts.given_up) == (1, [])


@settings(deadline=None)
@given(st.data())
def test_whatever_comes_and_goes_each_part_ends_once_or_is_given_up(data: st.DataObject) -> None:
    parts = Parts(RUNS, size=3)
    ended: list[tuple[str, int]] = []
    for step in range(40):
        here = sorted(parts._machines)
        choice = data.draw(st.sampled_from(["come", "end", "go"] if here else ["come"]))
        if choice == "come":
            parts.come(f"m{step}", data.draw(st.sampled_from(["large", "small"])))
        elif choice == "go":
            parts.gone(data.draw(st.sampled_from(here)))
        elif parts.running:
            machine = data.draw(st.sampled_from(sorted(parts.running)))
            ended.append((parts.running[machine].kind, parts.running[machine].number))
            parts.ended(machine)
        parts.next()
    busy = [(part.kind, part.number) for part in parts.running.values()]
    open_ = [(part.kind, part.number) for part in [*parts.waiting(), *parts.given_up]]
    everything = [(kind, number) for kind in parts.kinds for number in range(4)]
    assert sorted(ended + busy + open_) == sorted(everything)


def test_ops_of_several_networks_are_counted_together() -> None:
    assert together([[OPS[0], OPS[1], OPS[0]], [OPS[1]]]) == {OPS[0]: 2, OPS[1]: 2}
