"""Integers are allowed as far as all that they become are indices that PyTorch accepts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from tests.runtime.backends.programs import passed_on
from threadcast.runtime.backends.index_ranges import MOST, IndexRanges, index_ranges
from threadcast.runtime.backends.number_guard import Range

WORDS = torch.tensor([[3, 1, 0], [2, 2, 1]])
TABLE, MANY = torch.arange(20.0).reshape(10, 2), torch.zeros(MOST, 1)


def limits_of(function: Callable[..., Any], *arguments: Any) -> IndexRanges:
    return index_ranges(passed_on(function, *arguments))


def test_indices_of_a_table_are_its_rows() -> None:
    found = limits_of(lambda words, x: F.embedding(words.t()[1:], TABLE).sum() + x, WORDS, torch.ones(2))
    assert found == ([Range(0, 9), None], None)


def limits_of_words(function: Callable[[Tensor], Any]) -> IndexRanges:
    """With words that are not taken to be what they are in the example, as a table says what they may be."""
    return limits_of(lambda w: [F.embedding(w, MANY), function(w)], WORDS)


def written(value: Tensor, write: Callable[[Tensor], Any]) -> Tensor:
    """Rows of `TABLE` by a copy of `value` to which is written."""
    copy = value.clone()
    write(copy)
    return F.embedding(copy, TABLE)


def counts(value: Tensor) -> Tensor:
    """How often each number up to 3 is in a tensor of six."""
    return torch.zeros(4, dtype=torch.int64).index_put((value.flatten(),), torch.ones(6).long(), accumulate=True)


def test_the_smallest_table_counts() -> None:
    found = limits_of(lambda w: F.embedding(w, TABLE) + F.embedding(w.view(2, 3), TABLE[:4]), WORDS)
    assert found.arguments == [Range(0, 3)]


def test_indices_that_may_count_from_the_end_may_do_so() -> None:
    assert limits_of(lambda i: TABLE[i] * 2, torch.tensor([-1, 2])).arguments == [Range(-10, 9)]


@pytest.mark.parametrize(
    ("function", "wanted"),
    [
        (lambda w: F.embedding(w + 2, TABLE), Range(0, 7)),
        (lambda w: F.embedding(3 + w.t(), TABLE), Range(0, 6)),
        (lambda w: F.embedding(w - 1 + 4, TABLE), Range(0, 6)),
        (lambda w: F.embedding(w + torch.tensor([0, 3, 6]), TABLE), Range(0, 3)),
        (lambda w: F.embedding(torch.cat([w, w + 5]), TABLE), Range(0, 4)),
        (lambda w: F.embedding(w + 1, TABLE) + F.embedding(w, TABLE[:6]), Range(0, 5)),
        (lambda w: TABLE[w - 1], Range(0, 10)),
    ],
)
def test_limits_pass_back_through_what_is_added(function: Callable[[Tensor], Tensor], wanted: Range) -> None:
    """As where tables of several columns are one, and of the last of so many states."""
    found = limits_of(function, WORDS)
    assert (found.arguments, found.refused) == ([wanted], None)


@pytest.mark.parametrize("offsets", [[0, 5, 8], [0, 0, 8]])
def test_nothing_is_limited_to_what_the_example_is_not(offsets: list[int]) -> None:
    assert limits_of(lambda w: F.embedding(w + torch.tensor(offsets), TABLE), WORDS).refused is not None


def test_positions_counted_from_a_mask_are_known() -> None:
    """As RoBERTa does."""

    def positions(words: Tensor, table: Tensor) -> Tensor:
        mask = words.ne(1).int()
        return F.embedding((torch.cumsum(mask, 1).type_as(mask) * mask).long() + 1, table)

    assert limits_of(lambda w: positions(w, TABLE[:5]), WORDS) == ([Range(0, MOST)], None), "at most 3 numbers and 1"
    assert limits_of(lambda w: positions(w, TABLE[:4]), WORDS).refused is not None


@pytest.mark.parametrize("kind", [torch.int32, torch.int64])
def test_positions_among_integers_are_known(kind: torch.dtype) -> None:
    """As CLIP, which pools at the position of the largest word."""
    hidden = torch.rand(*WORDS.shape, 4)
    rows = torch.arange(len(WORDS))
    found = limits_of(lambda w: hidden[rows, w.to(kind).argmax(-1)], WORDS)
    assert found == ([Range(0, MOST)], None)


@pytest.mark.parametrize("position", [torch.argmax, torch.argmin])
def test_positions_among_all_integers_are_known(position: Callable[[Tensor], Tensor]) -> None:
    words = torch.tensor([0, 9, 3, 4])
    assert limits_of(lambda w: F.embedding(position(w), TABLE[: len(words)]), words).refused is None


def test_masks_may_be_what_they_are_in_the_example_where_more_is_too_much() -> None:
    """As OPT does, and pooling of the last token."""
    mask = torch.tensor([[1, 1, 1], [1, 1, 0]])
    found = limits_of(lambda w, m: F.embedding(w, TABLE) + F.embedding(m.cumsum(1) * m, TABLE[:4]), WORDS, mask)
    assert found.arguments == [Range(0, 9), Range(0, 1)]
    assert found.refused is None
    assert limits_of(lambda w, m: F.embedding(w, TABLE) * m[..., None], WORDS, mask).arguments[1] == Range(0, 1)


ALL = Range(0, MOST - 1)
"""The rows of `MANY`."""


@pytest.mark.parametrize(
    ("function", "wanted"),
    [
        (lambda w: F.embedding(w * 2 + 3, TABLE), Range(0, 3)),
        (lambda w: F.embedding(w.clamp(max=9) + 1, TABLE), Range(0, 8)),
        (lambda w: torch.gather(TABLE, 0, w[:, :2] * 3), Range(0, 3)),
        (lambda w: TABLE.index_select(0, (w * 3).flatten()), Range(0, 3)),
        (lambda w: torch.zeros(4).scatter(0, (w * 1).flatten(), 1.0), Range(0, 3)),
        (lambda w: TABLE[w.clamp(max=9) - 9 - w] + 0, Range(0, 10)),
        (lambda w: F.embedding(torch.cat([w, w * 3]), TABLE), Range(0, 3)),
        (lambda w: F.embedding(torch.rsub(w.clamp(0, 5), 5), TABLE[:6]), ALL),
        (lambda w: F.embedding(torch.add(w.clamp(max=4), w.clamp(max=4), alpha=2), TABLE), Range(0, 3)),
        (lambda w: F.embedding((w.clamp(0, 1) * 2 - 1).sum(1) + 3, TABLE), ALL),
        (lambda w: written(torch.zeros_like(w), lambda y: y[:, 1:].copy_(w[:, :-1])), Range(0, 9)),
        (lambda w: written(torch.zeros_like(w), lambda y: y[:, 1:].copy_(w[:, :-1].clamp(max=9))), ALL),
        (lambda w: written(w.clamp(max=5), lambda y: y.view(-1).fill_(2).add_(7)), ALL),
    ],
)
def test_indices_that_are_computed_limit_what_they_are_computed_from(
    function: Callable[[Tensor], Tensor], wanted: Range
) -> None:
    assert limits_of_words(function) == ([wanted], None)


@pytest.mark.parametrize(
    "function",
    [
        lambda w: F.embedding((w.clamp(0, 1) * 2 - 1).sum(1) + 2, TABLE),
        lambda w: written(w, lambda y: y[:, 0].sub_(2)),
        lambda w: F.embedding(counts(w), TABLE[:4]),
        lambda w: F.max_unpool2d(*F.max_pool2d(w.float()[None], 2, return_indices=True), 2),
        lambda w: F.binary_cross_entropy(w.float() / 3, torch.ones(2, 3)),
        lambda w: F.cross_entropy(w.float(), torch.tensor([0, 1])),
    ],
)
def test_programs_that_may_raise_for_some_integers_in_every_range_are_refused(
    function: Callable[[Tensor], Tensor],
) -> None:
    assert limits_of_words(function).refused is not None


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
    assert limits_of(function, WORDS).refused is None


def test_division_by_what_may_be_0_is_found() -> None:
    assert limits_of(lambda w, d: w // d, WORDS, torch.tensor(3)).refused == "floor_divide"
    assert limits_of_words(lambda w: torch.ones_like(w) // w.pow(2).add_(1)).refused == "floor_divide", "not known"
    assert limits_of(lambda w: w // 3, WORDS).refused is None
    assert limits_of(lambda w: w / 2 + (w.float() % 0.0), WORDS).refused is None


def test_true_and_false_may_be_indices() -> None:
    def found(rows: int) -> IndexRanges:
        return limits_of(lambda w, m: F.embedding(w + 1, TABLE) + F.embedding(m.long(), TABLE[:rows]), WORDS, WORDS > 5)

    assert (found(2).arguments, found(2).refused) == ([Range(0, 8), None], None)
    assert found(1).refused is not None
