"""The ranges of integers are right: what is allowed computes alike, what may not is named."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from tests.runtime.backends.test_program_file import passed_on
from threadcast.runtime.backends.integer_ranges import MOST, IntegerLimits, Range, integer_limits

WORDS = torch.tensor([[3, 1, 0], [2, 2, 1]])
TABLE = torch.arange(20.0).reshape(10, 2)


def limits_of(function: Callable[..., Any], *arguments: Any) -> IntegerLimits:
    return integer_limits(passed_on(function, *arguments))


def test_indices_of_a_table_are_its_rows() -> None:
    found = limits_of(lambda words, x: F.embedding(words.t()[1:], TABLE).sum() + x, WORDS, torch.ones(2))
    assert found.arguments == [Range(0, 9), None]
    assert (found.wide, found.refused, found.divides, found.double) == (None, None, None, False)


def test_the_smallest_table_counts() -> None:
    found = limits_of(lambda w: F.embedding(w, TABLE) + F.embedding(w.view(2, 3), TABLE[:4]), WORDS)
    assert found.arguments == [Range(0, 3)]


def test_indices_that_may_count_from_the_end_may_do_so() -> None:
    assert limits_of(lambda i: TABLE[i] * 2, torch.tensor([-1, 2])).arguments == [Range(-10, 9)]


def test_positions_counted_from_a_mask_are_known() -> None:
    """As RoBERTa does."""

    def positions(words: Tensor) -> Tensor:
        mask = words.ne(1).int()
        return F.embedding((torch.cumsum(mask, 1).type_as(mask) * mask).long() + 1, TABLE)

    found = limits_of(positions, WORDS)
    assert found.arguments == [Range(0, MOST)]
    assert (found.wide, found.refused) == (None, None)  # at most 6 numbers, 1 beside them, of 10 rows
    assert limits_of(lambda w: positions(w.repeat(2, 1)), WORDS).refused == "embedding"  # 12 of 10, as far as is known


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (lambda w: F.embedding((w * 1_000_003) % 10, TABLE), "mul"),
        (lambda w: w + 2**31, "add"),
        (lambda w: (w * w * w).sum(), "mul"),
        (lambda w: w.pow(2), "pow"),
        (lambda w: (w.float() * 2).long() + 0, "_to_copy"),
        (lambda w: w.to(torch.float32).sum().to(torch.int64) * 1, "_to_copy"),
        (lambda w: w.cumsum(0) * MOST, "mul"),
        (lambda w: -w - 2**31, "sub"),
        (lambda w: torch.max(w, torch.full((3,), 2**40)), "maximum"),
        (lambda w: torch.ops.aten.max.other(w, torch.full((3,), 2**40)), "maximum"),
    ],
)
def test_integers_that_may_need_64_bits_are_found(function: Callable[[Tensor], Tensor], name: str) -> None:
    assert limits_of(function, WORDS).wide == name


@pytest.mark.parametrize(
    "function",
    [
        lambda w: F.embedding(w + 0, TABLE),
        lambda w: F.embedding(w.clamp(max=9) + 1, TABLE),
        lambda w: torch.gather(TABLE, 0, w[:, :2] * 2),
        lambda w: TABLE.index_select(0, (w * 2).flatten()),
        lambda w: torch.zeros(4).scatter(0, (w + 0).flatten(), 1.0),
        lambda w: w.to(torch.int8) + 1,
    ],
)
def test_integers_that_may_be_no_indices_or_not_fit_their_type_are_found(function: Callable[[Tensor], Tensor]) -> None:
    assert limits_of(function, WORDS).refused is not None


@pytest.mark.parametrize(
    "function",
    [
        lambda w: F.embedding(w.clamp(0, 9), TABLE),
        lambda w: F.embedding(w.clamp(min=0).clamp(max=9), TABLE),
        lambda w: F.embedding(w.clamp(max=9) - 1 + 1, TABLE),
        lambda w: F.embedding(w % 10, TABLE),
        lambda w: F.embedding(w.masked_fill(w > 1, 0).where(w > 2, w.new_zeros(()).long()).clamp_max(9), TABLE),
        lambda w: F.embedding(torch.cat([w, w]).flip(0), TABLE),
        lambda w: F.embedding(w.float().argmax(1), TABLE),
        lambda w: F.embedding(w.float().topk(2, 1)[1], TABLE),
        lambda w: list(F.max_pool2d(w.float()[None], 2, return_indices=True)),
        lambda w: TABLE[w, torch.tensor([0, 1, 0])] * 1,
        lambda w: F.embedding(torch.div(w.clamp(max=19), 2, rounding_mode="floor"), TABLE),
        lambda w: F.embedding((5 - w.clamp(0, 5)).abs(), TABLE),
        lambda w: TABLE[torch.arange(3)] + w.sum(),
    ],
)
def test_integers_that_are_surely_right_are_allowed(function: Callable[[Tensor], Tensor]) -> None:
    found = limits_of(function, WORDS)
    assert (found.wide, found.refused) == (None, None)


def test_division_by_what_may_be_0_is_found() -> None:
    assert limits_of(lambda w, d: w // d, WORDS, torch.tensor(3)).divides == "floor_divide"
    assert limits_of(lambda w: w // 3, WORDS).divides is None
    assert limits_of(lambda w: w / 2, WORDS).divides is None


def test_large_integers_in_the_example_are_wide() -> None:
    assert limits_of(lambda w: (w > 5) * 1.0, WORDS + 2**40).wide == "an argument"


def test_double_precision_is_found() -> None:
    assert limits_of(lambda w: w.double().sum().float(), WORDS).double
