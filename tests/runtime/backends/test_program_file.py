"""A program read from a file computes what the captured module computes; what cannot be written so is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.runtime.backends.programs import passed_on
from threadcast.capture.graph.capture import capture_forward
from threadcast.core.errors import CaptureError
from threadcast.runtime.backends.program_file import (
    program_file,
    results_share_memory,
    returned_arguments,
    unused_draws,
)


class Mixed(nn.Module):
    """Several results of one operator, a member of them returned, views, types, a float that JSON lacks."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.MaxPool2d(2))
        self.embedding = nn.Embedding(7, 9, dtype=torch.bfloat16)
        self.empty = nn.Buffer(torch.empty(0, 3))
        self.part = nn.Buffer(torch.arange(12.0).reshape(3, 4)[:, ::2])

    def forward(self, x: Tensor, words: dict[str, Tensor], power: int) -> tuple[Tensor, ...]:
        y = self.layers(x) ** power
        values, places = y.flatten(1).topk(3)
        masked = values.masked_fill(places > 50, float("-inf"))
        first, second = self.embedding(words["a"]).split([4, 5], dim=-1)
        return masked, places, first + 1, second.float() * 2, self.part.sum(0), self.empty.sum()


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_a_program_computes_what_the_module_computes(memory_format: torch.memory_format) -> None:
    torch.manual_seed(0)
    module = Mixed().eval().to(memory_format=memory_format)
    arguments = (
        torch.randn(2, 3, 10, 10).to(memory_format=memory_format), {"a": torch.tensor([[1, 2], [0, 6]])}, 2
    )  # fmt: skip
    read = passed_on(module, *arguments)
    assert [tensor.stride() for tensor in read.example] == [arguments[0].stride(), arguments[1]["a"].stride()]
    with torch.no_grad():
        for found, wanted in zip(read.module(*read.example), module(*arguments), strict=True):
            torch.testing.assert_close(found, wanted, rtol=0, atol=0)


def test_arguments_that_are_returned_are_left_out() -> None:
    arguments = torch.ones(2), torch.ones(3)
    captured = capture_forward(lambda a, b: [b, a * 2, a, b], *arguments)
    assert returned_arguments(captured) == {0: 1, 2: 0, 3: 1}
    read = passed_on(lambda a, b: [b, a * 2, a, b], *arguments)
    assert [one.tolist() for one in read.module(*read.example)] == [[2.0, 2.0]]


def test_an_argument_with_gaps_is_passed_on_without_them() -> None:
    x = torch.arange(24.0).reshape(4, 6)[:, ::2]
    read = passed_on(lambda x: x * 2, x)
    assert read.example[0].is_contiguous()
    assert torch.equal(read.module(*read.example)[0], x * 2)


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls = nn.Buffer(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        self.calls.add_(1)
        return x * 2


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (Counting(), "writes to its buffers or arguments"),
        (lambda x: x.add_(1) * 2, "writes to its buffers or arguments"),
        (lambda x: F.dropout(x, 0.5), "draws random numbers"),
        (lambda x: [torch.rand([]), x + torch.rand([])][1], "draws random numbers"),
        (lambda x: (x * 2, torch.rand([])), "draws random numbers"),
        (lambda x: (x * 2, 3), "something else than tensors"),
        (lambda x: (x * 2, x.detach()), "returns a parameter or a view of an argument"),
        (lambda x: (x * 2).sum() + x.view(4)[:2], None),
        (lambda x: ((x * 2).sum(), x.view(4)), "returns a parameter or a view of an argument"),
    ],
)
def test_what_backends_would_not_compute_alike_is_refused(function: Callable[..., Any], reason: str | None) -> None:
    captured = capture_forward(function, torch.ones(2, 2))
    if reason is None:
        program_file(captured)
        return
    with pytest.raises(CaptureError, match=reason):
        program_file(captured)


@pytest.mark.parametrize(
    ("function", "shared"),
    [
        (lambda x: [y := x * 2, y.flatten()], True),
        (lambda x: [y := x * 2, y[0], x + 1], True),
        (lambda x: [y := x * 2, x + 1, y], False),
        (lambda x: list((x * 2).topk(1)), False),
    ],
)
def test_it_is_known_whether_results_may_share_memory(function: Callable[..., Any], shared: bool) -> None:
    assert results_share_memory(capture_forward(function, torch.ones(2, 2))) == shared


def test_an_operator_of_another_library_is_refused() -> None:
    with torch.library._scoped_library("tested", "DEF") as library:
        library.define("twice(Tensor x) -> Tensor")
        library.impl("twice", lambda x: x * 2, "CompositeExplicitAutograd")
        twice = torch.ops.tested.twice.default
        captured = capture_forward(lambda x: twice(x), torch.ones(2))
        with pytest.raises(CaptureError, match=r"another process cannot be relied on to have tested\.twice"):
            program_file(captured)


def test_draws_that_nothing_reads_are_left_to_the_caller() -> None:
    """As in Transformers' encoders for speech."""

    def layers(x: Tensor) -> Tensor:
        for _ in range(2):
            torch.rand([])
            x = x * 2
        return x

    captured = capture_forward(layers, torch.ones(3))
    assert [str(node.target) for node in unused_draws(captured).values()] == ["aten.rand.default"] * 2
    read = passed_on(layers, torch.ones(3))
    assert not any("rand" in str(node.target) for node in read.module.graph.nodes)
    assert read.module(torch.ones(3))[0].tolist() == [4.0] * 3
