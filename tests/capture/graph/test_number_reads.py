"""Numbers that a callable reads out of tensors are built into a graph, which refuses calls that read others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from threadcast.capture.graph.capture import capture_forward, capture_training
from threadcast.core.errors import CaptureError

LINEAR, EPS = nn.Linear(4, 4).requires_grad_(False), torch.tensor(1e-3)
X, LENGTHS, FACTOR = torch.linspace(-1, 1, 12).view(3, 4), torch.tensor([2, 3]), torch.tensor(0.5)


def scaled(x: Tensor, lengths: Tensor, factor: Tensor) -> Tensor:
    """Reads numbers out of a tensor of its own, and out of integers and a single number among its arguments."""
    y = nn.functional.layer_norm(LINEAR(x), (4,), eps=float(EPS))
    y = y * 2 if (lengths.max() > 3).all() else y[: int(lengths[0])]
    return y * factor.item() + torch.arange(5).max().item()


def test_a_graph_runs_calls_that_read_its_numbers_and_refuses_others() -> None:
    captured = capture_forward(scaled, X, LENGTHS, FACTOR)
    for x in (X, torch.ones(3, 4)):
        assert torch.equal(captured.run(x, LENGTHS, FACTOR), scaled(x, LENGTHS, FACTOR))
    for lengths, factor in ((torch.tensor([1, 3]), FACTOR), (torch.tensor([2, 4]), FACTOR), (LENGTHS, -FACTOR)):
        with pytest.raises(CaptureError, match="other numbers"):
            captured.run(X, lengths, factor)
    EPS.data.fill_(2.0)  # no version counter notices it
    with pytest.raises(CaptureError, match="other numbers"):
        captured.run(X, LENGTHS, FACTOR)


@pytest.mark.parametrize(("read", "same", "others"), [
    (lambda t: t.item(), 0.0, [-0.0, 1.0]), (lambda t: t.item(), float("nan"), [0.0, float("inf")]),
    (lambda t: 1.0 if t == t else 2.0, 1.5, [float("nan")]),
    (lambda t: 2.0 if torch.equal(t, t * 2) else 3.0, 0.0, [1]), (lambda t: t.to(torch.int64).item(), 2.0, [0.0]),
    (lambda t: t.bool().item(), 2.0, [0.0]), (lambda t: torch.stack([t, t * 2])[1].double().item(), 3.0, [4.0]),
])  # fmt: skip
def test_numbers_are_the_same_only_bit_by_bit(read: Callable[[Tensor], Any], same: float, others: list[float]) -> None:
    captured = capture_forward(lambda x, t: x / read(t), torch.ones(2), torch.tensor(same))
    expected = torch.ones(2) / read(torch.tensor(same))
    assert torch.equal(captured.run(torch.ones(2), torch.tensor(same)).nan_to_num(7), expected.nan_to_num(7))
    for other in others:
        with pytest.raises(CaptureError, match="other numbers"):
            captured.run(torch.ones(2), torch.tensor(float(other)))


def test_numbers_that_no_tensor_decides_need_no_check() -> None:
    captured = capture_forward(lambda x: x * (torch.arange(6).view(2, 3) + 1).sum().item(), torch.ones(2))
    assert captured.reads is None
    assert captured.run(torch.ones(2)).tolist() == [21.0, 21.0]


def test_numbers_of_tensors_that_the_call_wrote_to_before_are_those_after_the_write() -> None:
    def function(x: Tensor) -> Tensor:
        table = torch.zeros(4)
        first = table.sum().item()
        table[1:].view(3, 1).add_(2)
        second = table.sum().item()
        return x * second + first

    captured = capture_forward(function, torch.ones(2))
    assert captured.run(torch.ones(2)).tolist() == [6.0, 6.0]


COUNT = torch.tensor(3)


def counted(x: Tensor) -> Tensor:
    COUNT.add_(1)
    return x * COUNT.item()


@pytest.mark.parametrize("function", [
    lambda x: x * x.sum().item(), lambda x: x * torch.rand(1).item(), counted,
    lambda x: x * (torch.ones(200, 200) @ torch.ones(200, 200)).sum().item(),
    lambda x: x[x > 0], lambda x: torch.nonzero(x), lambda x: x[torch.rand(9) > 0.5],
])  # fmt: skip
def test_numbers_that_change_or_take_long_to_find_out_are_not_built_in(function: Callable[[Tensor], Tensor]) -> None:
    with pytest.raises(CaptureError, match="Control flow"):
        capture_forward(function, torch.ones(9))
    assert COUNT == 3


def edges(*pairs: tuple[int, int]) -> Tensor:
    return torch.tensor(pairs).T.contiguous()


LOOPS = edges((0, 1), (1, 1), (2, 0), (3, 3), (3, 1))
"""Two of five edges go from a node to itself."""
OTHER_LOOPS = edges((2, 2), (1, 0), (2, 0), (0, 3), (1, 1))
NO_EDGE_BUT_LOOPS = edges((2, 2), (1, 1), (2, 2), (3, 3), (0, 0))


def without_loops(edges: Tensor) -> Tensor:
    return edges[:, edges[0] != edges[1]]


def sums_of_neighbours(x: Tensor, edges: Tensor) -> Tensor:
    source, target = without_loops(edges)
    return torch.zeros_like(x).index_add_(0, target, x[source])


MASKED: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "sums of neighbours": sums_of_neighbours,
    "rows and columns": lambda x, edges: x[:, edges[0, :3] != edges[1, :3]],
    "two masks of two dimensions": lambda x, edges: (x[None].expand(2, -1, -1)[(edges[:, :4] > 0)], edges[edges > 0]),
    "nonzero": lambda x, edges: torch.nonzero(edges[0] - edges[1]),
    "nonzero of columns": lambda x, edges: torch.nonzero(edges - edges[:1], as_tuple=True),
    "masked_select": lambda x, edges: torch.masked_select(edges, edges[0] != edges[1]),
    "where": lambda x, edges: torch.where(edges[0] == edges[1]),
    "a mask beside numbers": lambda x, edges: x[edges[0, :4] == edges[1, :4], torch.tensor([1])],
}


@pytest.mark.parametrize("name", MASKED)
def test_sizes_of_what_masks_select_are_built_in(name: str) -> None:
    function, x = MASKED[name], torch.arange(12.0).view(4, 3)
    captured = capture_forward(function, x, LOOPS)
    for given in (LOOPS, LOOPS.flip(0), *([OTHER_LOOPS] if name == "sums of neighbours" else [])):
        found, wanted = captured.run(x, given), function(x, given)
        torch.testing.assert_close(found, wanted, rtol=0, atol=0)
        assert [a.stride() for a in pytree.tree_leaves(found)] == [a.stride() for a in pytree.tree_leaves(wanted)]
    with pytest.raises(CaptureError, match="other numbers"):
        captured.run(x, NO_EDGE_BUT_LOOPS)
    torch.testing.assert_close(capture_forward(function, x, NO_EDGE_BUT_LOOPS).run(), function(x, NO_EDGE_BUT_LOOPS))


def test_a_mask_that_several_layers_find_is_counted_once() -> None:
    def layers(x: Tensor, edges: Tensor) -> Tensor:
        return sums_of_neighbours(sums_of_neighbours(x, edges), edges)

    x = torch.arange(12.0).view(4, 3)
    one, two = (capture_forward(function, x, LOOPS).reads for function in (sums_of_neighbours, layers))
    assert one is not None
    assert two is not None
    assert len(one.steps) == len(two.steps)


def test_a_number_of_what_each_step_changes_is_not_built_in() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.tensor(2.0))
            self.factor = nn.Parameter(torch.tensor(2.0), requires_grad=False)

        def forward(self, x: Tensor, trained: bool) -> Tensor:
            return x * self.scale * (self.scale if trained else self.factor).item()

    model = Model()
    optimizer = torch.optim.SGD([model.scale], lr=0.1)

    def loss(result: Tensor, target: Tensor) -> Tensor:
        return (result - target).square().sum()

    with pytest.raises(CaptureError, match="each call writes"):
        capture_training(model, loss, optimizer, (torch.ones(2), True), torch.ones(2))
    captured = capture_training(model, loss, optimizer, (torch.ones(2), False), torch.ones(2))
    captured.run((torch.ones(2), False), torch.ones(2))
    model.factor.fill_(1.0)
    with pytest.raises(CaptureError, match="other numbers"):
        captured.run((torch.ones(2), False), torch.ones(2))
