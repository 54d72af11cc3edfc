"""Sums of edges' messages by our operators are PyTorch's bit for bit, and raise its errors."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.functional import leaky_relu, mse_loss

from tests.runtime.compiler import needs_compiler
from tests.runtime.random_plans import by_random_plans, make_random_plan
from threadcast.capture.graph.capture import capture_forward, capture_training
from threadcast.capture.graph.captured import Captured
from threadcast.capture.graph.dependencies import may_raise
from threadcast.core import Machine
from threadcast.runtime.engine.engine import Engine
from threadcast.runtime.operators.aggregation import ADD, ORDER, with_edge_sums
from threadcast.runtime.operators.fuse import fused

pytestmark = needs_compiler

ROWS = 23


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def edges_of(count: int, rows: int = ROWS, seed: int = 1) -> Tensor:
    """(2, count) int64: where each edge comes from and leads to; some rows have many edges, some none."""
    return torch.randint(rows // 2 + 1, (2, count), generator=torch.Generator().manual_seed(seed)) * 2 % rows


def summed(message: Tensor, to: Tensor, rows: int = ROWS) -> Tensor:
    index = to.view(-1, *[1] * (message.dim() - 1)).expand_as(message)
    return message.new_zeros(rows, *message.shape[1:]).scatter_add_(0, index, message)


def layer(x: Tensor, edges: Tensor) -> Tensor:
    return summed(x.index_select(0, edges[0]), edges[1], x.shape[0])


def weighted(x: Tensor, edges: Tensor, scale: Tensor) -> Tensor:
    return summed(scale * x.index_select(0, edges[0]), edges[1], x.shape[0])


def kinds(captured: Captured) -> Counter[str]:
    return Counter(op.kind for op in captured.graph.ops)


def replaced(function: Callable[..., object], *example: Tensor) -> Captured:
    captured = with_edge_sums(capture_forward(function, *example))
    assert kinds(captured)[ADD]
    return captured


def test_a_layer_is_one_sum_by_one_order_of_the_edges() -> None:
    x, edges = numbers(ROWS, 8), edges_of(60)
    captured = replaced(layer, x, edges)
    assert kinds(captured) == {"select": 2, ORDER: 1, ADD: 1}
    assert torch.equal(captured.run(x, edges), layer(x, edges))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.integers(0, 90), st.integers(1, 80), st.integers(0, 3), st.integers(1, ROWS), st.integers(0, 5))
def test_all_sizes_give_what_pytorch_gives(count: int, width: int, heads: int, rows: int, seed: int) -> None:
    shape = (width,) if heads < 2 else (heads, width)
    x, edges = numbers(rows, *shape, seed=seed), edges_of(count, rows, seed)
    if not heads:
        captured, wanted = replaced(layer, x, edges), layer(x, edges)
        found = captured.run(x, edges)
    else:
        scale = numbers(count, *shape[:-1], 1, seed=seed + 1)
        captured, wanted = replaced(weighted, x, edges, scale), weighted(x, edges, scale)
        assert "mul" not in kinds(captured)
        found = captured.run(x, edges, scale)
    assert "scatter_add_" not in kinds(captured)
    assert torch.equal(found, wanted)
    assert found.stride() == wanted.stride()


def test_numbers_of_one_dimension_are_counted() -> None:
    def degrees(x: Tensor, edges: Tensor) -> Tensor:
        count = x.new_zeros(ROWS).scatter_add_(0, edges[1], x.new_ones(edges.shape[1]))
        return count.clamp_(min=1).pow_(-0.5)

    x, edges = numbers(ROWS, 4), edges_of(50)
    assert torch.equal(replaced(degrees, x, edges).run(x, edges), degrees(x, edges))


def test_special_numbers_are_as_pytorchs() -> None:
    x, edges = numbers(ROWS, 5), edges_of(80)
    x[::3], x[1], x[2, :2] = -0.0, torch.inf, torch.nan
    found, wanted = replaced(layer, x, edges).run(x, edges), layer(x, edges)
    torch.testing.assert_close(found, wanted, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(found.signbit(), wanted.signbit())


@pytest.mark.parametrize(
    "lie",
    [
        lambda x, e: (x.t().contiguous().t(), e), lambda x, e: (x.repeat(1, 2)[:, ::2], e),
        lambda x, e: (x, e.t().contiguous().t()), lambda x, e: (x[:, :1].expand_as(x), e),
        lambda x, e: (x, e.repeat(1, 2)[:, ::2]), lambda x, e: (x, e[:, :1].expand_as(e)),
    ],
)  # fmt: skip
def test_operands_may_lie_in_memory_in_any_way(lie: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]) -> None:
    x, edges = lie(numbers(ROWS, 12), edges_of(70))
    captured = replaced(layer, x, edges)
    assert torch.equal(captured.run(x, edges), layer(x, edges))


def test_every_team_gives_the_same_also_where_all_edges_lead_to_one_row(machine: Machine) -> None:
    for edges in (edges_of(3_000), torch.stack([edges_of(3_000)[0], torch.full((3_000,), 7)])):
        x = numbers(ROWS, 64)
        captured, wanted = replaced(layer, x, edges), layer(x, edges)
        threads = torch.get_num_threads()
        try:
            for count in (1, 2, 3):
                torch.set_num_threads(count)
                assert torch.equal(captured.run(x, edges), wanted)
        finally:
            torch.set_num_threads(threads)
        for result in by_random_plans(captured, machine, x, edges):
            assert torch.equal(result, wanted)


class Attention(nn.Module):
    """A layer as of a graph attention network, with three heads."""

    def __init__(self) -> None:
        super().__init__()
        self.rows, self.score = nn.Linear(6, 15), nn.Parameter(numbers(1, 3, 5, seed=4))

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        rows = self.rows(x).view(-1, 3, 5)
        scores = (rows * self.score).sum(-1)
        alike = leaky_relu(scores.index_select(0, edges[0]) + scores.index_select(0, edges[1]), 0.2).exp()
        alike = alike / (summed(alike, edges[1], x.shape[0]) + 1e-16).index_select(0, edges[1])
        return summed(alike.unsqueeze(-1) * rows.index_select(0, edges[0]), edges[1], x.shape[0]).view(-1, 15)


class Mean(nn.Module):
    """A layer that takes the mean, with a number for each edge."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.Linear(6, 9)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        scale = edges[0].float().cos().view(-1, 1)
        total = summed(scale * self.rows(x).index_select(-2, edges[0]), edges[1], x.shape[0])
        return total / summed(x.new_ones(edges.shape[1]), edges[1], x.shape[0]).clamp(min=1).view(-1, 1)


@pytest.mark.parametrize(("kind", "sums", "orders"), [(Attention, 6, 2), (Mean, 3, 2)])
def test_gradients_are_pytorchs(kind: type[nn.Module], sums: int, orders: int, machine: Machine) -> None:
    torch.manual_seed(0)
    model, x, edges = kind(), numbers(ROWS, 6), edges_of(90)
    plain = copy.deepcopy(model)
    target = torch.zeros_like(model(x, edges))
    mse_loss(plain(x, edges), target).backward()  # type: ignore[no-untyped-call]
    wanted = {name: parameter.grad for name, parameter in plain.named_parameters() if parameter.grad is not None}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    captured = capture_training(model, mse_loss, optimizer, [x, edges], target, gradients=True)
    found = with_edge_sums(captured)
    assert (kinds(found)[ADD], kinds(found)[ORDER]) == (sums, orders)
    assert not {"scatter_add_", "index_add", "index_add_"} & set(kinds(found))
    gradients = found.run()["gradients"]
    assert all(torch.equal(gradients[name], gradient) for name, gradient in wanted.items())
    whole = fused(captured)
    assert whole is not None
    for result in by_random_plans(whole, machine, plans=2):
        gradients = result["gradients"]
        torch.testing.assert_close(gradients, wanted, rtol=1e-4, atol=1e-6)


def read_then_written(x: Tensor, edges: Tensor) -> Tensor:
    x = x + 0
    message = x.index_select(0, edges[0])
    x.mul_(2)
    return summed(message, edges[1]) + x


def message_written(x: Tensor, edges: Tensor) -> Tensor:
    message = x.index_select(0, edges[0])
    message.add_(1)
    return summed(message, edges[1])


def message_returned(x: Tensor, edges: Tensor) -> tuple[Tensor, Tensor]:
    message = x.index_select(0, edges[0]) * x[:1, :1]
    return summed(message, edges[1]), message


def scale_written(x: Tensor, edges: Tensor) -> Tensor:
    scale = edges[0].float().view(-1, 1)
    message = scale * x.index_select(0, edges[0])
    scale.add_(1)
    return summed(message, edges[1]) * scale[0]


def result_written(x: Tensor, edges: Tensor) -> tuple[Tensor, Tensor]:
    total = layer(x, edges)
    before = total * 2
    total[3] = 7.0
    return before, total.add_(1)


def index_written(x: Tensor, edges: Tensor) -> Tensor:
    to = edges[1].clone()
    first = summed(x.index_select(0, edges[0]), to)
    to.fill_(2)
    return first + summed(x.index_select(0, edges[0]), to)


def not_zeros(x: Tensor, edges: Tensor) -> Tensor:
    total = torch.zeros_like(x)
    total[0] = 3.0
    message = x.index_select(0, edges[0])
    return total.scatter_add_(0, edges[1].view(-1, 1).expand_as(message), message)


def zeros_kept(x: Tensor, edges: Tensor) -> tuple[Tensor, Tensor]:
    zeros = torch.zeros_like(x)
    return zeros.index_add(0, edges[1], x.index_select(0, edges[0])), zeros


def shorter_index(x: Tensor, edges: Tensor) -> Tensor:
    message = x.index_select(0, edges[0])
    return x.new_zeros(ROWS, x.shape[1]).scatter_add_(0, edges[1, :9].view(-1, 1).expand(9, x.shape[1]), message)


def index_of_each_number(x: Tensor, edges: Tensor) -> Tensor:
    message = x.index_select(0, edges[0])
    index = (edges[1].view(-1, 1) + torch.arange(x.shape[1])) % ROWS
    return x.new_zeros(ROWS, x.shape[1]).scatter_add_(0, index, message)


def other_side(x: Tensor, edges: Tensor) -> Tensor:
    return x.new_zeros(x.shape[0], ROWS).index_add(1, edges[1], x[:, :1].expand(-1, edges.shape[1]))


def twice_as_much(x: Tensor, edges: Tensor) -> Tensor:
    return torch.zeros_like(x).index_add(0, edges[1], x.index_select(0, edges[0]), alpha=2)


def scaled_by_column(x: Tensor, edges: Tensor) -> Tensor:
    return summed(x.index_select(0, edges[0]) * x[:1], edges[1])


@pytest.mark.parametrize(
    "function",
    [
        read_then_written, message_written, message_returned, scale_written, result_written, index_written, not_zeros,
        zeros_kept, shorter_index, index_of_each_number, other_side, twice_as_much, scaled_by_column,
    ],
)  # fmt: skip
def test_sums_that_are_more_than_that_stay_right(function: Callable[..., object], machine: Machine) -> None:
    x, edges = numbers(ROWS, 6), edges_of(40)
    captured, wanted = with_edge_sums(capture_forward(function, x, edges)), function(x, edges)
    torch.testing.assert_close(captured.run(x, edges), wanted, rtol=0, atol=0)
    for result in by_random_plans(captured, machine, x, edges, plans=2):
        torch.testing.assert_close(result, wanted, rtol=0, atol=0)


@pytest.mark.parametrize(
    "function", [not_zeros, zeros_kept, shorter_index, index_of_each_number, other_side, twice_as_much, index_written]
)
def test_what_is_no_sum_of_messages_is_left_alone(function: Callable[..., object]) -> None:
    captured = capture_forward(function, numbers(ROWS, 6), edges_of(40))
    assert with_edge_sums(captured) is captured


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64, torch.int64])
def test_other_types_run_as_pytorch(dtype: torch.dtype) -> None:
    captured = capture_forward(layer, numbers(ROWS, 6).to(dtype), edges_of(40))
    assert with_edge_sums(captured) is captured


@pytest.mark.parametrize("wrong", [-1, ROWS, ROWS + 1000])
@pytest.mark.parametrize("end", [0, 1])
def test_an_index_out_of_range_raises_as_in_pytorch(wrong: int, end: int) -> None:
    x, edges = numbers(ROWS, 6), edges_of(40)
    captured = replaced(layer, x, edges)
    bad = edges.clone()
    bad[end, 31] = wrong
    with pytest.raises((IndexError, RuntimeError)) as eager:
        layer(x, bad)
    with pytest.raises((IndexError, RuntimeError)) as ours:
        captured.run(x, bad)
    assert (type(ours.value), str(ours.value)) == (type(eager.value), str(eager.value))
    assert torch.equal(captured.run(x, edges), layer(x, edges))


class Counting(nn.Module):
    """Counts its calls after it has read rows, before it adds them."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Tensor
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        message = x.index_select(0, edges[0])
        self.calls.add_(1)
        return summed(message, edges[1])


def test_what_the_caller_holds_is_written_once_indices_are_known(machine: Machine) -> None:
    x, edges, model = numbers(ROWS, 6), edges_of(40), Counting()
    captured = replaced(model, x, edges)
    assert "index_select" in kinds(captured)
    raising = [str(node.target) for node in captured.program.nodes if may_raise(node)]
    assert raising == ["aten.index_select.default", "threadcast.gather_add.default"]
    bad = edges.clone()
    bad[0, 5] = ROWS
    plan = make_random_plan(captured.graph, tuple(core.id for core in machine.cores), seed=1)
    with Engine(captured, plan, machine) as engine:
        with pytest.raises(IndexError):
            engine.run(captured.bind(x, bad))
        assert model.calls == 0
        engine.run(captured.bind(x, edges))
    assert model.calls == 1
