"""The choice between float32 and bfloat16."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from threadcast.runtime.doors.type_choice import CHECKS, RECHECK, TypeChoice, Way, largest_difference
from threadcast.runtime.tuner.budget import Budget


class Clock:
    """Reports calls of a choice, one after the other, and returns how they ran."""

    def __init__(self, choice: TypeChoice) -> None:
        self.choice, self.now_s = choice, 0.0

    def call(self, *, float32_s: float, bfloat16_s: float, difference: float = 0.01) -> Way:
        way = self.choice.next_way()
        seconds = bfloat16_s if way is Way.BFLOAT16 else float32_s
        if way is Way.BOTH:
            self.choice.compared(difference, seconds=bfloat16_s)
        elif way is Way.FLOAT32:
            self.choice.ran_float32(started_s=self.now_s, seconds=seconds, settled=True)
        else:
            self.choice.ran_bfloat16(started_s=self.now_s, seconds=seconds, settled=True)
        self.now_s += seconds
        return way


def ran(choice: TypeChoice, calls: int = 200, **seconds: float) -> list[Way]:
    clock = Clock(choice)
    return [clock.call(**seconds) for _ in range(calls)]


def test_bfloat16_runs_where_it_is_faster() -> None:
    choice = TypeChoice()
    ways = ran(choice, float32_s=0.02, bfloat16_s=0.01)
    assert ways[: 1 + CHECKS] == [Way.FLOAT32, *[Way.BOTH] * CHECKS]
    assert choice.report.runs == "bfloat16"
    assert ways[-1] is Way.BFLOAT16
    assert choice.report.verdict is not None
    assert choice.report.verdict.gain == pytest.approx(2.0)
    assert choice.report.largest_difference == 0.01


def test_float32_runs_where_it_is_faster() -> None:
    choice = TypeChoice()
    ways = ran(choice, float32_s=0.01, bfloat16_s=0.02)
    assert choice.report.runs == "float32"
    assert ways[-1] is Way.FLOAT32


def test_a_backend_is_compared_once_and_again_after_writes() -> None:
    choice, way = TypeChoice(), Clock(TypeChoice())
    ran(choice, float32_s=0.02, bfloat16_s=0.01)
    assert not choice.compared_way(way, 0.06)
    assert not choice.compared_ways
    assert choice.compared_way(way, 0.04)
    assert way in choice.compared_ways
    assert choice.report.runs == "bfloat16"
    assert choice.report.largest_difference == 0.04
    choice.written()
    assert not choice.compared_ways


def test_calls_in_bfloat16_are_compared_from_time_to_time_while_they_learn() -> None:
    choice, ways = TypeChoice(), []
    ran(choice, 1 + CHECKS, float32_s=0.02, bfloat16_s=0.01)
    for _ in range(RECHECK + 1):
        ways.append(choice.next_way())
        if ways[-1] is Way.BOTH:
            choice.compared(0.01)
        else:
            choice.ran_bfloat16(started_s=0.0, seconds=0.01, settled=False)
    assert ways.count(Way.BOTH) == 1


@pytest.mark.parametrize("difference", [0.06, math.inf, math.nan])
def test_no_result_is_returned_in_bfloat16_where_one_differs_too_much(difference: float) -> None:
    choice = TypeChoice()
    assert Way.BFLOAT16 not in ran(choice, float32_s=0.02, bfloat16_s=0.01, difference=difference)
    assert choice.report.runs == "float32"
    assert "differ by" in choice.report.reason


def test_calls_in_bfloat16_are_compared_again_after_writes_and_from_time_to_time() -> None:
    choice = TypeChoice()
    ran(choice, float32_s=0.02, bfloat16_s=0.01)
    choice.written()
    assert ran(choice, 2, float32_s=0.02, bfloat16_s=0.01) == [Way.BOTH, Way.BFLOAT16]
    assert ran(choice, RECHECK, float32_s=0.02, bfloat16_s=0.01).count(Way.BOTH) == 1
    choice.written()
    ran(choice, 1, float32_s=0.02, bfloat16_s=0.01, difference=1.0)
    assert choice.report.runs == "float32"


def test_learning_in_bfloat16_loses_little() -> None:
    budget, lost_s = Budget(0.05), 0.0
    choice = TypeChoice(budget=budget)
    clock = Clock(choice)
    for _ in range(1 + CHECKS):
        clock.call(float32_s=0.5, bfloat16_s=1.0)
    for number in range(100):
        if choice.next_way() is Way.BFLOAT16:
            choice.ran_bfloat16(started_s=0.0, seconds=1.0, settled=False)
            lost_s += 0.5
        else:
            choice.ran_float32(started_s=0.0, seconds=0.5, settled=True)
        assert lost_s <= budget.start_s + 0.5 + 0.05 * (number + 1)


@pytest.mark.parametrize(
    ("one", "other", "difference", "words"),
    [
        (torch.tensor([1.0, -4.0]), torch.tensor([1.0, -4.2]), 0.05, ""),
        ({"a": torch.zeros(2)}, {"a": torch.zeros(2)}, 0.0, ""),
        (torch.zeros(2), torch.ones(2), math.inf, ""),
        (torch.tensor([math.inf, 1.0]), torch.tensor([math.inf, 1.0]), 0.0, ""),
        (torch.tensor([math.nan, 1.0]), torch.tensor([2.0, 1.0]), math.inf, ""),
        (torch.tensor([-1e30, 2.0]), torch.tensor([-1e30, 1.0]), 0.5, ""),
        (torch.tensor([1, 2]), torch.tensor([1, 3]), 0.0, "1 of 2"),
        (torch.ones(2), torch.ones(3), 0.0, "shape"),
        ([torch.ones(1)], (torch.ones(1),), 0.0, "nested"),
        (1, 2, 0.0, "1 in float32 and 2"),
    ],
)
def test_differences_are_shares_of_the_largest_number(one: Any, other: Any, difference: float, words: str) -> None:
    found, why = largest_difference(one, other)
    assert found == pytest.approx(difference)
    assert words in why
    assert bool(words) == bool(why)
