from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from threadcast.core import Affinity, Cache, Case, Core, Machine
from threadcast.core.errors import FormatError, InvalidInput
from threadcast.core.machine import SMALL_GROUP, cache_groups

COMPACT, SPREAD = Affinity.COMPACT, Affinity.SPREAD
machines = st.builds(
    lambda cores, group, threads: Machine.uniform("m", cores, group_size=group, threads_per_core=threads),
    st.integers(1, 96),
    st.integers(1, 24),
    st.integers(1, 4),
)


def test_a_machine_of_a_table_has_the_cases_of_its_table():
    only = (Case(8), Case(1, SPREAD), Case(1), Case(4))
    machine = replace(Machine.uniform("m", 8, group_size=4), only=only)
    assert machine.cases() == tuple(sorted(only))
    assert machine == Machine.uniform("m", 8, group_size=4), "what was measured does not make it another machine"
    assert Machine.described(machine.to_json()).cases() == machine.cases()
    assert "cases" not in replace(machine, only=()).to_json()
    assert machine.limited_to(range(4)).cases() == (Case(1), Case(1, SPREAD), Case(4))
    assert replace(machine, only=(Case(6),)).limited_to(range(2)).cases() == (Case(1), Case(2))


@given(machines)
def test_legal_cases_place_threads_on_distinct_cores_and_no_two_alike(machine):
    places = [machine.place(case) for case in machine.cases()]
    assert len(set(places)) == len(places)
    for case, place in zip(machine.cases(), places, strict=True):
        assert len(place) == case.threads == len(set(place))
        assert set(place) <= {core.id for core in machine.cores}


def test_a_machine_of_the_same_fingerprint_does_not_change_the_cases_of_another():
    machine, other = (Machine.uniform("twins", 12, group_size=size) for size in (2, 6))
    cases = Machine.uniform("other name", 12, group_size=6).cases()
    object.__setattr__(other, "fingerprint", machine.fingerprint)  # 8 digits may be the same by chance
    assert machine.cases() != cases
    assert other.cases() == cases


@given(machines)
def test_one_thread_and_all_cores_are_always_legal(machine):
    counts = {case.threads for case in machine.cases()}
    assert {1, len(machine)} <= counts


@given(machines)
def test_spread_threads_share_no_cache_group(machine):
    group = {core.id: core.group for core in machine.cores}
    for case in machine.cases():
        if case.affinity is SPREAD:
            assert len({group[core] for core in machine.place(case)}) == case.threads


@given(machines)
def test_compact_threads_leave_no_small_group_half_filled(machine):
    for case in machine.cases():
        if case.affinity is COMPACT and len(machine.groups) > 1:
            placed = set(machine.place(case))
            for group in machine.groups:
                if 1 < len(group) <= SMALL_GROUP:
                    assert len(placed & set(group)) in (0, len(group))


@given(machines)
def test_a_machine_survives_json_with_its_fingerprint(machine):
    again = Machine.from_json(json.loads(json.dumps(machine.to_json())))
    assert again == machine
    assert (again.cores, again.caches) == (machine.cores, machine.caches)
    without = {name: value for name, value in machine.to_json().items() if name != "schema"}
    assert Machine.from_json(without) == machine


def test_tiles_of_two_give_the_68_cases_of_the_paper():
    cases = Machine.uniform("knl", 68, group_size=2, threads_per_core=4).cases()
    assert cases == tuple(sorted([Case(n, SPREAD) for n in range(1, 35)] + [Case(n, COMPACT) for n in range(2, 69, 2)]))


def test_more_threads_than_cores_are_refused_with_the_number_there_is():
    machine = Machine.uniform("m", 4, group_size=2)
    with pytest.raises(InvalidInput, match="threads=5 compact exceeds the 4 usable cores of m"):
        machine.place(Case(5))
    with pytest.raises(InvalidInput, match="threads=3 spread exceeds the 2 cache groups of m"):
        machine.place(Case(3, SPREAD))


def test_cpus_are_those_of_the_asked_hardware_thread():
    machine = Machine.uniform("m", 4, threads_per_core=2)
    assert machine.cpus((1, 3)) == (1, 3)
    assert machine.cpus((1, 3), hardware_thread=1) == (5, 7)
    with pytest.raises(InvalidInput, match=r"cores \[9\] are not among those of m"):
        machine.cpus((1, 9))


def test_fingerprints_tell_machines_apart():
    machine = Machine.uniform("AMD EPYC 7763 64-Core Processor", 4)
    assert machine.fingerprint.startswith("amd-epyc-7763-64-core-processor-4c-")
    others = [
        Machine.uniform("x", 4),
        machine.limited_to(range(3)),
        replace(machine, caches=(Cache(3, 1 << 20, (0, 1, 2, 3)),)),
        replace(machine, cores=tuple(replace(core, node=core.id // 2) for core in machine.cores)),
        replace(machine, cores=tuple(replace(core, cpus=(core.id, core.id + 4)) for core in machine.cores)),
        Machine.uniform(machine.name, 4, group_size=2),
    ]
    assert len({machine, Machine.uniform(machine.name, 4), *others}) == 7


def _two_sockets() -> Machine:
    cores = tuple(Core(i, (i, i + 8), group=i // 2, node=i // 4, socket=i // 4, max_hz=3e9) for i in range(8))
    caches = (*(Cache(1, 32768, (i,)) for i in range(8)), *(Cache(2, 1 << 20, (i, i + 1)) for i in range(0, 8, 2)))
    return Machine("Two sockets", cores, caches)


@pytest.mark.parametrize("part", [(0, 1, 2), (0, 1, 3), (4, 5, 7)])
def test_equal_parts_of_a_machine_are_one_machine_wherever_their_cpus_lie(part):
    machine = _two_sockets()
    assert machine.limited_to(part).fingerprint == machine.limited_to((4, 5, 6)).fingerprint
    assert machine.limited_to((0, 2, 4)).fingerprint != machine.limited_to((4, 5, 6)).fingerprint


def test_a_property_beside_the_structure_leaves_a_machine_what_it_was():
    machine = _two_sockets()
    other = replace(machine, cores=tuple(replace(c, cpus=(90 + c.id, 70 + c.id), max_hz=3.1e9) for c in machine.cores))
    slow = replace(machine, cores=tuple(replace(core, max_hz=2.2e9) for core in machine.cores))
    assert slow.fingerprint != machine.fingerprint
    assert other.fingerprint == machine.fingerprint == Machine.from_json(machine.to_json() | {"memory": 1}).fingerprint
    assert machine.fingerprint == "two-sockets-8c-5d8d8995"  # of structure 1: stored measurements are found by it


def test_limiting_keeps_only_caches_that_remain_and_regroups():
    tiles = [Core(i, (i,), group=i // 2) for i in range(4)]
    caches = (*(Cache(1, 1, (i,)) for i in range(4)), Cache(2, 9, (0, 1)), Cache(2, 9, (2, 3)))
    machine = Machine("m", tuple(tiles), caches)
    tile = machine.limited_to([2, 3])
    assert tile.groups == ((2, 3),)
    assert tile.caches == (Cache(1, 1, (2,)), Cache(1, 1, (3,)), Cache(2, 9, (2, 3)))
    assert machine.limited_to([0, 2, 3]).groups == ((0,), (2, 3))
    with pytest.raises(InvalidInput, match=r"cores \[7\]"):
        machine.limited_to([0, 7])


def test_the_innermost_partly_shared_level_forms_the_groups():
    cores = [Core(i, (i,), group=0) for i in range(8)]
    l2 = [Cache(2, 1, (i, i + 1)) for i in range(0, 8, 2)]
    l3 = [Cache(3, 1, (0, 1, 2, 3)), Cache(3, 1, (4, 5, 6, 7))]
    assert cache_groups(cores, [*l3, *l2]) == (0, 0, 1, 1, 2, 2, 3, 3)
    assert cache_groups(cores, l3) == (0, 0, 0, 0, 1, 1, 1, 1)
    assert cache_groups(cores, [Cache(3, 1, tuple(range(8)))]) == (0,) * 8
    assert cache_groups(cores, []) == (0,) * 8
    assert cache_groups(cores, [Cache(2, 1, (4, 5, 6, 7))]) == (0, 1, 2, 3, 4, 4, 4, 4)


def test_a_machine_has_cores_with_distinct_ids_and_cpus():
    with pytest.raises(InvalidInput, match="has no cores"):
        Machine("m", ())
    with pytest.raises(InvalidInput, match="core id twice"):
        Machine("m", (Core(0, (0,), 0), Core(0, (1,), 0)))
    with pytest.raises(InvalidInput, match="cpu twice"):
        Machine("m", (Core(0, (0,), 0), Core(1, (0,), 0)))
    with pytest.raises(InvalidInput, match="cores=0"):
        Machine.uniform("m", 0)


@pytest.mark.parametrize(
    ("change", "pointer"),
    [
        ({"name": 3}, "/machine/name"),
        ({"cores": {}}, "/machine/cores"),
        ({"cores": []}, "/machine/cores"),
        ({"cores": [[0, [0], 0, 0, 0, None], [0, [1], 0, 0, 0, None]]}, "/machine/cores"),
        ({"cores": [[0, [0], 0]]}, "/machine/cores/0"),
        ({"cores": [[0, ["0"], 0, 0, 0, None]]}, "/machine/cores/0"),
        ({"cores": [[0, [0], 0, 0, 0, "fast"]]}, "/machine/cores/0"),
        ({"caches": [[1, 2]]}, "/machine/caches/0"),
        ({"caches": [[1, 2, ["a"]]]}, "/machine/caches/0"),
        ({"schema": "threadcast.machine/2"}, "/machine/schema"),
        ({"schema": None}, "/machine/schema"),
    ],
)
def test_errors_point_at_the_wrong_member(change, pointer):
    with pytest.raises(FormatError) as caught:
        Machine.from_json({**Machine.uniform("m", 2).to_json(), **change}, pointer="/machine")
    assert caught.value.pointer == pointer


@pytest.mark.parametrize(
    ("core", "said"),
    [([0, [0], 0, 0, 0, 5e-324], "max_hz"), ([0, [0], 0, 0, 0, 1e13], "max_hz"), ([0, [], 0, 0, 0, None], "no CPU")],
)
def test_what_no_core_has_is_refused_in_descriptions_and_read_from_stores(core, said):
    document = {"name": "one", "cores": [core]}
    with pytest.raises(FormatError, match=said) as caught:
        Machine.described(document, pointer="/machine")
    assert caught.value.pointer == "/machine/cores/0"
    assert Machine.from_json(document).to_json()["cores"] == [core]
