"""Differences that come again in each step are a wrong plan's; others are chance."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import count

import pytest
import torch
from torch import Tensor

from threadcast.runtime.verification.chance import Pair, is_chance
from threadcast.runtime.verification.sensitivity import Sensitivity

BEFORE = torch.linspace(-1, 1, 100)
KNOWN = {"w": Sensitivity(allowed=1e-3, numbers=1)}
"""So each number may differ by 1e-3 besides, and 8 by more than any value may."""


def _pair(wrong: Tensor, *, moved: Tensor | None = None) -> Pair:
    """A step that moves `w`, and a plan that moves it further by a share of the largest movement."""
    eager = BEFORE + (torch.arange(100) / 100 if moved is None else moved)
    return Pair({"w": BEFORE}, {"w": eager}, {"w": eager + wrong.float()})


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
        (lambda step: _at(4, 5, 6, 7), True),
        (lambda step: _at(step), True),
        (lambda step: _at(3) if step % 2 else _at(), True),
        (lambda step: _at() if step in (5, 7) else _at(3), True),
        (lambda step: _at() if step in (5, 8) else _at(3), False),
        (lambda step: _at(3, by=-0.05 if step % 2 else 0.05), False),
    ],
    ids=[
        "agrees", "always", "always but once", "always elsewhere", "elsewhere each time", "each second time",
        "all but two of eight", "all but one of eight", "always, with another sign",
    ],
)  # fmt: skip
def test_a_number_that_agrees_in_two_of_eight_steps_differs_by_chance(wrong: Wrong, chance: bool) -> None:
    others = (_pair(wrong(step)) for step in count())
    assert is_chance(_pair(_at(3)), others, KNOWN) == chance


@pytest.mark.parametrize(("size", "chance"), [(8, True), (9, False)])
def test_as_many_numbers_may_differ_in_each_step_as_eagers_own_often_do(size: int, chance: bool) -> None:
    """By less than eager is sensitive, but by more than any value may."""
    little = 5e-4 * (torch.arange(100) < size)
    assert is_chance(_pair(5e-4 * (torch.arange(100) < 30)), (_pair(little) for _ in count()), KNOWN) == chance


def test_what_differs_by_too_much_for_chance_in_a_further_step_is_wrong() -> None:
    steps = iter([_pair(_at()), _pair(_at()), _pair(_at(50, by=0.3))])
    assert is_chance(_pair(_at(3)), steps, KNOWN), "two that agree are enough"
    steps = iter([_pair(_at(50, by=0.3)), *[_pair(_at())] * 7])
    assert not is_chance(_pair(_at(3)), steps, KNOWN)


def test_steps_that_end_early_do_not_show_chance() -> None:
    assert not is_chance(_pair(_at(3)), iter([]), KNOWN)
    assert not is_chance(_pair(_at(3)), iter([_pair(_at())]), KNOWN)


def test_no_more_steps_are_run_than_it_takes() -> None:
    ran: list[int] = []

    def steps(wrong: Wrong) -> Iterator[Pair]:
        for step in count():
            ran.append(step)
            yield _pair(wrong(step))

    assert is_chance(_pair(_at(3)), steps(lambda step: _at(4)), KNOWN)
    assert len(ran) == 2
    assert not is_chance(_pair(_at(3)), steps(lambda step: _at(3)), KNOWN)
    assert len(ran) == 2 + 8


def test_numbers_that_are_not_finite_tell_nothing() -> None:
    moved = torch.ones(100).where(torch.arange(100) != 3, math.nan)
    assert not is_chance(_pair(_at(3)), (_pair(_at(), moved=moved) for _ in count()), KNOWN)
    masked = torch.ones(100).where(torch.arange(100) != 4, -math.inf)
    first = _pair(_at(3), moved=masked)
    assert is_chance(first, (_pair(_at(), moved=masked) for _ in count()), KNOWN), "4 never differed"


def test_only_values_that_differ_are_looked_at() -> None:
    def pair(wrong: Tensor, other: Tensor) -> Pair:
        first, second = _pair(wrong), _pair(other)
        return Pair(*({"w": one["w"], "v": two["w"]} for one, two in zip(first, second, strict=True)))

    others = (pair(_at(), _at(*range(10))) for _ in count())
    known = {"w": KNOWN["w"], "v": Sensitivity(allowed=0.1, numbers=5)}
    assert is_chance(pair(_at(3), _at(7)), others, known), "v may differ by as much in the first step"
