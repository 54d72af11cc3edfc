"""The climb that looks further than the first rise."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.models.synthetic_ops import make_ops
from threadcast.core import Case, Machine, Measurement, Sample
from threadcast.core.errors import ArtefactError, InvalidInput
from threadcast.models.patient_climb import PatientClimb, doubling, halfway

OP = make_ops(1)[0]
WIDE = Machine.uniform("wide", 96)


def climb(model, machine, time_s):
    observed = []
    while (case := model.propose(OP, observed, machine)) is not None:
        observed.append(Measurement(OP, machine, case, (Sample(time_s(case.threads)),)))
    return observed


def test_it_passes_a_rise_and_closes_in_on_the_minimum():
    bump = {4: 2.0}
    observed = climb(PatientClimb(patience=2, refine=3), WIDE, lambda p: bump.get(p, abs(p - 40) / 40 + 0.5))
    counts = [m.case.threads for m in observed]
    assert counts[:8] == [1, 2, 4, 8, 16, 32, 64, 96]
    assert min(observed, key=lambda m: m.seconds).case.threads in range(36, 46)
    assert len(counts) == 11


def test_it_stops_after_as_many_rises_as_it_has_patience_and_runs_the_last():
    observed = climb(PatientClimb(patience=2, refine=0), WIDE, float)
    assert [m.case.threads for m in observed] == [1, 2, 4, 96]


@given(
    times=st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=130), patience=st.integers(1, 4), refine=st.integers(0, 4)
)
def test_it_ends_and_runs_no_case_twice(times, patience, refine):
    machine = Machine.uniform("m", len(times), group_size=2 if len(times) % 2 == 0 else None)
    observed = climb(PatientClimb(patience=patience, refine=refine), machine, lambda p: times[p - 1])
    cases = [m.case for m in observed]
    assert len(set(cases)) == len(cases)
    assert set(cases) <= set(machine.cases())


@pytest.mark.parametrize(("between", "law"), [("reciprocal", lambda p: 2 + 30 / p), ("log", lambda p: 7 * p**-0.8)])
def test_between_its_points_time_is_as_it_says(between, law):
    model = PatientClimb(between=between)
    curve = model.predict(OP, climb(model, WIDE, law), WIDE.cases(), machine=WIDE)
    for case, seconds in zip(curve.cases, curve.seconds):
        assert seconds == pytest.approx(law(case.threads))


def test_steps_double_and_halves_lie_in_the_geometric_middle():
    assert doubling((1, 2, 3, 4, 5, 6, 7, 8, 9)) == (1, 2, 4, 8, 9)
    assert doubling((2, 4, 6)) == (2, 4, 6)
    assert halfway(range(1, 20), {1: 3.0, 4: 1.0, 16: 2.0}) == 8
    assert halfway(range(1, 20), {1: 1.5, 4: 1.0, 16: 2.0}) == 2
    assert halfway((1, 2), {1: 1.0, 2: 2.0}) is None


def test_options_are_checked_and_kept():
    for options in ({"patience": 0}, {"refine": -1}, {"between": "cubic"}, {"patience": True}):
        with pytest.raises(InvalidInput):
            PatientClimb(**options)
    kept = PatientClimb().from_files(PatientClimb(patience=3, refine=1, between="reciprocal").to_files())
    assert (kept.patience, kept.refine, kept.between) == (3, 1, "reciprocal")
    with pytest.raises((ArtefactError, InvalidInput)):
        PatientClimb().from_files({"model.json": b'{"patience": 1, "refine": 1, "between": "cubic"}'})


def test_one_core_is_one_case():
    assert [m.case for m in climb(PatientClimb(), Machine.uniform("one", 1), float)] == [Case(1)]
