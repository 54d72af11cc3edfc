"""Fused graphs give PyTorch's numbers where a custom operator returns a view of its argument and does not say so."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor
from torch._ops import OpOverloadPacket

from tests.random_order import random_order
from tests.runtime.compiler import needs_compiler
from tests.runtime.random_plans import by_random_plans
from threadcast.capture.graph.capture import capture_forward
from threadcast.core import Machine
from threadcast.runtime.operators.fuse import KIND, fused

pytestmark = needs_compiler


@pytest.fixture
def view_of() -> Iterator[OpOverloadPacket]:
    """An operator that returns a view of its argument, and does not say so."""
    with torch.library._scoped_library("tested_fusion", "FRAGMENT") as library:
        library.define("view_of(Tensor x) -> Tensor")
        library.impl("view_of", lambda x: x.view(x.shape), "CPU")
        library.impl("view_of", torch.empty_like, "Meta")
        yield torch.ops.tested_fusion.view_of


def written_mask(view_of: OpOverloadPacket, x: Tensor) -> Tensor:
    """A loop that computes the comparison itself would not see the write."""
    below = x < 0
    doubled = (x * 2).exp()
    view_of(below).fill_(True)
    return (torch.where(below, doubled, x) + 1) * 3


def written_constant(view_of: OpOverloadPacket, x: Tensor) -> Tensor:
    """Nor would one that has the number 2 built in."""
    factor = torch.scalar_tensor(2.0)
    view_of(factor).add_(1)
    return (x * factor).exp() + x


def written_through_the_view(view_of: OpOverloadPacket, x: Tensor) -> Tensor:
    """One loop would compute what is read before the write and after it."""
    values = x * 2
    before = (values + 1).exp()
    view_of(values).add_(10)
    return before + values.tanh() * values


def read_through_the_view(view_of: OpOverloadPacket, x: Tensor) -> Tensor:
    values = (x * 2).exp()
    view = view_of(values)
    before = view.sigmoid() * view
    values.add_(1)
    return before + view.tanh() * view


@pytest.mark.parametrize(
    ("function", "loops"),
    [(written_mask, 2), (written_constant, 1), (written_through_the_view, 2), (read_through_the_view, 3)],
)
def test_loops_see_what_is_written_to_undeclared_views(
    view_of: OpOverloadPacket, function: Callable[[OpOverloadPacket, Tensor], Tensor], loops: int, machine: Machine
) -> None:
    x = torch.randn(5, 9, generator=torch.Generator().manual_seed(0))
    captured = fused(capture_forward(lambda x: function(view_of, x), x))
    assert captured is not None
    assert sum(op.kind == KIND for op in captured.graph.ops) == loops
    wanted, rng = function(view_of, x), random.Random(0)
    for _ in range(20):
        order = random_order(captured.graph, rng)
        found = captured.finish(captured.program.run(captured.bind(x), order=order))
        torch.testing.assert_close(found, wanted, rtol=2e-6, atol=2e-6)
    for result in by_random_plans(captured, machine, x):
        torch.testing.assert_close(result, wanted, rtol=2e-6, atol=2e-6)
