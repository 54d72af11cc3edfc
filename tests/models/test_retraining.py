"""Candidates beside the champion."""

from __future__ import annotations

import statistics
from dataclasses import replace

import pytest

from tests.models.synthetic_ops import make_ops, measure_all
from threadcast.core import Measurement, Sample
from threadcast.core.errors import ModelError
from threadcast.models import retraining
from threadcast.models.base import PerformanceModel
from threadcast.models.drift import ratios
from threadcast.models.learned_curve import LearnedCurve
from threadcast.models.measured import group
from threadcast.models.retraining import Verdict, is_held_out
from threadcast.store.holding import all_that_holds


def slower(measured: list[Measurement], factor: float) -> list[Measurement]:
    """The same ops, each sample longer by this factor."""
    return [replace(m, samples=tuple(Sample(s.seconds * factor) for s in m.samples)) for m in measured]


def compete(champion: PerformanceModel, measured: list[Measurement]) -> Verdict:
    """Compete by what holds now of these measurements."""
    return retraining.compete(champion, group(all_that_holds(measured)))


@pytest.fixture(scope="module")
def measured() -> list[Measurement]:
    return list(measure_all(make_ops(60)))


@pytest.fixture(scope="module")
def champion(measured: list[Measurement]) -> LearnedCurve:
    return LearnedCurve(trees=20, samples=0).fit([m for m in measured if not is_held_out(m.op.key)])


def test_a_candidate_is_better_once_times_have_changed(measured: list[Measurement], champion: LearnedCurve) -> None:
    verdict = compete(champion, [*measured, *slower(measured, 2.0)])
    assert verdict.better
    assert verdict.candidate is not champion
    assert verdict.candidate_row.accuracy is not None
    assert verdict.champion_row.accuracy is not None
    assert verdict.candidate_row.accuracy > verdict.champion_row.accuracy + 0.2
    assert verdict.candidate_row.ops == verdict.champion_row.ops >= 4


def test_a_candidate_that_learned_the_same_is_not_better(measured: list[Measurement], champion: LearnedCurve) -> None:
    assert not compete(champion, measured).better


def test_a_candidate_that_learned_from_less_is_not_better(measured: list[Measurement], champion: LearnedCurve) -> None:
    kept = {m.op.key for m in measured if not is_held_out(m.op.key)}
    few = sorted(kept)[:3]
    verdict = compete(champion, [m for m in measured if m.op.key in few or is_held_out(m.op.key)])
    assert not verdict.better


def test_held_out_ops_measured_in_few_cases_count_against_neither(measured: list[Measurement]) -> None:
    learned = LearnedCurve(trees=20, samples=2).fit([m for m in measured if not is_held_out(m.op.key)])
    slow = slower(measured, 2.0)
    cases = sorted({m.case for m in measured})
    held_out = sorted({m.op.key for m in measured if is_held_out(m.op.key)})
    for few in (cases[:1], cases[-1:]):  # one of them is not what a model asks for first
        kept = [m for m in slow if m.op.key not in held_out[:4] or m.case in few]
        verdict = compete(learned, kept)
        assert verdict.champion_row.unusable == verdict.candidate_row.unusable == 0
        assert verdict.candidate_row.points == verdict.champion_row.points
        assert verdict.candidate_row.ops == len(held_out)
        assert verdict.better


def test_too_few_ops_to_judge_by_are_an_error(measured: list[Measurement], champion: LearnedCurve) -> None:
    with pytest.raises(ModelError, match="held out"):
        compete(champion, [m for m in measured if not is_held_out(m.op.key)])


def test_ops_are_not_judged_by_cases_that_were_not_measured_since_a_change(
    measured: list[Measurement], champion: LearnedCurve
) -> None:
    some = [m for m in measured if not is_held_out(m.op.key) or m.case == measured[0].case]
    verdict = compete(champion, [*measured, *slower(some, 2.0)])
    assert verdict.champion_row.points == len({m.op.key for m in measured if is_held_out(m.op.key)})


def test_ratios_are_measured_over_forecast_times(measured: list[Measurement], champion: LearnedCurve) -> None:
    for factor in (4.0, 0.25):
        found = ratios(champion, slower(measured, factor), most_ops=60)
        assert statistics.median(found) == pytest.approx(factor, rel=0.3)
