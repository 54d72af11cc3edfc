"""What needs only the shape of a value does not wait for it: masks are drawn ahead, and are PyTorch's."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.random_order import random_order
from threadcast.capture.graph.capture import capture_forward, capture_training
from threadcast.core.graph import OpGraph

DRAWS = ("bernoulli", "rand_like", "rand", "randn", "randn_like", "randint_like", "exponential_", "normal_", "uniform_")


def _needs(graph: OpGraph, op: int) -> set[str]:
    """The kinds of all ops that an op waits for."""
    found, pending = set(), [op]
    while pending:
        for before in graph.predecessors[pending.pop()]:
            if before not in found:
                found.add(before)
                pending.append(before)
    return {graph.ops[one].kind for one in found}


def own(x: Tensor) -> Tensor:
    y = x.relu()
    return y * y.new_empty(y.shape).uniform_() + y.new_zeros(3, 1, 1) + torch.full_like(y, 2.5) + torch.ones_like(y)


def without_overlap(x: Tensor) -> Tensor:
    y = x.relu()[:, :1].expand(-1, 3, -1, -1)
    return torch.rand_like(y) + torch.zeros_like(y) + torch.bernoulli(y, 0.5)


DRAWING: dict[str, Callable[[Tensor], Tensor]] = {
    "dropout": lambda x: functional.dropout(x.relu(), 0.3),
    "mask": lambda x: x.relu().masked_fill(torch.rand_like(x.relu()) > 0.5, 0.0),
    "noise": lambda x: x.relu() + torch.randn_like(x.relu()) + torch.randint_like(x.relu(), 2, 5),
    "gumbel": lambda x: functional.gumbel_softmax(x.relu(), 1.0),
    "in place": own, "an expanded tensor": without_overlap,
    "features": lambda x: functional.dropout2d(x.relu()) + functional.alpha_dropout(x.relu(), 0.5, True),
    "native": lambda x: sum(torch.native_dropout(x.relu(), 0.3, True)),
    "all": lambda x: torch.native_dropout(x, 1, True)[0],
    "bernoulli": lambda x: torch.bernoulli(x.relu(), 0.5),
    "of 64 bits": lambda x: torch.rand_like(x.relu(), dtype=torch.float64) + torch.zeros_like(x.relu()),
    "contiguous": lambda x: torch.rand_like(x.relu(), memory_format=torch.contiguous_format) + x,
}  # fmt: skip


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("name", DRAWING)
def test_draws_wait_for_no_value_and_give_pytorchs_numbers_and_strides(
    name: str, memory_format: torch.memory_format
) -> None:
    function, x = DRAWING[name], torch.randn(2, 3, 5, 4).contiguous(memory_format=memory_format)
    captured = capture_forward(function, x)
    draws = [i for i, op in enumerate(captured.graph.ops) if op.kind.startswith(DRAWS)]
    assert draws
    assert all("relu" not in _needs(captured.graph, draw) for draw in draws)
    for seed in range(3):
        torch.manual_seed(seed)
        wanted = function(x), torch.rand(3)
        order = random_order(captured.graph, random.Random(seed))
        torch.manual_seed(seed)
        found = captured.run(x, order=order), torch.rand(3)
        assert torch.equal(found[0], wanted[0])
        assert found[0].stride() == wanted[0].stride()
        assert torch.equal(found[1], wanted[1])


def test_masks_of_a_training_step_wait_for_earlier_masks_alone() -> None:
    layers = [nn.Conv2d(3, 3, 3, padding=1), nn.BatchNorm2d(3), nn.ReLU(), nn.Dropout()]
    model = nn.Sequential(*layers, *layers[:1], nn.BatchNorm2d(3), nn.Flatten(), nn.Dropout())
    optimizer, x = torch.optim.SGD(model.parameters(), lr=0.1), torch.rand(4, 3, 4, 4)
    graph = capture_training(model, functional.cross_entropy, optimizer, (x,), torch.arange(4)).graph
    masks = [i for i, op in enumerate(graph.ops) if op.kind == "bernoulli_"]
    assert len(masks) == 2
    for mask in masks:
        assert _needs(graph, mask) <= {"bernoulli_", "empty_strided"}
    assert masks[0] in graph.predecessors[masks[1]]
