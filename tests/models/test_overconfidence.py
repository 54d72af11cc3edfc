"""Forecasts that are less certain than they say are found by checks, and campaigns then measure more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Self

import numpy as np
import pytest

from tests.models.test_following import CASES, GRAPH, OPS, PHI
from threadcast.collector.campaign import Campaign
from threadcast.collector.campaign_checks import CHECKED_CASES, checked_cases
from threadcast.collector.proposers import CheckedOp, Choice
from threadcast.core import Case, CurveTable, Machine, Measurement, Op, Sample, Source
from threadcast.models.base import PerformanceModel
from threadcast.models.choosing import outlook
from threadcast.models.following import FollowedModel
from threadcast.models.joint_process import JointProcess
from threadcast.models.overconfidence import MOST_SURPRISE, PRIOR_POINTS, surprise, widening
from threadcast.store import Store

MACHINE = Machine.uniform("flat", 8)


class Flat(PerformanceModel):
    """Forecasts a second everywhere, with a standard deviation of 10 %."""

    name = "flat"

    def predict(self, op: Op, observed: Sequence[Measurement], cases: Sequence[Case], *, machine: Machine):
        raise NotImplementedError

    def predict_many(self, ops, observed, cases, *, machine: Machine) -> CurveTable:
        ones, half = np.ones((len(ops), len(cases))), np.exp(1.645 * 0.1)
        source = np.full(ones.shape, list(Source).index(Source.LEARNED), dtype=np.int8)
        return CurveTable(tuple(cases), ones, ones / half, ones * half, source, self.name)

    def to_files(self) -> dict[str, bytes]:
        return {}

    def from_files(self, files: Mapping[str, bytes]) -> Self:
        return self


def checked(deviations: float, *, ops: int = 40) -> list[CheckedOp]:
    """Ops measured at two distant cases, off by so many standard deviations of `Flat` at random."""
    random = np.random.default_rng(0)
    far = [MACHINE.cases()[0], MACHINE.cases()[-1]]
    times = np.exp(0.1 * deviations * random.standard_normal((ops, 2))).tolist()
    return [
        CheckedOp(OPS[0], (), tuple(Measurement(OPS[0], MACHINE, c, (Sample(s),)) for c, s in zip(far, row)))
        for row in times
    ]


def widening_of(checked_ops: Sequence[CheckedOp]) -> float:
    return widening(surprise(Flat(), one) for one in checked_ops)


def test_intervals_are_widened_by_as_much_as_checks_lie_outside():
    assert widening_of(checked(0.5)) == 1.0
    assert widening_of(checked(1.0)) == pytest.approx(1.0, abs=0.1)
    assert widening_of(checked(1.0)) < widening_of(checked(1.6)) < widening_of(checked(3.0)) < 2.0
    assert widening_of([]) == 1.0


class Memorising(Flat):
    """As `Flat`, but ops that it was fitted to are forecast as they were measured."""

    def __init__(self) -> None:
        self.known: dict[tuple[str, Case], float] = {}

    def fit(self, measurements: Sequence[Measurement]) -> Self:
        self.known = {(m.op.key, m.case): m.seconds for m in measurements}
        return self

    def predict_many(self, ops, observed, cases, *, machine: Machine) -> CurveTable:
        found = super().predict_many(ops, observed, cases, machine=machine)
        factor = np.array([[self.known.get((op.key, case), 1.0) for case in cases] for op in ops])
        return replace(found, seconds=factor, low=factor * found.low, high=factor * found.high)


def test_a_check_is_of_what_the_model_has_not_learned():
    """Once it has learned the check, it forecasts the checked ops right, and others as badly as before."""
    found = [
        CheckedOp(op, (), tuple(replace(m, op=op) for m in one.found)) for op, one in zip(OPS, checked(3.0, ops=20))
    ]
    followed = FollowedModel(Memorising())
    followed.check(found[:10], MACHINE)
    before = followed.widened
    assert before == widening_of(found[:10]) > 1.2
    followed.learn([m for one in found[:10] for m in one.found], tune=True)
    assert followed.widened == before
    followed.check(found, MACHINE)
    assert followed.widened == widening_of(found)


def test_one_unlucky_op_does_not_decide():
    lone = checked(100.0, ops=1)
    assert widening_of(lone) <= np.sqrt((PRIOR_POINTS + 2 * MOST_SURPRISE) / (PRIOR_POINTS + 2))
    assert widening_of([*checked(0.5), *lone]) == 1.0


def test_a_wider_forecast_costs_more():
    model = JointProcess().fit([PHI(op, CASES[i % 3 * 20]) for i, op in enumerate(OPS)])
    known = [[PHI(op, CASES[i % 3 * 20])] for i, op in enumerate(OPS)]
    narrow, wide = (model.outlooks(OPS, known, PHI.machine, widened=by) for by in (1.0, 2.0))
    assert all(one.expected_regret < two.expected_regret for one, two in zip(narrow, wide))


def test_an_op_whose_own_measurements_surprise_is_less_certain():
    ops = OPS[:10]
    model = JointProcess().fit([PHI(op, case) for op in ops for case in CASES[::8]])
    usual = [PHI(ops[3], CASES[0]), PHI(ops[3], CASES[40])]
    odd = replace(usual[1], samples=tuple(Sample(5 * sample.seconds) for sample in usual[1].samples))
    as_usual, surprising = (
        np.diag(next(iter(model.distributions([ops[3]], [known], PHI.machine)))[1])
        for known in (usual, [usual[0], odd])
    )
    assert (surprising > 2 * as_usual).all()


def test_rare_large_errors_are_expected_of_a_t_distribution():
    logs, covariance = np.array([0.0, 0.1]), np.diag([1e-8, 0.03**2])
    allowed = np.ones(2, dtype=bool)
    normal, rare = (
        sum(outlook(logs, covariance, allowed, 1e-4, freedom=freedom, seed=seed).expected_regret for seed in range(50))
        for freedom in (None, 3.0)
    )
    assert 2 * normal < rare


def test_a_check_measures_the_chosen_case_what_tells_most_and_a_rival():
    case, best, other, third = CASES[:4]
    choice = Choice(best, 1.0, 0.1, other, (case, other, third))
    assert checked_cases(choice, ())[:2] == [best, other]
    assert len(checked_cases(choice, ())) == CHECKED_CASES
    known = [Measurement(OPS[0], PHI.machine, c, (Sample(1.0),)) for c in (best, case)]
    assert set(checked_cases(choice, known)) == {other, third}
    assert checked_cases(Choice(best, 1.0, 0.0, None, (case,)), known) == []


class Doubting:
    """Says that each choice costs nothing, until a first check; then that each costs 10 % until it is measured twice
    more."""

    def __init__(self) -> None:
        self.checks: list[list[str]] = []

    def propose(self, op: Op, observed: Sequence[Measurement], machine: Machine) -> Case | None:
        raise AssertionError("choices say what is measured next")

    def choices(self, ops: Sequence[Op], observed: Sequence[Sequence[Measurement]], machine: Machine) -> list[Choice]:
        return [self._choice(len(known)) for known in observed]

    def _choice(self, known: int) -> Choice:
        doubtful = bool(self.checks) and known < 3
        return Choice(CASES[0], 1.0, 0.1 if doubtful else 0.0, CASES[known], CASES[known : known + 2])

    def learn(self, measurements: Sequence[Measurement], *, tune: bool) -> None:
        pass

    def check(self, checked: Sequence[CheckedOp], machine: Machine) -> None:
        assert all(one.found and {m.case for m in one.found}.isdisjoint(m.case for m in one.before) for one in checked)
        self.checks.append([one.op.key for one in checked])


def test_a_campaign_goes_on_where_a_check_raises_doubt_and_then_checks_other_ops(tmp_path: Path) -> None:
    proposer = Doubting()
    with Store.open(tmp_path / "store.db") as store:
        report = Campaign(PHI, proposer, store, check=4, clock=lambda: 0.0).run(GRAPH)
    first, second = proposer.checks
    assert (len(first), len(second), len(set(second))) == (4, 8, 8)
    assert second[:4] == first
    assert report.checked is not None
    assert report.checked.ops == 4
    assert sum(len(known) < 3 for known in report.observed.values()) <= 0.2 * len(OPS)  # so that the mean is 2 %
