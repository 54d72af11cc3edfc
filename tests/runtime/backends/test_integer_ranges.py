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
from threadcast.runtime.backends.search_worker import unlike

WORDS = torch.tensor([[3, 1, 0], [2, 2, 1]])
TABLE, MANY = torch.arange(20.0).reshape(10, 2), torch.zeros(MOST, 1)


def limits_of(function: Callable[..., Any], *arguments: Any) -> IntegerLimits:
    return integer_limits(passed_on(function, *arguments))


def test_indices_of_a_table_are_its_rows() -> None:
    found = limits_of(lambda words, x: F.embedding(words.t()[1:], TABLE).sum() + x, WORDS, torch.ones(2))
    assert found.arguments == [Range(0, 9), None]
    assert (found.wide, found.refused, found.double) == ([], None, False)


def limits_of_words(function: Callable[[Tensor], Any]) -> IntegerLimits:
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
    found = limits_of(lambda w: F.embedding(w + torch.tensor(offsets), TABLE), WORDS)
    assert found.refused == "embedding"
    assert found.arguments != [Range(0, 1)]


def test_positions_counted_from_a_mask_are_known() -> None:
    """As RoBERTa does."""

    def positions(words: Tensor, table: Tensor) -> Tensor:
        mask = words.ne(1).int()
        return F.embedding((torch.cumsum(mask, 1).type_as(mask) * mask).long() + 1, table)

    found = limits_of(lambda w: positions(w, TABLE[:5]), WORDS)
    assert found.arguments == [Range(0, MOST)]
    assert (found.wide, found.refused) == ([], None), "at most 3 numbers and 1"
    assert limits_of(lambda w: positions(w, TABLE[:4]), WORDS).refused == "embedding"


@pytest.mark.parametrize("kind", [torch.int32, torch.int64])
def test_positions_among_integers_are_known(kind: torch.dtype) -> None:
    """As CLIP, which pools at the position of the largest word."""
    hidden = torch.rand(*WORDS.shape, 4)
    rows = torch.arange(len(WORDS))
    found = limits_of(lambda w: hidden[rows, w.to(kind).argmax(-1)], WORDS)
    assert (found.arguments, found.refused, found.wide) == ([Range(0, MOST)], None, [])
    assert limits_of(lambda w: hidden[:, : WORDS.shape[1] - 1][rows, w.argmax(-1)], WORDS).refused == "index"


@pytest.mark.parametrize("position", [torch.argmax, torch.argmin])
def test_positions_among_all_integers_are_known(position: Callable[[Tensor], Tensor]) -> None:
    words = torch.tensor([0, 9, 3, 4])
    assert limits_of(lambda w: F.embedding(position(w), TABLE[: len(words)]), words).refused is None
    assert limits_of(lambda w: F.embedding(position(w).flatten()[:1] + 8, TABLE), words).refused == "embedding"


def test_masks_may_be_what_they_are_in_the_example_where_more_is_too_much() -> None:
    """As OPT does, and pooling of the last token."""
    mask = torch.tensor([[1, 1, 1], [1, 1, 0]])
    found = limits_of(lambda w, m: F.embedding(w, TABLE) + F.embedding(m.cumsum(1) * m, TABLE[:4]), WORDS, mask)
    assert found.arguments == [Range(0, 9), Range(0, 1)]
    assert found.refused is None
    assert limits_of(lambda w, m: F.embedding(w, TABLE) * m[..., None], WORDS, mask).arguments[1] == Range(0, MOST)


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (lambda w: F.embedding((w * 1_000_003) % 10, TABLE), "mul"),
        (lambda w: w + 2**31, "add"),
        (lambda w: w * 32 + 0, "mul"),
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
def test_integers_that_may_be_too_large_for_openvino_are_found(function: Callable[[Tensor], Tensor], name: str) -> None:
    assert next(iter(limits_of_words(function).wide)) == name


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (lambda w: F.embedding(w * 2 + 3, TABLE), "embedding"),
        (lambda w: F.embedding(w.clamp(max=9) + 1, TABLE), "embedding"),
        (lambda w: torch.gather(TABLE, 0, w[:, :2] * 3), "gather"),
        (lambda w: TABLE.index_select(0, (w * 3).flatten()), "index_select"),
        (lambda w: torch.zeros(4).scatter(0, (w * 1).flatten(), 1.0), "scatter"),
        (lambda w: TABLE[w.clamp(max=9) - 9 - w] + 0, "index"),
        (lambda w: F.embedding(torch.cat([w, w * 3]), TABLE), "embedding"),
        (lambda w: F.embedding(torch.rsub(w.clamp(0, 5), 5), TABLE[:6]), None),
        (lambda w: F.embedding(torch.add(w.clamp(max=4), w.clamp(max=4), alpha=2), TABLE), "embedding"),
        (lambda w: F.embedding((w.clamp(0, 1) * 2 - 1).sum(1) + 3, TABLE), None),
        (lambda w: F.embedding((w.clamp(0, 1) * 2 - 1).sum(1) + 2, TABLE), "embedding"),
        (lambda w: F.max_unpool2d(*F.max_pool2d(w.float()[None], 2, return_indices=True), 2), "max_unpool2d"),
        (lambda w: F.binary_cross_entropy(w.float() / 3, torch.ones(2, 3)), "binary_cross_entropy"),
        (lambda w: F.cross_entropy(w.float(), torch.tensor([0, 1])), "nll_loss_forward"),
        (lambda w: written(w, lambda y: y[:, 0].sub_(2)), "embedding"),
        (lambda w: written(torch.zeros_like(w), lambda y: y[:, 1:].copy_(w[:, :-1])), "embedding"),
        (lambda w: written(torch.zeros_like(w), lambda y: y[:, 1:].copy_(w[:, :-1].clamp(max=9))), None),
        (lambda w: written(w.clamp(max=5), lambda y: y.view(-1).fill_(9)), None),
        (lambda w: written(w.clamp(max=5), lambda y: y.view(-1).fill_(2).add_(7)), "embedding"),
        (lambda w: F.embedding(counts(w), TABLE[:4]), "embedding"),
        (lambda w: w.to(torch.int8) + 1, "_to_copy"),
        (lambda w: w.view(torch.int32).clamp(max=9) + TABLE[w.view(torch.int32).clamp(max=1)[:, 0], 0].sum(), "index"),
    ],
)
def test_integers_that_may_be_no_indices_or_not_fit_their_type_are_found(
    function: Callable[[Tensor], Tensor], name: str
) -> None:
    assert limits_of_words(function).refused == name


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
    assert (found.wide, found.refused) == ([], None)


def test_division_by_what_may_be_0_is_found() -> None:
    assert limits_of(lambda w, d: w // d, WORDS, torch.tensor(3)).refused == "floor_divide"
    assert limits_of_words(lambda w: torch.ones_like(w) // w.pow(2).add_(1)).refused == "floor_divide", "not known"
    assert limits_of(lambda w: w // 3, WORDS).refused is None
    assert limits_of(lambda w: w / 2 + (w.float() % 0.0), WORDS).refused is None


def test_true_and_false_may_be_indices() -> None:
    def found(rows: int) -> IntegerLimits:
        return limits_of(lambda w, m: F.embedding(w + 1, TABLE) + F.embedding(m.long(), TABLE[:rows]), WORDS, WORDS > 5)

    assert (found(2).arguments, found(2).refused) == ([Range(0, 8), None], None)
    assert found(1).refused == "embedding"


def test_large_integers_in_the_example_are_wide() -> None:
    assert limits_of(lambda w: (w > 5) * 1.0, WORDS + 2**40).wide == ["an argument"]
    assert limits_of(lambda w: (w > 5) * 1.0, WORDS + 2**25).wide == ["an argument"]


def test_double_precision_is_found() -> None:
    assert limits_of(lambda w: w.double().sum().float(), WORDS).double


FLOATS = torch.linspace(0.5, 2.0, 6).reshape(2, 3)


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (lambda x: torch.complex(x, x).angle(), "angle"),
        (lambda x: x % 0.1, "remainder"),
        (lambda x: x.fmod(0.1), "fmod"),
        (lambda x: x % 1.0 + x % -4 + x // 0.5, None),
        (lambda x: (x / 0.1).floor() + torch.div(x, 0.1, rounding_mode="trunc"), None),
        (lambda x: x.sum() + torch.arange(5) % 3, None),
    ],
)
def test_what_computes_something_else_in_onnx_for_some_numbers_is_found(
    function: Callable[[Tensor], Tensor], name: str | None
) -> None:
    found = limits_of(function, FLOATS)
    assert (found.otherwise, found.refused) == (name, None)


def test_quotients_that_are_rounded_before_they_are_rounded_down_are_found() -> None:
    """1.0 by 0.1 is 9 in PyTorch, and 10 in all backends."""
    assert torch.div(torch.ones(1), 0.1, rounding_mode="floor").item() == 9
    assert limits_of(lambda x: torch.div(x, 0.1, rounding_mode="floor"), FLOATS).refused == "div"
    assert limits_of(lambda x: x // 0.1, FLOATS).refused == "floor_divide"
    assert limits_of(lambda x: torch.div(x, 0.25, rounding_mode="floor"), FLOATS).refused is None


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (lambda w: torch.div(w * 1000, 7, rounding_mode="floor"), "div"),
        (lambda w: torch.div(w.bitwise_xor(1), 7, rounding_mode="trunc"), "div"),
        (lambda w: w.clamp(max=99).pow(9), "pow"),
        (lambda w: torch.pow(3, w), "pow"),
        (lambda w: torch.ones_like(w) << w, "__lshift"),
        (lambda w: w.bitwise_right_shift(w), "bitwise_right_shift"),
        (lambda w: torch.div(w * 3, 7, rounding_mode="trunc"), None),
        (lambda w: w.pow(2) + torch.pow(2, w.clamp(max=20)), None),
        (lambda w: (w[..., None] >> torch.arange(8)) + (w << 3)[..., None], None),
    ],
)
def test_integers_that_are_computed_as_floating_point_numbers_in_onnx_are_found(
    function: Callable[[Tensor], Tensor], name: str | None
) -> None:
    assert limits_of_words(function).otherwise == name


def test_integers_are_computed_in_onnx_where_those_of_the_example_are_exact() -> None:
    found = limits_of(lambda w: torch.div(w * 1000, 7, rounding_mode="floor"), WORDS)
    assert (found.arguments, found.otherwise) == ([Range(0, 3)], None)


@pytest.mark.parametrize(("backend", "allowed"), [("onnxruntime", False), ("openvino", False), ("torch.compile", True)])
def test_only_what_reads_onnx_is_left_out_for_its_forms(backend: str, allowed: bool) -> None:
    assert (unlike(backend, limits_of(lambda x: x % 0.1, FLOATS)) is None) is allowed
    assert unlike(backend, limits_of(lambda x: x + 1, FLOATS)) is None


@pytest.mark.parametrize(("kind", "name"), [(torch.uint8, "amin"), (torch.int8, "amin"), (torch.int16, None)])
def test_extremes_of_8_bits_which_inductor_computes_otherwise_are_found(kind: torch.dtype, name: str | None) -> None:
    assert limits_of(lambda x: x.amin(0), torch.ones(20, 2, dtype=kind)).refused == name
    assert limits_of(lambda x: x.float().amin(0), torch.ones(20, 2, dtype=kind)).refused is None
