"""Forecasts for threads that ask at the same time, in one call of the model."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from tests.models.synthetic_ops import make_ops, measure_all
from tests.waiting import HANGS_S
from threadcast.core import Case, CurveTable, Machine, Measurement, Op
from threadcast.core.errors import ModelError
from threadcast.models.learned_curve import LearnedCurve
from threadcast.prediction.gathering import Gathering

MACHINE = Machine.uniform("twelve", 12, group_size=12)
CASES = MACHINE.cases()
OPS = make_ops(60)
BAD = OPS[45]


class Watched(LearnedCurve):
    """Holds its first call until `others` more wait, refuses `BAD`, and notes how many ops each call has."""

    def predict_many(
        self, ops: Sequence[Op], observed: Sequence[Sequence[Measurement]], cases: Sequence[Case], *, machine: Machine
    ) -> CurveTable:
        self.calls.append(len(ops))
        if len(self.calls) == 1:
            self.entered.set()
            assert self.go_on.wait(HANGS_S)
        if self.refuses and BAD in ops:
            raise ModelError("bad")
        return super().predict_many(ops, observed, cases, machine=machine)


@pytest.fixture
def model() -> Watched:
    made = Watched(trees=10).fit(measure_all(OPS[:40], machine=MACHINE))
    made.calls, made.entered, made.go_on, made.refuses = [], threading.Event(), threading.Event(), False
    return made


def answers(model: Watched, monkeypatch: pytest.MonkeyPatch) -> list[CurveTable | BaseException]:
    """What each of eight threads gets that asks for one op, all but the first while the first is computed."""
    monkeypatch.setattr("threadcast.prediction.gathering.WAIT_S", HANGS_S)
    gathering = Gathering()
    with ThreadPoolExecutor(8) as threads:
        asked = [threads.submit(gathering.predict_many, model, [OPS[40]], [[]], CASES, MACHINE)]
        assert model.entered.wait(HANGS_S)
        asked += [threads.submit(gathering.predict_many, model, [op], [[]], CASES, MACHINE) for op in OPS[41:48]]
        while len(gathering._waiting) < 7:
            threading.Event().wait(0.001)
        model.go_on.set()
        return [one.exception(HANGS_S) or one.result() for one in asked]


def test_what_waits_is_forecast_together_and_to_the_last_bit_as_alone(
    model: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = answers(model, monkeypatch)
    assert model.calls == [1, 7]
    for op, table in zip(OPS[40:48], found, strict=True):
        alone = model.predict_many([op], [[]], CASES, machine=MACHINE)
        assert isinstance(table, CurveTable)
        for name in ("seconds", "low", "high", "source"):
            np.testing.assert_array_equal(getattr(table, name), getattr(alone, name))


def test_an_error_reaches_only_the_thread_that_caused_it(model: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    model.refuses = True
    found = answers(model, monkeypatch)
    assert [isinstance(one, ModelError) for one in found] == [op is BAD for op in OPS[40:48]]


def test_who_waits_too_long_computes_by_itself(model: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("threadcast.prediction.gathering.WAIT_S", 0.01)
    gathering = Gathering()
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(gathering.predict_many, model, [OPS[40]], [[]], CASES, MACHINE)
        assert model.entered.wait(HANGS_S)
        assert len(gathering.predict_many(model, [OPS[41]], [[]], CASES, MACHINE)) == 1
        assert not gathering._waiting, "the model would be held for ever"
        model.go_on.set()
        first.result(HANGS_S)
