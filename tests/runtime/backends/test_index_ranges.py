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
TABLE, HIDDEN = torch.arange(20.0).reshape(10, 2), torch.arange(24.0).reshape(2, 3, 4)


def limits_of(function: Callable[..., Any], *arguments: Any) -> IndexRanges:
    return index_ranges(passed_on(function, *arguments))


def written(value: Tensor, write: Callable[[Tensor], Any]) -> Tensor:
    """Rows of `TABLE` by a copy of `value` to which is written."""
    copy = value.clone()
    write(copy)
    return F.embedding(copy, TABLE)


def positions(words: Tensor, table: Tensor) -> Tensor:
    """Counted from a mask, as RoBERTa does: at most 3 numbers and 1."""
    mask = words.ne(1).int()
    return F.embedding((torch.cumsum(mask, 1).type_as(mask) * mask).long() + 1, table)


def counts(value: Tensor) -> Tensor:
    """How often each number up to 3 is in a tensor of six."""
    return torch.zeros(4, dtype=torch.int64).index_put((value.flatten(),), torch.ones(6).long(), accumulate=True)


@pytest.mark.parametrize(
    ("function", "words", "wanted"),
    [
        (lambda w: F.embedding(w, TABLE) + F.embedding(w.view(2, 3), TABLE[:4]), WORDS, Range(0, 3)),
        (lambda i: TABLE[i] * 2, torch.tensor([-1, 2]), Range(-10, 9)),
        (lambda w: TABLE[w - 1], WORDS, Range(0, 10)),
        (lambda w: F.embedding(w + torch.tensor([0, 3, 6]), TABLE), WORDS, Range(0, 3)),
        (lambda w: F.embedding(w * 2 + 3, TABLE), WORDS, Range(0, 3)),
        (lambda w: torch.gather(TABLE, 0, w[:, :2] * 3), WORDS, Range(0, 3)),
        (lambda w: TABLE.index_select(0, (w * 3).flatten()), WORDS, Range(0, 3)),
        (lambda w: torch.zeros(4).scatter(0, (w * 1).flatten(), 1.0), WORDS, Range(0, 3)),
        (lambda w: written(torch.zeros_like(w), lambda y: y[:, 1:].copy_(w[:, :-1])), WORDS, Range(0, 9)),
        (lambda w: positions(w, TABLE[:5]), WORDS, Range(0, MOST)),
    ],
)
def test_limits_of_indices_pass_back_to_what_they_are_computed_from(
    function: Callable[[Tensor], Tensor], words: Tensor, wanted: Range
) -> None:
    assert limits_of(function, words) == ([wanted], None)


@pytest.mark.parametrize(
    "function",
    [
        lambda w: F.embedding(w + torch.tensor([0, 5, 8]), TABLE),  # not even the example's are right everywhere
        lambda w: positions(w, TABLE[:4]),
        lambda w: F.embedding((w.clamp(0, 1) * 2 - 1).sum(1) + 2, TABLE),
        lambda w: F.embedding(counts(w), TABLE[:4]),
        lambda w: F.max_unpool2d(*F.max_pool2d(w.float()[None], 2, return_indices=True), 2),
        lambda w: F.cross_entropy(w.float(), torch.tensor([0, 1])),
        lambda w: torch.ones_like(w) // w.pow(2).add_(1),  # it is not known that this is never 0
    ],
)
def test_programs_that_may_raise_for_some_integers_in_every_range_are_refused(
    function: Callable[[Tensor], Tensor],
) -> None:
    assert limits_of(function, WORDS).refused is not None


@pytest.mark.parametrize(
    "function",
    [
        lambda w: F.embedding(w.clamp(0, 9), TABLE),
        lambda w: F.embedding(w % 10, TABLE),
        lambda w: HIDDEN[torch.arange(2), w.argmax(-1)],  # as CLIP
        lambda w: F.embedding(w.float().topk(2, 1)[1], TABLE),
        lambda w: list(F.max_pool2d(w.float()[None], 2, return_indices=True)),
        lambda w: TABLE[w, torch.tensor([0, 1, 0])] * 1,
        lambda w: TABLE[torch.arange(3)] + w.sum(),
        lambda w: w // 3 + (w.float() % 0.0),
    ],
)
def test_integers_that_are_surely_right_are_allowed(function: Callable[[Tensor], Tensor]) -> None:
    assert limits_of(function, WORDS).refused is None


def test_masks_may_be_what_they_are_in_the_example_where_more_is_too_much() -> None:
    """As OPT does, and pooling of the last token."""
    mask = torch.tensor([[1, 1, 1], [1, 1, 0]])
    found = limits_of(lambda w, m: F.embedding(w, TABLE) + F.embedding(m.cumsum(1) * m, TABLE[:4]), WORDS, mask)
    assert found == ([Range(0, 9), Range(0, 1)], None)


def test_true_and_false_may_be_indices_and_what_are_no_integers_has_no_range() -> None:
    def found(rows: int) -> IndexRanges:
        x = torch.ones(2, 3, 2)
        return limits_of(
            lambda w, m, x: F.embedding(w + 1, TABLE) + F.embedding(m.long(), TABLE[:rows]) + x, WORDS, WORDS > 5, x
        )

    assert found(2) == ([Range(0, 8), None, None], None)
    assert found(1).refused is not None
