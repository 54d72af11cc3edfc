"""Loops read parts of tensors themselves: no node describes a part to them, and the right part is read."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tests.runtime.compiler import needs_compiler
from tests.runtime.random_plans import by_random_plans
from threadcast.capture.graph.capture import capture_forward
from threadcast.core import Machine
from threadcast.runtime.operators.fuse import KIND, fused

pytestmark = needs_compiler

VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "chunk": lambda x: x.chunk(3, 1)[1], "unbind": lambda x: x.unbind(1)[4], "select": lambda x: x[2],
    "every second": lambda x: x[1:, ::2], "transposed": lambda x: x.t(), "expanded": lambda x: x[:, :1].expand(6, 5),
    "of a view": lambda x: x.t()[1:].chunk(2, 1)[1].unsqueeze(0), "reshaped": lambda x: x.view(4, 9),
}  # fmt: skip


@pytest.mark.parametrize("name", VIEWS)
def test_a_loop_reads_the_part_that_a_view_describes(name: str, machine: Machine) -> None:
    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        whole = x @ x
        part = VIEWS[name](whole)
        return (part * 2 + 1).sigmoid(), whole

    x = torch.randn(6, 6, generator=torch.Generator().manual_seed(0))
    captured = fused(capture_forward(function, x))
    assert captured is not None
    assert sorted(op.kind for op in captured.graph.ops) == [KIND, "mm"]
    for result in by_random_plans(captured, machine, x, plans=2):
        torch.testing.assert_close(result, function(x), rtol=2e-6, atol=2e-6)


def turned(x: Tensor) -> Tensor:
    values = (x @ x).exp() * 2
    return values.t() * 3 + values.sigmoid()


def written_between(x: Tensor) -> Tensor:
    whole = x @ x
    part = whole.chunk(2, 1)[0]
    before = part.exp() * part
    whole.addmm_(x, x)
    return before + part.tanh() * part


def also_a_result(x: Tensor) -> tuple[Tensor, Tensor]:
    part = (x @ x).chunk(2, 1)[0]
    return part, part.exp() * 2


@pytest.mark.parametrize("function", [turned, written_between, also_a_result])
def test_order_and_results_stay(function: Callable[[Tensor], Tensor], machine: Machine) -> None:
    x = torch.randn(6, 6, generator=torch.Generator().manual_seed(0))
    captured = fused(capture_forward(function, x))
    assert captured is not None
    for result in by_random_plans(captured, machine, x, plans=6):
        torch.testing.assert_close(result, function(x), rtol=1e-5, atol=1e-5)


def test_parts_of_other_tensors_are_refused() -> None:
    captured = fused(capture_forward(lambda x: (x @ x).chunk(2, 1)[0].exp() * 2, torch.ones(6, 6)))
    assert captured is not None
    (operator,) = (node.target for node, op in zip(captured.program.nodes, captured.graph.ops) if op.kind == KIND)
    with pytest.raises(RuntimeError, match="made for parts of other tensors"):
        operator(torch.ones(6, 8))
