"""A program read from a file computes what the captured module computes; what cannot be written so is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from tests.runtime.backends.programs import passed_on
from threadcast.capture.capture import capture_forward
from threadcast.core.errors import CaptureError
from threadcast.runtime.backends.fast_paths import written_out
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


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_a_transformer_layer_is_written_out(norm_first: bool, activation: str) -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=norm_first, activation=activation).eval()
    x = torch.randn(3, 5, 8)
    read = passed_on(layer, x)
    assert any("_transformer_encoder_layer_fwd" in str(node.target) for node in read.module.graph.nodes)
    written = written_out(read.module)
    assert not any("_transformer_encoder_layer_fwd" in str(node.target) for node in written.graph.nodes)
    with torch.no_grad():
        torch.testing.assert_close(written(x)[0], layer(x))


@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"scale": 0.3}])
def test_attention_is_written_out(options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    query, key, value = torch.randn(3, 2, 4, 6, 8)

    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, **options)

    read = passed_on(attention, query, key, value)
    assert any("flash_attention" in str(node.target) for node in read.module.graph.nodes)
    written = written_out(read.module)
    assert not any("flash_attention" in str(node.target) for node in written.graph.nodes)
    torch.testing.assert_close(written(query, key, value)[0], attention(query, key, value))


def test_self_attention_is_written_out() -> None:
    torch.manual_seed(0)
    attention, x = nn.MultiheadAttention(8, 2, batch_first=True).eval(), torch.randn(3, 5, 8)
    read = passed_on(lambda x: attention(x, x, x, need_weights=False)[0], x)
    assert any("_native_multi_head_attention" in str(node.target) for node in read.module.graph.nodes)
    with torch.no_grad():
        wanted = attention(x, x, x, need_weights=False)[0]
        torch.testing.assert_close(written_out(read.module)(x)[0], wanted)


@pytest.mark.parametrize("kind", [torch.float32, torch.float64, torch.int64, torch.int32, torch.uint8, torch.int8])
@pytest.mark.parametrize("number", [1, 2.5, 0, -1, 1e-9])
def test_numbers_from_which_tensors_are_subtracted_are_written_out(kind: torch.dtype, number: float) -> None:
    """Of whole numbers only: 0.0 - 0.0 is 0.0, and -0.0 + 0.0 is, too, but exporters may leave out what adds 0."""
    x = torch.tensor([0, 1, 3, 100]).to(kind)
    graph = fx.Graph()
    given = graph.placeholder("x")
    aten = torch.ops.aten
    graph.output((
        graph.call_function(aten.sub.Tensor, (number, given)),
        graph.call_function(aten.rsub.Scalar, (given, number)),
    ))  # fmt: skip
    exported = torch.export.export(written_out(fx.GraphModule(nn.Module(), graph)), (x,)).module()
    whole = kind in (torch.int64, torch.int32)
    assert whole is not any("sub" in str(node.target) for node in exported.graph.nodes)
    for found in exported(x):
        torch.testing.assert_close(found, number - x, rtol=0, atol=0)


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


def test_a_difference_of_tensors_stays() -> None:
    given = torch.tensor([5, 3]), torch.tensor([1, 2])
    read = passed_on(lambda a, b: torch.sub(a, b, alpha=2), *given)
    exported = torch.export.export(written_out(read.module), given).module()
    assert any("sub" in str(node.target) for node in exported.graph.nodes)
    assert exported(*given)[0].tolist() == [3, -1]
