from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from threadcast.core import Case, Machine, Measurement, Op, Sample, TensorSpec
from threadcast.core.errors import ArtefactError, FormatError
from threadcast.models.learned_curve import LearnedCurve
from threadcast.models.measured import group, usable
from threadcast.models.op_features import OpFeatures, numbers_of

MACHINE = Machine.uniform("sixteen", 16)


def product(m: int, k: int, n: int) -> Op:
    return Op("mm", (TensorSpec((m, k)), TensorSpec((k, n))), outputs=(TensorSpec((m, n)),))


def table_row(m: int, k: int, n: int) -> Op:
    return Op("op", attributes={"m": m, "k": k, "n": n, "label": f"{m} x {k} x {n}"})


def sides(count: int, seed: int) -> list[tuple[int, ...]]:
    drawn = np.random.default_rng(seed).uniform(math.log(16), math.log(4096), (count, 3))
    return [tuple(row) for row in np.exp(drawn).astype(int).tolist()]


def seconds(m: int, k: int, n: int, threads: int) -> float:
    """A product whose rows are divided, with an overhead for each thread and a limit of bandwidth."""
    used = min(threads, m)
    return 2.0 * m * k * n / 2e10 / used + 4.0 * (m * k + k * n + m * n) / 1e10 / min(used, 4) + 2e-6 * threads


def measured(make: Callable[[int, int, int], Op], shape: tuple[int, ...], *, noise: float = 0.02) -> list[Measurement]:
    random = np.random.default_rng(sum(shape))
    op = make(*shape)
    return [
        Measurement(
            op, MACHINE, case,
            (Sample(seconds(*shape, case.threads) * float(np.exp(noise * random.standard_normal()))),),
        )
        for case in MACHINE.cases()
    ]  # fmt: skip


def error(make: Callable[[int, int, int], Op], samples: int) -> float:
    """Mean relative error on ops that were not learned from."""
    known = [m for shape in sides(80, 1) for m in measured(make, shape)]
    model = LearnedCurve(samples=samples).fit(known)
    asked = sides(60, 2)
    observed = [
        [m for m in measured(make, shape) if m.case in (Case(2), Case(7), Case(16))[:samples]] for shape in asked
    ]
    table = model.predict_many([make(*shape) for shape in asked], observed, MACHINE.cases(), machine=MACHINE)
    true = np.array([[seconds(*shape, case.threads) for case in MACHINE.cases()] for shape in asked])
    return float(np.mean(np.abs(table.seconds - true) / true))


@pytest.mark.parametrize("samples", [0, 3])
def test_a_table_of_sides_is_forecast_about_as_well_as_ops_with_tensors(samples: int) -> None:
    assert error(table_row, samples) < 1.5 * error(product, samples) + 0.01


def test_exponents_of_a_matrix_product_are_near_one() -> None:
    entries, _ = usable(group([m for shape in sides(80, 3) for m in measured(table_row, shape)]))
    _, k, m, n = OpFeatures.learned(entries).exponents["op"]  # in the order of names
    assert all(0.6 < exponent < 1.1 for exponent in (m, k, n))


def test_texts_become_categories_and_labels_count_for_nothing() -> None:
    ops = [
        Op("fft", attributes={"n": n, "layout": layout, "real": True, "label": str(n)})
        for n in (8, 16)
        for layout in "ab"
    ]
    entries, _ = usable(group([Measurement(op, MACHINE, Case(1), (Sample(1e-3 * i),)) for i, op in enumerate(ops, 1)]))
    features = OpFeatures.learned(entries)
    assert features.names == ("n", "layout=a", "layout=b", "real=True")
    numbers = numbers_of(features.translated(ops), features.names, missing=math.nan)
    assert numbers[:, 1].tolist() == [1, 0, 1, 0]
    assert numbers[:, 0] == pytest.approx(np.log([8, 8, 16, 16]))


def test_an_unknown_text_and_a_missing_number_are_no_error() -> None:
    known = [m for shape in sides(20, 4) for m in measured(table_row, shape)]
    model = LearnedCurve(samples=0).fit(known)
    strange = Op("op", attributes={"m": 64, "colour": "red"})
    curve = model.predict(strange, [], MACHINE.cases(), machine=MACHINE)
    assert np.isfinite(curve.seconds).all()
    assert min(curve.seconds) > 0


def test_numbers_of_either_sign_are_inputs() -> None:
    ops = [Op("op", attributes={"shift": shift}) for shift in (-3, 0, 5)]
    entries, _ = usable(group([Measurement(op, MACHINE, Case(1), (Sample(1e-3 * i),)) for i, op in enumerate(ops, 1)]))
    features = OpFeatures.learned(entries)
    assert features.logs == {"shift": False}
    assert numbers_of(features.translated(ops), features.names, missing=0)[:, 0] == pytest.approx(
        np.arcsinh([-3, 0, 5])
    )


def test_a_stored_model_forecasts_tables_as_before() -> None:
    known = [m for shape in sides(70, 5) for m in measured(table_row, shape)]
    model = LearnedCurve(samples=2).fit(known)
    loaded = LearnedCurve().from_files(model.to_files())
    ops = [table_row(*shape) for shape in sides(5, 6)]
    observed = [[measured(table_row, shape)[3]] for shape in sides(5, 6)]
    one, other = (of.predict_many(ops, observed, MACHINE.cases(), machine=MACHINE) for of in (model, loaded))
    assert other.seconds == pytest.approx(one.seconds, rel=1e-9)


@pytest.mark.parametrize("wrong", [{"logs": {"m": 1}}, {"exponents": {"op": [1.0]}}, {"exponents": {"op": ["a", 1]}}])
def test_features_that_do_not_fit_are_refused(wrong: dict[str, object]) -> None:
    document = {"logs": {"m": True}, "categories": {}, "exponents": {"op": [0.0, 1.0]}} | wrong
    with pytest.raises((ArtefactError, FormatError)):
        OpFeatures.from_json(document)
