"""Machines are found by what people call them."""

from __future__ import annotations

import pytest

from threadcast.core import Machine, read_machine
from threadcast.core.errors import InvalidInput, NotFound
from threadcast.core.machine_names import find_machine, names_of

BENCH, LONE = Machine.uniform("Bench", 4), Machine.uniform("Xeon Gold", 8)
TWIN = Machine.uniform("bench", 2)
KNOWN = {machine.fingerprint: machine for machine in (BENCH, LONE, TWIN)}


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        (BENCH.fingerprint, BENCH), ("xeon gold", LONE), (" Xeon Gold", LONE), (LONE.fingerprint.upper(), LONE),
        ("local", read_machine()), ("Local", read_machine()), ("12", Machine.uniform("cores", 12)),
    ],
)  # fmt: skip
def test_a_machine_is_found_by_fingerprint_name_number_or_as_local(name: str, meant: Machine) -> None:
    assert find_machine(name, KNOWN) == meant


def test_no_machine_can_take_the_name_of_the_one_at_hand_or_a_number() -> None:
    known = {machine.fingerprint: machine for machine in (Machine.uniform("local", 3), Machine.uniform("7", 3))}
    assert find_machine("local", known) == read_machine()
    assert find_machine("7", known) == Machine.uniform("cores", 7)
    for fingerprint, machine in known.items():
        assert names_of(machine, known, local=read_machine) == [fingerprint]


def test_a_machine_is_called_by_its_fingerprint_and_where_nothing_else_is_meant_by_its_name_or_local() -> None:
    for machine, names in ((BENCH, []), (TWIN, []), (LONE, ["local", "Xeon Gold"])):
        assert names_of(machine, KNOWN, local=lambda: LONE) == [*names, machine.fingerprint]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("xeon god", "did you mean 'Xeon Gold'"), ("locale", "did you mean 'local'"),
        ("0", "no machine is called '0'"), ("99999", "no machine is called '99999'"),
        ("quite another", f"no machine is called 'quite another'. Known are {BENCH.fingerprint}, {LONE.fingerprint}"),
    ],
)  # fmt: skip
def test_an_unknown_name_is_answered_with_the_nearest_ones(name: str, said: str) -> None:
    with pytest.raises(NotFound) as refused:
        find_machine(name, KNOWN)
    assert said in str(refused.value)


def test_a_name_that_several_machines_have_is_refused_with_their_fingerprints() -> None:
    with pytest.raises(InvalidInput, match=f"2 machines .*{BENCH.fingerprint}, {TWIN.fingerprint}"):
        find_machine("bench", KNOWN)
