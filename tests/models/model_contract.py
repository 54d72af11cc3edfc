"""What every performance model must do, as tests to subclass.

class TestMyModel(PerformanceModelContract):
    @classmethod
    def make_model(cls):
        return MyModel()

    @classmethod
    def make_measurements(cls):
        return [...]  # a dozen ops or more, each in every case of one machine
"""

from __future__ import annotations

import contextlib
import copy
from abc import ABC, abstractmethod
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

from threadcast.core import Curve, Measurement, Sample, Source
from threadcast.core.errors import ArtefactError, ModelError
from threadcast.models.base import PerformanceModel
from threadcast.models.evaluation import replay
from threadcast.models.measured import MeasuredOp, group


class PerformanceModelContract(ABC):
    """Tests of the promises of `PerformanceModel`, on a model fitted once to `make_measurements()`."""

    @classmethod
    @abstractmethod
    def make_model(cls) -> PerformanceModel:
        """An unfitted model."""

    @classmethod
    @abstractmethod
    def make_measurements(cls) -> Sequence[Measurement]:
        """Ops enough to learn from, each measured in every case of one machine."""

    @pytest.fixture(scope="class")
    @classmethod
    def measurements(cls) -> tuple[Measurement, ...]:
        """The measurements that the models of this class learn from."""
        return tuple(cls.make_measurements())

    @pytest.fixture(scope="class")
    @classmethod
    def fitted(cls, measurements: tuple[Measurement, ...]) -> tuple[PerformanceModel, PerformanceModel]:
        """A model, and what its `fit` has returned."""
        unfitted = cls.make_model()
        return unfitted, unfitted.fit(measurements)

    @pytest.fixture(scope="class")
    @classmethod
    def model(cls, fitted: tuple[PerformanceModel, PerformanceModel]) -> PerformanceModel:
        """A fitted model."""
        return fitted[1]

    @pytest.fixture(scope="class")
    @classmethod
    def entries(cls, measurements: tuple[Measurement, ...]) -> tuple[MeasuredOp, ...]:
        """The measured ops, a few of them."""
        return group(measurements)[:4]

    def test_fit_returns_the_model(self, fitted: tuple[PerformanceModel, PerformanceModel]) -> None:
        assert fitted[1] is fitted[0]

    def test_fit_of_nothing_is_a_model_error_or_no_work(self) -> None:
        unfitted = self.make_model()
        with contextlib.suppress(ModelError):
            assert unfitted.fit([]) is unfitted

    def test_an_unfitted_model_can_be_copied(self) -> None:
        assert copy.deepcopy(self.make_model()).name == self.make_model().name

    def test_proposals_are_legal_never_repeat_and_end(
        self, model: PerformanceModel, entries: tuple[MeasuredOp, ...]
    ) -> None:
        for unfitted in (model, self.make_model()):
            for entry in entries:
                observed: list[Measurement] = []
                while (case := unfitted.propose(entry.op, observed, entry.machine)) is not None:
                    assert case in entry.machine.cases()
                    assert case not in {m.case for m in observed}
                    observed.append(entry.by_case[case])

    def test_nothing_is_proposed_when_everything_is_measured(
        self, model: PerformanceModel, entries: tuple[MeasuredOp, ...]
    ) -> None:
        for entry in entries:
            assert model.propose(entry.op, list(entry.by_case.values()), entry.machine) is None

    def test_curves_answer_the_cases_asked_for_with_positive_times_in_their_intervals(
        self, model: PerformanceModel, entries: tuple[MeasuredOp, ...]
    ) -> None:
        for entry in entries:
            cases = entry.machine.cases()
            for asked in (cases, cases[::-1], cases[-1:]):
                curve = model.predict(entry.op, replay(model, entry), asked, machine=entry.machine)
                assert curve.cases == asked
                assert np.all(curve.low > 0)
                assert np.all(curve.low <= curve.seconds)
                assert np.all(curve.seconds <= curve.high)

    def test_measured_points_are_the_medians_given(
        self, model: PerformanceModel, entries: tuple[MeasuredOp, ...]
    ) -> None:
        for entry in entries:
            observed = list(entry.by_case.values())
            curve = model.predict(entry.op, observed, entry.machine.cases(), machine=entry.machine)
            for measurement in observed:
                position = curve.cases.index(measurement.case)
                if curve.source[position] is Source.MEASURED:
                    assert curve.seconds[position] == measurement.seconds

    def test_points_that_were_not_given_are_not_said_to_be_measured(
        self, model: PerformanceModel, entries: tuple[MeasuredOp, ...]
    ) -> None:
        for entry in entries:
            observed = replay(model, entry)
            curve = model.predict(entry.op, observed, entry.machine.cases(), machine=entry.machine)
            measured = {case for case, source in zip(curve.cases, curve.source) if source is Source.MEASURED}
            assert measured <= {m.case for m in observed}

    @pytest.mark.parametrize("factor", [3.0, 1 / 3])
    def test_a_change_shows_after_three_samples_and_intervals_say_what_is_not_known(
        self, model: PerformanceModel, entries: tuple[MeasuredOp, ...], factor: float
    ) -> None:
        for entry in entries:
            before = list(entry.by_case.values())
            first = before[0]
            new = replace(first, samples=tuple(Sample(factor * first.seconds * n) for n in (0.99, 1.0, 1.01)))
            curve = model.predict(entry.op, [*before, new], entry.machine.cases(), machine=entry.machine)
            for i, case in enumerate(curve.cases):
                old_s = entry.by_case[case].seconds
                low, high = sorted([old_s, factor * old_s])
                if case == first.case:
                    assert curve.source[i] is Source.MEASURED
                    assert curve.seconds[i] == new.seconds
                    assert curve.low[i] < 0.95 * new.seconds
                    assert curve.high[i] > 1.05 * new.seconds
                else:  # it may have changed as much, or not
                    assert curve.source[i] is not Source.MEASURED
                    assert curve.seconds[i] == pytest.approx(factor * old_s)
                    assert curve.low[i] <= low
                    assert curve.high[i] >= high

    def test_forecasts_of_cases_that_were_never_measured_are_in_doubt_too_after_a_change(
        self, model: PerformanceModel, entries: tuple[MeasuredOp, ...]
    ) -> None:
        for entry in entries:
            before = replay(model, entry)
            if not before:
                before = list(entry.by_case.values())[:1]
            new = replace(before[0], samples=tuple(Sample(3 * before[0].seconds) for _ in range(3)))
            cases = entry.machine.cases()
            then = model.predict(entry.op, before, cases, machine=entry.machine)
            now = model.predict(entry.op, [*before, new], cases, machine=entry.machine)
            for i, case in enumerate(cases):
                if case not in {m.case for m in before}:
                    assert now.high[i] >= 2 * then.seconds[i]

    def test_observed_is_left_as_it_was_and_not_kept(
        self, model: PerformanceModel, entries: tuple[MeasuredOp, ...]
    ) -> None:
        entry = entries[0]
        observed = replay(model, entry)
        before = list(observed)
        cases = entry.machine.cases()
        first = model.predict(entry.op, observed, cases, machine=entry.machine)
        model.propose(entry.op, observed, entry.machine)
        assert observed == before
        observed.clear()
        _assert_same(model.predict(entry.op, before, cases, machine=entry.machine), first)

    def test_many_threads_get_the_same_curves(self, model: PerformanceModel, entries: tuple[MeasuredOp, ...]) -> None:
        def curve(entry: MeasuredOp) -> Curve:
            return model.predict(entry.op, replay(model, entry), entry.machine.cases(), machine=entry.machine)

        expected = [curve(entry) for entry in entries]
        with ThreadPoolExecutor(4) as pool:
            for found, wanted in zip(pool.map(curve, entries * 3), expected * 3):
                _assert_same(found, wanted)

    def test_many_ops_at_once_get_the_curves_of_one_after_the_other(
        self, model: PerformanceModel, entries: tuple[MeasuredOp, ...]
    ) -> None:
        machine = entries[0].machine
        observed = [replay(model, entry) for entry in entries]
        table = model.predict_many([e.op for e in entries], observed, machine.cases(), machine=machine)
        for row, entry in enumerate(entries):
            _assert_same(table[row], model.predict(entry.op, observed[row], machine.cases(), machine=machine))

    def test_a_stored_and_loaded_model_gives_the_same_curves_and_proposals(
        self, model: PerformanceModel, entries: tuple[MeasuredOp, ...]
    ) -> None:
        loaded = self.make_model().from_files(model.to_files())
        for entry in entries:
            observed = replay(model, entry)
            assert replay(loaded, entry) == observed
            cases = entry.machine.cases()
            found = loaded.predict(entry.op, observed, cases, machine=entry.machine)
            _assert_same(found, model.predict(entry.op, observed, cases, machine=entry.machine))

    def test_files_that_are_missing_or_cut_short_are_refused(self, model: PerformanceModel) -> None:
        files = model.to_files()
        for name, data in files.items():
            for damaged in ({**files, name: data[: len(data) // 2]}, {**files, name: b""}):
                with pytest.raises(ArtefactError):
                    self.make_model().from_files(damaged)
            with pytest.raises(ArtefactError):
                self.make_model().from_files({other: files[other] for other in files if other != name})


def _assert_same(found: Curve, wanted: Curve) -> None:
    assert found.cases == wanted.cases
    assert found.source == wanted.source
    for name in ("seconds", "low", "high"):
        # linear algebra on a batch may round the last digits otherwise than on one row
        np.testing.assert_allclose(getattr(found, name), getattr(wanted, name), rtol=1e-9)
