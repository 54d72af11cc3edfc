"""The client's caches are bounded, and an outage takes no kept curve away."""

from __future__ import annotations

import numpy as np
import pytest

from tests.clock import Clock
from tests.prediction.predicting import MACHINE, OPS, PATIENT_S, SerialShare, Service, assert_same, local
from threadcast.core import Machine
from threadcast.core.errors import ModelError
from threadcast.prediction.fallback import OPS_AT_ONCE, first_curves, reserve_s, roofline
from threadcast.prediction.predictor import LocalPredictor
from threadcast.prediction.questions import JSON_POINTS, Questions
from threadcast.prediction.remote import FALLBACK_MARK, RemotePredictor
from threadcast.prediction.versioned_curves import VersionedCurves

KEYS = [op.key for op in OPS]
POINTS = len(MACHINE.cases())


def test_of_too_many_curves_those_in_use_stay(clock: Clock) -> None:
    kept = VersionedCurves(MACHINE.cases(), fresh_s=60.0, clock=clock, most_points=2 * POINTS)
    for moment, key in enumerate(KEYS):
        clock.now_s = float(moment)
        kept.add([key], local().curves([OPS[moment]]))
        kept.trim([key])
    assert [kept.known([key]) is not None for key in KEYS] == [False, False, True]
    kept.add(KEYS[:2], local().curves(OPS[:2]))
    kept.trim(KEYS)
    assert_same(kept.known(KEYS).table, local().curves(OPS))  # more than the bound, as the call in progress needs them


def test_a_local_predictor_holds_the_latest_call_at_least() -> None:
    model = SerialShare()
    predictor = LocalPredictor(model, MACHINE, {}, most_points=2 * POINTS)
    for op in OPS:
        predictor.curves([op])
    predictor.curves(OPS[2:])
    assert model.asked == 3
    predictor.curves(OPS[:1])
    assert model.asked == 4


def test_an_outage_takes_no_kept_curve_away(service: Service) -> None:
    fallback = local(0.7, version="spare")
    with RemotePredictor(service.url, MACHINE, deadline_s=PATIENT_S, fallback=fallback) as remote:
        remote.curves(OPS[:2])
        service.status = 500
        table = remote.curves([OPS[2], OPS[0], OPS[1], OPS[2]])
        assert_same(table.take([1, 2]), local().curves(OPS[:2]))
        assert_same(table.take([0, 3]), fallback.curves([OPS[2], OPS[2]]))
        assert table.model == f"serial_share@1 and spare{FALLBACK_MARK}"
        assert (remote.status.source_of_curves, remote.status.fallbacks) == ("cache and fallback", 1)
        service.status = 200
        remote._client._breaker.succeeded()
        assert_same(remote.curves(OPS), local().curves(OPS))
        assert remote.status.model == "serial_share@1"


class Slow(SerialShare):
    """Takes a second for each op."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock

    def predict(self, *args: object, **named: object) -> object:  # type: ignore[override]
        self._clock.now_s += 1.0
        return super().predict(*args, **named)  # type: ignore[arg-type]


def test_a_fallback_that_takes_too_long_is_given_up_for_the_roofline(clock: Clock) -> None:
    slow = LocalPredictor(Slow(clock), MACHINE, {}, version="slow")
    some = [OPS[0]] * (3 * OPS_AT_ONCE)
    both = [slow, roofline(MACHINE)]
    assert first_curves(both, some, until_s=10.0, clock=clock).model == "slow"  # one op, asked for again and again
    slow.forget()
    clock.now_s = 9.999
    assert first_curves(both, some, until_s=10.0, clock=clock).model == both[1].version
    with pytest.raises(ModelError, match="in time"):
        first_curves([slow, LocalPredictor(_Ignorant(), MACHINE, {})], some, until_s=1.0, clock=clock)


class _Ignorant(SerialShare):
    def predict(self, *args: object, **named: object) -> object:  # type: ignore[override]
        raise ModelError("knows nothing")


def test_what_a_roofline_takes_is_left_to_it(service: Service) -> None:
    wide = Machine.uniform("wide", 68, group_size=2)
    assert 0.4 < reserve_s(10_000, wide) < 0.5
    remote = RemotePredictor("http://127.0.0.1:9", wide, deadline_s=1.0)
    assert remote._reserved_s(10_000) == reserve_s(10_000, wide)
    assert remote._reserved_s(10) == pytest.approx(0.2)
    assert RemotePredictor("http://127.0.0.1:9", wide, deadline_s=0.1)._reserved_s(10_000) == pytest.approx(0.05)


def test_answers_in_json_are_asked_for_in_parts_that_are_soon_read() -> None:
    wide = Machine.uniform("wide", 68, group_size=2)
    questions = Questions(wide, None)
    many = [OPS[0]] * 10_000
    assert max(len(part) for part in questions.parts(many)) == 5_000
    questions._forms = ("application/json",)
    assert max(len(part) for part in questions.parts(many)) * len(wide.cases()) <= JSON_POINTS


def test_arrow_is_preferred_and_json_is_taken(service: Service) -> None:
    with RemotePredictor(service.url, MACHINE, deadline_s=PATIENT_S, last_resort=False) as remote:
        np.testing.assert_array_equal(remote.curves(OPS).seconds, local().curves(OPS).seconds)
        remote.curves(OPS[:1])
        service.predictor = local(0.5)
    assert service.headers[0]["Accept"] == "application/vnd.apache.arrow.stream, application/json;q=0.5"
