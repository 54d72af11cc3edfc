"""Differences that come again in each step are a wrong plan's; others are chance."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count

import pytest
import torch
from torch import Tensor

from threadcast.runtime.check.chance import Pair, is_chance
from threadcast.runtime.check.sensitivity import Sensitivity

BEFORE = torch.linspace(-1, 1, 100)
KNOWN = {"w": Sensitivity(allowed=1e-3, numbers=1)}
"""So each number may differ by 1e-3 besides, and 8 by more than any value may."""


def _pair(wrong: Tensor, *, moved: Tensor | None = None) -> Pair:
    """A step that moves `w`, and a plan that moves it further by a share of the largest movement."""
    eager = BEFORE + (torch.arange(100) / 100 if moved is None else moved)
    return Pair({"w": BEFORE}, {"w": eager}, {"w": eager + wrong.float()})


def _unasked(names: Sequence[str]) -> Mapping[str, Sensitivity]:
    raise AssertionError(f"the sensitivity of {names} is not needed")


def _at(*numbers: int, by: float = 0.05) -> Tensor:
    return by * torch.isin(torch.arange(100), torch.tensor(numbers))


Wrong = Callable[[int], Tensor]
"""What is wrong in each further step."""


@pytest.mark.parametrize(
    ("wrong", "chance"),
    [
        (lambda step: _at(), True),
        (lambda step: _at(3), False),
        (lambda step: _at(3, 4) if step else _at(4), False),
        (lambda step: _at(4, 5, 6, 7), False),
        (lambda step: _at(4 + step), False),
        (lambda step: _at(4 + step) if step else _at(), True),
        (lambda step: _at(3) if step % 2 else _at(), True),
        (lambda step: _at() if step in (5, 7) else _at(3), True),
        (lambda step: _at() if step in (5, 8) else _at(3), False),
        (lambda step: _at(3, by=-0.05 if step % 2 else 0.05), False),
    ],
    ids=[
        "agrees", "always", "always but once", "always elsewhere", "elsewhere each time", "elsewhere but once",
        "each second time",
        "all but two of eight", "all but one of eight", "always, with another sign",
    ],
)  # fmt: skip
def test_a_number_that_agrees_in_two_of_eight_steps_differs_by_chance(wrong: Wrong, chance: bool) -> None:
    others = (_pair(wrong(step)) for step in count())
    assert is_chance(_pair(_at(3)), others, KNOWN, _unasked) == chance


@pytest.mark.parametrize(("size", "chance"), [(8, True), (9, False)])
def test_as_many_numbers_may_differ_in_each_step_as_eagers_own_often_do(size: int, chance: bool) -> None:
    """By less than eager is sensitive, but by more than any value may."""
    little = 5e-4 * (torch.arange(100) < size)
    assert (
        is_chance(_pair(5e-4 * (torch.arange(100) < 30)), (_pair(little) for _ in count()), KNOWN, _unasked) == chance
    )


@pytest.mark.parametrize(
    ("far", "chance"),
    [
        ("..", True),
        (".F.", True),
        ("F..", True),
        ("F.F..", True),
        ("FF...", True),
        ("F.F.F...", False),
        ("FFF.....", False),
    ],
)
def test_numbers_may_differ_by_much_in_two_further_steps_and_the_fewer_ones(far: str, chance: bool) -> None:
    steps = iter([_pair(_at(50, by=0.3) if letter == "F" else _at()) for letter in far])
    assert is_chance(_pair(_at(3)), steps, KNOWN, _unasked) == chance
    assert next(steps, None) is None or not chance, "no step fewer is enough"


def test_steps_that_end_early_do_not_show_chance() -> None:
    assert not is_chance(_pair(_at(3)), iter([]), KNOWN, _unasked)
    assert not is_chance(_pair(_at(3)), iter([_pair(_at())]), KNOWN, _unasked)


def test_no_more_steps_are_run_than_it_takes() -> None:
    ran: list[int] = []

    def steps(wrong: Wrong) -> Iterator[Pair]:
        for step in count():
            ran.append(step)
            yield _pair(wrong(step))

    assert is_chance(_pair(_at(3)), steps(lambda step: _at(3 + step) if step else _at()), KNOWN, _unasked)
    assert len(ran) == 2
    assert not is_chance(_pair(_at(3)), steps(lambda step: _at(3)), KNOWN, _unasked)
    assert len(ran) == 2 + 8


def test_a_plan_that_agrees_as_a_whole_in_no_step_is_wrong() -> None:
    """Numbers 3 and 4 are chance each by itself."""

    def differing(step: int) -> Tensor:
        return _at(3 if step % 2 else 4)

    assert not is_chance(_pair(_at(3, 4)), (_pair(differing(step)) for step in count()), KNOWN, _unasked)
    others = (_pair(_at() if step == 5 else differing(step)) for step in count())
    assert is_chance(_pair(_at(3, 4)), others, KNOWN, _unasked)


def test_numbers_that_are_not_finite_tell_nothing() -> None:
    moved = torch.ones(100).where(torch.arange(100) != 3, math.nan)
    assert not is_chance(_pair(_at(3)), (_pair(_at(), moved=moved) for _ in count()), KNOWN, _unasked)
    masked = torch.ones(100).where(torch.arange(100) != 4, -math.inf)
    first = _pair(_at(3), moved=masked)
    assert is_chance(first, (_pair(_at(), moved=masked) for _ in count()), KNOWN, _unasked), "4 never differed"


def test_an_infinity_that_eager_itself_has_in_some_runs_only_does_not_refuse_a_plan() -> None:
    masked = torch.ones(100).where(torch.arange(100) != 7, math.inf)
    first = _pair(_at(3), moved=masked)
    first.plan["w"][7] = 1.0
    known = {"w": Sensitivity(allowed=1e-3, numbers=1, infinities=1)}
    assert is_chance(first, (_pair(_at()) for _ in count()), known, _unasked)
    assert is_chance(first, (_pair(_at(), moved=masked) for _ in count()), known, _unasked)


def test_steps_of_other_sizes_tell_nothing() -> None:
    def other(size: int) -> Pair:
        return Pair({}, {"w": torch.ones(size)}, {"w": torch.ones(size)})

    for size in (0, 1, 50):
        assert not is_chance(_pair(_at(3)), (other(size) for _ in count()), KNOWN, _unasked)
        steps = iter([other(size), other(size), _pair(_at()), _pair(_at())])
        assert is_chance(_pair(_at(3)), steps, KNOWN, _unasked)


OTHERS = {
    "zeros": torch.zeros(100), "NaN": torch.full((100,), math.nan), "another shape": torch.ones(99),
    "another type": torch.ones(100).double(), "an integer": torch.ones(100).long(),
}  # fmt: skip


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
def test_what_agreed_in_the_first_step_must_not_be_far_off_in_another(other: Tensor) -> None:
    """Whether or not its sensitivity was asked for in the first step."""

    def pair(wrong: Tensor, found: Tensor) -> Pair:
        step = _pair(wrong)
        return Pair(step.before, {**step.eager, "v": torch.ones(100)}, {**step.plan, "v": found})

    exact = Sensitivity(allowed=1e-3)
    first, right, wrong = pair(_at(3), torch.ones(100)), pair(_at(), torch.ones(100)), pair(_at(), other)
    for known in (KNOWN, {**KNOWN, "v": exact}):
        assert is_chance(first, iter([right, right, wrong]), known, _unasked)
        assert not is_chance(first, iter([right, *[wrong] * 7]), known, lambda names: {"v": exact})
    missing = Pair(right.before, right.eager, {"w": right.plan["w"]})
    assert not is_chance(first, iter([missing, *[right] * 7]), KNOWN, _unasked)
    assert not is_chance(first, iter([Pair(right.before, missing.plan, right.plan), *[right] * 7]), KNOWN, _unasked)


def test_what_agreed_in_the_first_step_may_differ_as_far_as_eager_is_sensitive() -> None:
    def pair(wrong: Tensor, found: float) -> Pair:
        step = _pair(wrong)
        return Pair(step.before, {**step.eager, "v": torch.ones(100)}, {**step.plan, "v": torch.full((100,), found)})

    asked: list[Sequence[str]] = []

    def ask(names: Sequence[str]) -> Mapping[str, Sensitivity]:
        asked.append(names)
        return {name: Sensitivity(allowed=1.0, numbers=100) for name in names}

    others = (pair(_at(3) if step < 3 else _at(), 1.5) for step in count())
    assert is_chance(pair(_at(3), 1.0), others, KNOWN, ask)
    assert asked == [["v"]], "once for all steps"


@pytest.mark.parametrize(("wrong", "chance"), [(3e-7, True), (8e-7, False)])
def test_a_running_mean_agrees_by_the_standard_deviation_beside_it(wrong: float, chance: bool) -> None:
    """It moves by 1e-4, and may differ by four roundings of a deviation of 1, 5e-7."""

    def pair(wrong: float) -> Pair:
        before = {"n.running_mean": torch.zeros(100), "n.running_var": torch.ones(100)}
        eager = {**before, "n.running_mean": torch.full((100,), 1e-4)}
        return Pair(before, eager, {**before, "n.running_mean": eager["n.running_mean"] + wrong})

    assert is_chance(pair(3e-6), (pair(wrong) for _ in count()), {"n.running_mean": Sensitivity()}, _unasked) == chance


def test_nothing_that_differs_is_no_chance() -> None:
    assert not is_chance(_pair(_at()), (_pair(_at()) for _ in count()), KNOWN, _unasked)
