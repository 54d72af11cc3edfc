"""Curves in process and over HTTP: the same, kept, and never waited for beyond the deadline."""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.prediction.predicting import MACHINE, OPS, PATIENT_S, SerialShare, Service, assert_same, local
from threadcast.core import Case, Curve, Machine, Measurement, Op, Sample, Source, TensorSpec
from threadcast.core.curve_codec import to_answer
from threadcast.core.errors import FeatureError, InvalidInput, ModelError
from threadcast.prediction.predictor import LocalPredictor, Predictor
from threadcast.prediction.remote import RemotePredictor


def test_local_curves_are_the_models_own_over_the_machines_cases() -> None:
    table = local(0.25).curves(OPS)
    assert table.cases == MACHINE.cases()
    assert table.model == "serial_share@1"
    for i, op in enumerate(OPS):
        expected = SerialShare(0.25).predict(op, [], MACHINE.cases(), machine=MACHINE)
        np.testing.assert_array_equal(table[i].seconds, expected.seconds)


def test_local_predictor_asks_the_model_once_for_an_op() -> None:
    model = SerialShare()
    predictor = LocalPredictor(model, MACHINE, {})
    predictor.curves([OPS[0], OPS[1], OPS[0]])
    predictor.curves([OPS[1], OPS[2]])
    assert model.asked == 3


def test_local_predictor_passes_this_machines_measurements_on_and_leaves_others_out() -> None:
    case, elsewhere = Case(2), Machine.uniform("other", 4)
    observed = {
        OPS[0].key: [
            Measurement(OPS[0], MACHINE, case, (Sample(0.5),)),
            Measurement(OPS[0], elsewhere, Case(3), (Sample(9.0),)),
        ]
    }
    curve = LocalPredictor(SerialShare(), MACHINE, observed).curves(OPS)[0]
    assert curve.at(case) == 0.5
    assert [source is Source.MEASURED for source in curve.source] == [False, True, False, False]


def test_forget_lets_new_measurements_count() -> None:
    observed: dict[str, list[Measurement]] = {}
    predictor = LocalPredictor(SerialShare(), MACHINE, observed)
    before = predictor.curves(OPS[:1])[0].at(Case(1))
    observed[OPS[0].key] = [Measurement(OPS[0], MACHINE, Case(1), (Sample(0.25),))]
    assert predictor.curves(OPS[:1])[0].at(Case(1)) == before
    predictor.forget()
    assert predictor.curves(OPS[:1])[0].at(Case(1)) == 0.25


def test_what_is_just_predicted_while_curves_are_forgotten_is_not_kept() -> None:
    observed: dict[str, list[Measurement]] = {}

    class Overtaken(SerialShare):
        """While it predicts for the first time, another thread adds a measurement."""

        def predict(self, op: Op, *more: object, **named: object) -> Curve:  # type: ignore[override]
            found = super().predict(op, *more, **named)  # type: ignore[arg-type]
            if not observed:
                observed[op.key] = [Measurement(op, MACHINE, Case(1), (Sample(0.25),))]
                predictor.forget()
            return found

    predictor = LocalPredictor(Overtaken(), MACHINE, observed)
    assert predictor.curves(OPS[:1])[0].at(Case(1)) != 0.25
    assert predictor.curves(OPS[:1])[0].at(Case(1)) == 0.25


def test_cases_are_columns_of_the_whole_curve_in_the_order_asked() -> None:
    predictor = local()
    whole, part = predictor.curves(OPS), predictor.curves(OPS, cases=[Case(4), Case(1)])
    np.testing.assert_array_equal(part.seconds, whole.seconds[:, [3, 0]])


@pytest.mark.parametrize("cases", [[Case(5)], [Case(1, "spread")], []])  # type: ignore[arg-type]
def test_cases_that_the_machine_does_not_have_are_refused(cases: list[Case]) -> None:
    with pytest.raises(InvalidInput, match="not among the 4 of the machine: 1 compact"):
        local().curves(OPS, cases=cases)


def test_no_op_gives_an_empty_table() -> None:
    assert local().curves([]).seconds.shape == (0, 4)


class OfOneKind(SerialShare):
    """Has learned ops of kind "mm" with m; needs samples of those of kind "add"."""

    least_s = 2e-6

    def knows(self, op: Op) -> Source | None:
        if op.kind == "mm" and "m" not in op.attributes:
            raise FeatureError("lacks 'm'")
        return {"mm": Source.LEARNED, "add": Source.LEARNED, "far": Source.EXTRAPOLATED}.get(op.kind)

    def predict(self, op: Op, observed: Sequence[Measurement], *more: Any, **named: Any) -> Curve:
        if op.kind == "add" and len(observed) < 2:
            raise ModelError("needs samples")
        return super().predict(op, observed, *more, **named)


KNOWN, FAR, ADD = Op("mm", attributes={"m": 3}, cost=(3e6, 0.0)), Op("far", cost=(3e6, 0.0)), Op("add", cost=(3e6, 0.0))
STRANGE, SHORT = Op("strange", cost=(3e6, 0.0)), Op("mm", attributes={"m": 1}, cost=(1.0, 0.0))


def completed(observed: dict[str, list[Measurement]] | None = None) -> LocalPredictor:
    return LocalPredictor(
        OfOneKind(0.1), MACHINE, observed or {}, version="a@1", otherwise=lambda: SerialShare(1.0), completed="a@1, b"
    )


def test_unknown_kinds_and_unmeasured_ops_are_forecast_by_the_other_model_and_said_to_be_extrapolated() -> None:
    predictor = completed()
    assert (predictor.curves([KNOWN]).model, predictor.curves([FAR]).model) == ("a@1", "a@1")
    table = predictor.curves([KNOWN, STRANGE, ADD, FAR])
    by_other = [len(set(row)) == 1 for row in table.seconds.tolist()]
    assert by_other == [False, True, True, False]
    assert [set(table[row].source) for row in range(4)] == [{Source.LEARNED}, *[{Source.EXTRAPOLATED}] * 3]
    assert table.model == "a@1, b"


def test_of_a_batch_only_ops_that_lack_samples_are_forecast_by_the_other_model() -> None:
    once = {op.key: [Measurement(op, MACHINE, Case(1), (Sample(0.5),))] for op in (ADD, KNOWN)}
    table = completed(once).curves([KNOWN, ADD])
    assert [Source.LEARNED in table[row].source for row in range(2)] == [True, False]
    assert [table[row].source[0] for row in range(2)] == [Source.MEASURED] * 2
    with pytest.raises(ModelError, match="needs samples"):
        LocalPredictor(OfOneKind(), MACHINE, once).curves([KNOWN, ADD])


def test_ops_that_lack_features_are_refused_unless_they_were_measured() -> None:
    misspelt = Op("mm", attributes={"M": 3}, cost=(3e6, 0.0))
    with pytest.raises(FeatureError, match="lacks 'm'"):
        completed().curves([KNOWN, misspelt])
    curve = completed({misspelt.key: [Measurement(misspelt, MACHINE, Case(1), (Sample(0.5),))]}).curves([misspelt])[0]
    assert curve.source == (Source.MEASURED, *[Source.EXTRAPOLATED] * 3)
    with pytest.raises(ModelError, match="has learned no op of kind 'strange'"):
        LocalPredictor(OfOneKind(), MACHINE, {}).curves([KNOWN, STRANGE])


def test_no_forecast_is_shorter_than_a_call_unless_the_op_was_measured_to_be() -> None:
    curve = completed().curves([SHORT])[0]
    np.testing.assert_array_equal([curve.seconds, curve.low, curve.high], np.full((3, 4), 2e-6))
    curve = completed({SHORT.key: [Measurement(SHORT, MACHINE, Case(1), (Sample(1e-9),))]}).curves([SHORT])[0]
    np.testing.assert_array_equal(curve.seconds, [1e-9] * 4)


def test_remote_curves_are_the_local_ones_to_the_last_bit(service: Service) -> None:
    remote = RemotePredictor(service.url, MACHINE, deadline_s=PATIENT_S)
    assert isinstance(remote, Predictor)
    table = remote.curves(OPS)
    assert_same(table, local().curves(OPS))
    assert table.model == "serial_share@1"


@given(share=st.floats(0, 1), sizes=st.lists(st.integers(0, 2**40), min_size=1, max_size=5))
def test_an_answer_survives_its_way_through_json(share: float, sizes: list[int]) -> None:
    from threadcast.prediction.answers import max_answer_bytes, read_curves

    ops = [Op("copy", (TensorSpec((n,)),), cost=(n * 1.1, n)) for n in sizes]
    table = local(share).curves(ops)
    keys = [op.key for op in ops]
    content = json.dumps({**to_answer(table), "machine": MACHINE.fingerprint, "ops": keys}).encode()
    assert len(content) <= max_answer_bytes(len(ops), len(table.cases))
    assert_same(read_curves(content, keys=keys, cases=table.cases, machine=MACHINE).table, table)


def test_remote_predictor_asks_once_for_an_op_and_for_whole_curves(service: Service) -> None:
    remote = RemotePredictor(service.url, MACHINE, deadline_s=PATIENT_S)
    remote.curves([OPS[0], OPS[0], OPS[1]], cases=[Case(2)])
    remote.curves(OPS[:2])
    remote.curves(OPS)
    asked = [[Op.from_json(op).key for op in question["ops"]] for question in service.questions]
    assert asked == [[OPS[0].key, OPS[1].key], [OPS[2].key]]
    assert all(len(question["cases"]) == 4 for question in service.questions)
    assert (remote.status.fetched, remote.status.cached) == (2, 1)


def test_the_model_asked_for_is_sent(service: Service) -> None:
    RemotePredictor(service.url, MACHINE, deadline_s=PATIENT_S, model="champion").curves(OPS)
    assert service.questions[0]["model"] == "champion"


def test_threads_share_one_remote_predictor(service: Service) -> None:
    remote, expected = RemotePredictor(service.url, MACHINE, deadline_s=PATIENT_S), local().curves(OPS)
    with ThreadPoolExecutor(8) as pool:
        for table in pool.map(lambda _: remote.curves(OPS), range(32)):
            assert_same(table, expected)
    status = remote.status
    assert status.fetched + status.cached == 32


def test_ops_of_one_key_with_other_counts_have_curves_of_their_own(service: Service) -> None:
    given = [Op("gemm", cost=(flops, 1e6)) for flops in (1e9, 1e6)]
    asked = [*given, given[0]]
    assert len({op.key for op in asked}) == 1
    expected = [SerialShare().predict(op, [], MACHINE.cases(), machine=MACHINE).seconds for op in asked]
    remote = RemotePredictor(service.url, MACHINE, deadline_s=PATIENT_S, last_resort=False)
    for predictor in (local(), LocalPredictor(SerialShare(), MACHINE, {}, most_points=0), remote):
        np.testing.assert_array_equal(predictor.curves(asked).seconds, expected)
        np.testing.assert_array_equal(predictor.curves(given[1:]).seconds, expected[1:2])
    assert remote.status.cached == 1


def test_old_curves_of_ops_of_one_key_are_all_asked_for_anew(service: Service) -> None:
    given = [Op("gemm", cost=(flops, 1e6)) for flops in (1e9, 1e6)]
    with RemotePredictor(service.url, MACHINE, deadline_s=PATIENT_S, fresh_s=0.0) as remote:
        remote.curves(given)
        service.predictor = local(0.5)
        assert_same(remote.curves(given), local(0.5).curves(given))
