"""Simplified programs have fewer calls and give the same."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from threadcast.capture.graph.capture import capture_forward, capture_training
from threadcast.capture.graph.captured import Captured


def targets(captured: Captured) -> Counter[str]:
    return Counter(str(node.target) for node in captured.program.nodes)


class Recurrent(nn.Module):
    """One weight at every step."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.zeros_like(x[0])
        for step in x:
            h = torch.tanh(self.weight(h + step))
        return h


def test_gradients_of_a_weight_used_often_are_added_while_they_are_multiplied() -> None:
    torch.manual_seed(0)
    model = Recurrent()
    x, y = torch.randn(5, 3, 6), torch.randn(3, 6)
    captured = capture_training(
        model, mse_loss, torch.optim.SGD(model.parameters(), lr=0.0), (x,), y, gradients=True
    )  # fmt: skip
    assert targets(captured)["aten.addmm_.default"] == 4
    for _ in range(2):
        found = captured.run()["gradients"]
        model.zero_grad()
        torch.autograd.backward(mse_loss(model(x), y))
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None
            torch.testing.assert_close(found[name], parameter.grad)


def test_a_view_of_a_view_back_is_the_value_itself_and_equal_views_are_one() -> None:
    captured = capture_forward(lambda x: x.t().t() * 2 + x.t().t().t().t(), torch.arange(6.0).reshape(2, 3))
    assert targets(captured)["aten.t.default"] == 0
    assert torch.equal(captured.run(), torch.arange(6.0).reshape(2, 3) * 3)
    captured = capture_forward(lambda x: x.view(6) + x.view(6) * x.view(3, 2).view(6), torch.ones(2, 3))
    assert targets(captured)["aten.view.default"] <= 3


def test_views_and_products_stay_where_memory_is_written_between_them() -> None:
    def views(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
        y = x * 1
        first = y.view(16).clone()
        y.add_(1)
        return first - y.view(16) * 2

    def products(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
        first, second = x @ a, x @ b
        x.relu_()
        return second + first

    given = torch.randn(4, 4), torch.randn(4, 4), torch.randn(4, 4)
    for function in (views, products):
        captured = capture_forward(function, given[0].clone(), *given[1:])
        assert targets(captured)["aten.addmm_.default"] == 0
        torch.testing.assert_close(captured.run(given[0].clone(), *given[1:]), function(given[0].clone(), *given[1:]))


def test_products_of_other_shapes_and_inputs_are_added_as_before() -> None:
    a, b = torch.ones(3, 3), torch.ones(1, 3)
    broadcast = capture_forward(lambda a, b: a @ a + b @ a, a, b)
    given = capture_forward(lambda a, b: b + a @ a, a, a)
    scaled = capture_forward(lambda a, b: torch.add(a @ a, b @ b, alpha=2), a, a)
    doubled = capture_forward(lambda a, b: (product := a @ b) + product, a, a)
    read = capture_forward(lambda a, b: [(product := a @ b) + (other := b @ a), product, other], a, a)
    for captured in (broadcast, given, scaled, doubled, read):
        assert targets(captured)["aten.addmm_.default"] == 0
    assert scaled.run().tolist() == [[9.0] * 3] * 3
    assert doubled.run().tolist() == [[6.0] * 3] * 3
    assert [one.mean().item() for one in read.run()] == [6.0, 3.0, 3.0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_products_are_summed_where_rounding_each_first_makes_no_difference(dtype: torch.dtype) -> None:
    """In float16 a product of 70000 is infinite before -60000 is added to it."""
    for m, k, n in ((1, 1, 1), (3, 5, 7), (33, 65, 17), (2, 0, 3)):
        torch.manual_seed(0)
        given = [torch.randn(size).to(dtype) for size in ((m, k), (k, n), (m, k), (k, n))]
        captured = capture_forward(lambda a, b, c, d: a @ b + c @ d, *given)
        assert targets(captured)["aten.addmm_.default"] == (dtype in (torch.float32, torch.float64))
        a, b, c, d = given
        torch.testing.assert_close(captured.run(*given), a @ b + c @ d)
