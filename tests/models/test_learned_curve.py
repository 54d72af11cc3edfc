"""The learned curve: from no sample to a few, sure of itself only as far as it should be."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from tests.models.synthetic_ops import make_ops, measure, measure_all, true_seconds
from threadcast.core import Case, Machine, Measurement, Sample, Source
from threadcast.core.errors import ArtefactError, InvalidInput, ModelError
from threadcast.models import artefacts, curve_learning
from threadcast.models.evaluation import evaluate, replay
from threadcast.models.learned_curve import LearnedCurve
from threadcast.models.measured import group
from threadcast.models.splits import new_shape
from threadcast.models.static_regressor import StaticRegressor, _bounds_by_kind

MACHINE = Machine.uniform("twelve", 12, group_size=12)
CASES = MACHINE.cases()
OPS = make_ops(150)
TRAIN, HELD_OUT = OPS[:120], OPS[120:]


def fitted(**options):
    return LearnedCurve(**options).fit(measure_all(TRAIN, machine=MACHINE))


@pytest.fixture(scope="module")
def model():
    return fitted()


def entries(ops, **options):
    return group(measure_all(ops, machine=MACHINE, **options))


def errors(model, ops=HELD_OUT):
    """Mean relative error of each op's curve away from its samples."""
    found = []
    for entry in entries(ops):
        observed = replay(model, entry)
        given = {m.case for m in observed}
        curve = model.predict(entry.op, observed, CASES, machine=MACHINE)
        found.append(np.mean([abs(curve.at(c) / true_seconds(entry.op, c) - 1) for c in CASES if c not in given]))
    return np.array(found)


@pytest.mark.system
def test_every_sample_makes_it_better():
    by_samples = [errors(fitted(samples=samples)).mean() for samples in (0, 1, 3)]
    assert by_samples[0] > by_samples[1] > by_samples[2]
    assert by_samples[2] < 0.03


@pytest.mark.system
def test_the_interval_holds_about_as_often_as_it_says():
    for samples in (0, 3):
        measured = measure_all(OPS, machine=MACHINE)
        models = [("learned", LearnedCurve(samples=samples))]
        (row,) = evaluate(measured, models, split=new_shape(folds=3), split_name="shape", draw=0).rows
        assert 0.82 <= row.coverage_90 <= 0.96


def jagged(measured: Measurement) -> Measurement:
    """As measured, but that each case of an `add` is up to half as long again as its neighbours."""
    rng = np.random.default_rng([int(measured.op.key[-8:], 16), measured.case.threads])
    factor = 1 + 0.5 * rng.random() if measured.op.kind == "add" else 1.0
    return replace(measured, samples=tuple(replace(s, seconds=factor * s.seconds) for s in measured.samples))


@pytest.mark.system
@pytest.mark.parametrize(
    ("model", "least"),
    [(LearnedCurve(samples=0), 0.8), (LearnedCurve(samples=3), 0.8), (StaticRegressor(trees=60), 0.7)],
)
def test_intervals_of_a_kind_whose_curves_vary_in_their_own_way_are_its_own(model, least):
    ops = make_ops(240)
    adds = [op for op in ops if op.kind == "add"]
    learned = [*(op for op in ops if op.kind != "add"), *adds[:20]]
    model.fit([jagged(m) for m in measure_all(learned, machine=MACHINE)])
    holds = []
    for entry in group([jagged(m) for m in measure_all(adds[20:], machine=MACHINE)]):
        curve = model.predict(entry.op, replay(model, entry), CASES, machine=MACHINE)
        actual = np.array([measured.seconds for measured in entry.by_case.values()])
        holds += ((curve.low <= actual) & (actual <= curve.high)).tolist()
    assert least <= np.mean(holds) <= 0.99  # static regressors' by the bounds of all kinds: 0.55


def test_ops_measured_in_every_case_are_answered_by_that_beside_others_in_one_batch(model):
    whole, few = entries(HELD_OUT[:2])
    observed = [list(whole.by_case.values()), replay(model, few)]
    table = model.predict_many([whole.op, few.op], observed, CASES, machine=MACHINE)
    assert [table[0].at(case) for case in CASES] == [whole.by_case[case].seconds for case in CASES]
    assert set(table[0].source) == {Source.MEASURED}
    alone = model.predict(few.op, observed[1], CASES, machine=MACHINE)
    np.testing.assert_allclose(table[1].seconds, alone.seconds, rtol=1e-12)
    assert table[1].source == alone.source


def test_where_the_machine_has_changed_the_older_measurements_give_way(model):
    op = HELD_OUT[0]
    old = [
        replace(measure(op, case, machine=MACHINE), conditions={"time": "2026-01-01T00:00:00"}, samples=(Sample(s),))
        for case in (Case(1), Case(12))
        for s in [3 * true_seconds(op, case)]
    ]
    new = [
        replace(measure(op, case, machine=MACHINE), conditions={"time": "2026-06-01T00:00:00"})
        for case in (Case(2), Case(6), Case(10))
    ]
    curve = model.predict(op, [*old, *new], CASES, machine=MACHINE)
    others = [c for c in CASES if c.threads not in (1, 2, 6, 10, 12)]
    assert np.mean([abs(curve.at(c) / true_seconds(op, c) - 1) for c in others]) < 0.1


@pytest.mark.system
def test_it_stops_asking_once_its_choice_is_good_enough():
    careful, easy = fitted(samples=6), fitted(samples=6, enough=0.2)
    asked = [len(replay(model, entries(HELD_OUT[:1])[0])) for model in (careful, easy)]
    assert asked[0] == 6
    assert asked[1] < 6


def test_a_kind_that_it_has_not_learned_gets_a_wide_curve_that_samples_narrow(model):
    op = HELD_OUT[0]
    strange = replace(op, kind="strange")
    sample = replace(measure(op, Case(4), machine=MACHINE), op=strange)
    curve = model.predict(strange, [], CASES, machine=MACHINE)
    sampled = model.predict(strange, [sample], CASES, machine=MACHINE)
    assert np.all(np.isfinite(curve.seconds))
    assert np.median(sampled.high / sampled.low) < np.median(curve.high / curve.low)


def test_cases_that_were_never_measured_are_interpolated():
    some = [m for m in measure_all(TRAIN, machine=MACHINE) if m.case.threads in (1, 2, 4, 8, 12)]
    model = LearnedCurve().fit(some)
    entry = entries(HELD_OUT)[3]
    observed = replay(model, entry)
    assert {m.case.threads for m in observed} <= {1, 2, 4, 8, 12}
    curve = model.predict(entry.op, observed, CASES, machine=MACHINE)
    assert curve.source[CASES.index(Case(3))] is Source.INTERPOLATED
    assert curve.at(Case(3)) == pytest.approx(true_seconds(entry.op, Case(3)), rel=0.25)


def test_samples_at_cases_that_were_not_learned_make_it_no_surer_of_the_others():
    threads = (1, 2, 4, 8, 12)
    model = LearnedCurve().fit([m for m in measure_all(TRAIN, machine=MACHINE) if m.case.threads in threads])
    learned, op = [case for case in CASES if case.threads in threads], HELD_OUT[3]
    elsewhere = [measure(op, Case(count), machine=MACHINE) for count in (3, 5, 7)]
    unknown, known = (model.predict(op, observed, learned, machine=MACHINE) for observed in ([], elsewhere))
    for side in ("seconds", "low", "high"):
        np.testing.assert_allclose(getattr(known, side), getattr(unknown, side), rtol=1e-9)


def test_ops_that_lack_cases_are_learned_from_too():
    rng = np.random.default_rng(0)
    holes = [m for m in measure_all(TRAIN, machine=MACHINE) if rng.random() < 0.6]
    assert errors(LearnedCurve().fit(holes)).mean() < 0.06


def test_ops_of_which_few_cases_were_measured_are_learned_from_by_a_joint_process():
    wide = Machine.uniform("forty", 40, group_size=40)
    rng = np.random.default_rng(0)
    some = [measure(op, wide.cases()[at], machine=wide) for op in TRAIN for at in rng.permutation(40)[:3]]
    model = LearnedCurve().fit(some)
    truth = np.array([[true_seconds(op, case) for case in wide.cases()] for op in TRAIN])
    observed = [[m for m in some if m.op.key == op.key] for op in TRAIN]
    again = LearnedCurve().from_files(model.to_files())
    table, stored = (one.predict_many(TRAIN, observed, wide.cases(), machine=wide) for one in (model, again))
    assert np.median(np.abs(np.log(table.seconds / truth))) < 0.1
    assert stored.seconds.tolist() == table.seconds.tolist()
    assert table.model == "learned_curve"
    assert not model.adapts_to(wide)
    assert model.propose(TRAIN[0], observed[0][:1], wide) is not None


def test_too_few_ops_of_a_machine_are_said_and_it_is_treated_as_unknown():
    other = Machine.uniform("few", 4, group_size=4)
    model = LearnedCurve().fit([*measure_all(TRAIN, machine=MACHINE), *measure_all(TRAIN[:2], machine=other)])
    assert any("few" in note and "2 ops" in note for note in model.notes)
    assert model.predict(HELD_OUT[0], [], other.cases(), machine=other).seconds.min() > 0


def test_what_was_stored_answers_alike_and_damage_is_refused(model):
    files = model.to_files()
    with_noise = artefacts.read_npz(files, "machines.npz") | {"0.samples.knots": np.zeros(1)}  # until 2026-11-30
    again = LearnedCurve().from_files({**files, "machines.npz": artefacts.npz_bytes(with_noise)})
    entry = entries(HELD_OUT[5:6])[0]
    observed = replay(model, entry)
    assert [m.case for m in replay(again, entry)] == [m.case for m in observed]
    for before, after in zip(
        model.predict(entry.op, observed, CASES, machine=MACHINE).seconds,
        again.predict(entry.op, observed, CASES, machine=MACHINE).seconds,
        strict=True,
    ):
        assert after == pytest.approx(before, rel=1e-12)
    for name, change in (
        ("model.json", lambda data: data.replace(b'"share"', b'"sharp"')),
        ("model.json", lambda data: data.replace(b"learned_curve/4", b"learned_curve/9")),
        ("machines.npz", lambda data: data[: len(data) // 2]),
        ("trees.trees.json", lambda data: data[:100]),
    ):
        with pytest.raises(ArtefactError):
            LearnedCurve().from_files({**files, name: change(files[name])})


def changed(files, change):
    """The files of a model of which `change` has altered what is said of its one machine."""
    document = json.loads(files["model.json"])
    (machine,) = document["machines"].values()
    change(machine)
    return LearnedCurve().from_files({**files, "model.json": json.dumps(document).encode()})


def test_wrong_widths_are_refused(model):
    files = model.to_files()
    for wrong in ({"mm": [1.0]}, {"mm": [0.0] * 4}, {"mm": ["wide"] * 4}, {"mm": 1.0}, [1.0]):
        with pytest.raises(ArtefactError):
            changed(files, lambda machine, wrong=wrong: machine.update(widths=wrong))
    for name in ("scales", "widths", "kinds"):
        with pytest.raises(ArtefactError):
            changed(files, lambda machine, name=name: machine.pop(name))


def test_static_regressors_bounds_of_kinds_are_checked():
    made, op = StaticRegressor(trees=5).fit(measure_all(TRAIN, machine=MACHINE)), HELD_OUT[0]
    files = made.to_files()

    def loaded(**changes):
        document = {key: value for key, value in {**json.loads(files["model.json"]), **changes}.items() if value}
        stored = {**files, "model.json": json.dumps(document).encode()}
        return StaticRegressor().from_files(stored).predict(op, [], CASES, machine=MACHINE)

    assert loaded().low.tolist() == made.predict(op, [], CASES, machine=MACHINE).low.tolist()
    for wrong in (None, {"mm": [0.5, 1.0]}, {"mm": [-1.0]}, {"mm": ["low", "high"]}, {"mm": 1.0}, [1.0]):
        with pytest.raises(ArtefactError):
            loaded(log_bounds_of_kinds=wrong)


def test_the_tail_of_one_kind_does_not_stretch_the_bounds_of_another():
    rng = np.random.default_rng(0)
    ops = make_ops(330)
    adds, mms = [op for op in ops if op.kind == "add"], [op for op in ops if op.kind == "mm"][:20]
    close = np.where(rng.random((len(adds), 12)) < 0.07, 1.0, 0.01 * rng.standard_normal((len(adds), 12)))
    wide = 0.5 * rng.standard_normal((len(mms), 12))
    bounds = _bounds_by_kind(entries([*adds, *mms]), [*close, *wide])
    assert bounds["mm"] == pytest.approx((-0.5 * 1.645, 0.5 * 1.645), rel=0.25)
    assert -0.05 < bounds["add"][0] < 0
    assert bounds["add"][1] == pytest.approx(1.0, abs=0.05)


def test_what_cannot_be_is_refused(model):
    for options in ({"samples": -1}, {"samples": 1.5}, {"enough": -0.1}, {"trees": 0}, {"rate": 0.0}, {"depth": 0}):
        with pytest.raises(InvalidInput):
            LearnedCurve(**options)
    with pytest.raises(ModelError, match="fit it first"):
        LearnedCurve().predict(OPS[0], [], CASES, machine=MACHINE)
    with pytest.raises(ModelError, match="give as many"):
        model.predict_many(OPS[:2], [[]], CASES, machine=MACHINE)
    zero = replace(measure(OPS[0], Case(2), machine=MACHINE), samples=(Sample(0.0),))
    for call in (model.propose, lambda *given: model.predict(OPS[0], given[1], CASES, machine=MACHINE)):
        with pytest.raises(ModelError, match="ops take from"):
            call(OPS[0], [zero], MACHINE)


def test_an_op_that_was_only_measured_where_no_other_was_is_borne():
    odd = [m for m in measure_all(TRAIN[:30], machine=MACHINE) if m.case.threads in (1, 2, 4)]
    odd += [m for m in measure_all(TRAIN[30:31], machine=MACHINE) if m.case.threads == 3]
    assert LearnedCurve().fit(odd).predict(TRAIN[40], [], CASES, machine=MACHINE).seconds.min() > 0


def test_of_many_ops_some_are_drawn_and_said_to_be(monkeypatch):
    monkeypatch.setattr(curve_learning, "MOST_OPS", 60)
    many = fitted()
    assert many.notes == (f"{MACHINE.fingerprint}: learned from 60 of 120 ops, drawn at random",)
    again = fitted()
    op = HELD_OUT[0]
    found, repeated = (one.predict(op, [], CASES, machine=MACHINE).seconds for one in (many, again))
    assert found.tolist() == repeated.tolist()
    assert errors(many).mean() < 0.05
