"""The captured graph, executed in any topological order, does what eager PyTorch does."""

from __future__ import annotations

import copy
import gc
import random
import weakref
from collections.abc import Callable, Sequence
from itertools import combinations
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from tests.random_order import random_order
from threadcast import networks
from threadcast.capture.graph.capture import capture_forward, capture_training
from threadcast.capture.graph.captured import Captured
from threadcast.core.errors import CaptureError, ExecutionError, InvalidInput
from threadcast.core.graph import OpGraph

TOLERANCE = 1e-5  # largest error over largest value, tensor by tensor; float32 rounding over a tiny network is 1e-6

OPTIMIZERS: dict[str, Callable[[nn.Module], torch.optim.Optimizer]] = {
    "sgd": lambda m: torch.optim.SGD(m.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4, nesterov=True),
    "adam": lambda m: torch.optim.Adam(m.parameters(), lr=1e-3),
}


def worst_error(found: Any, expected: Any) -> float:
    """Largest absolute error over largest absolute value, over all tensors of two equal structures."""
    worst = 0.0
    for a, b in zip(pytree.tree_leaves(found), pytree.tree_leaves(expected), strict=True):
        if isinstance(b, Tensor) and b.numel():
            scale = b.double().abs().max().item() or 1.0
            worst = max(worst, (a.double() - b.double()).abs().max().item() / scale)
    return worst


def eager_step(
    model: nn.Module, loss: Callable[..., Tensor], optimizer: torch.optim.Optimizer, inputs: Sequence[Any], target: Any
) -> dict[str, Any]:
    optimizer.zero_grad()
    outputs = model(*inputs)
    value = loss(outputs, target)
    value.backward()
    optimizer.step()
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return {"loss": value.detach(), "outputs": pytree.tree_map(torch.detach, outputs), "gradients": gradients}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("name", networks.names())
def test_training_step_in_any_order_equals_eager(name: str, optimizer: str) -> None:
    work = networks.load(name, "tiny")
    eager = copy.deepcopy(work.model)
    make = OPTIMIZERS[optimizer]
    ours, theirs = make(work.model), make(eager)
    captured = capture_training(work.model, work.loss, ours, work.inputs, work.target, gradients=True)
    for step in range(3):
        # Every step starts from one state: Adam magnifies rounding where a gradient is zero but for rounding.
        eager.load_state_dict(work.model.state_dict())
        if step:
            theirs.load_state_dict(copy.deepcopy(ours.state_dict()))
        torch.manual_seed(step)
        expected = eager_step(eager, work.loss, theirs, work.inputs, work.target)
        torch.manual_seed(step)
        order = None if step == 0 else random_order(captured.graph, random.Random(step))
        assert worst_error(captured.run(order=order), expected) < TOLERANCE
        assert worst_error(dict(work.model.state_dict()), dict(eager.state_dict())) < TOLERANCE


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", networks.names())
def test_forward_in_any_order_equals_eager(name: str, training: bool) -> None:
    work = networks.load(name, "tiny")
    model = work.model.train(training)
    eager = copy.deepcopy(model)
    captured = capture_forward(model, *work.inputs)
    for seed in range(2):
        torch.manual_seed(seed)
        with torch.no_grad():
            expected = eager(*work.inputs)
        torch.manual_seed(seed)
        assert worst_error(captured.run(order=random_order(captured.graph, random.Random(seed))), expected) < TOLERANCE
        assert worst_error(dict(model.state_dict()), dict(eager.state_dict())) < TOLERANCE


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(3, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.drop = nn.Dropout(0.5)
        self.head = nn.Linear(4 * 8 * 8, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.drop(torch.relu(self.norm(self.convolution(x)))).flatten(1))


def small_step() -> tuple[Small, Captured]:
    torch.manual_seed(0)
    model = Small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    x, target = torch.randn(2, 3, 8, 8), torch.tensor([0, 3])
    return model, capture_training(model, nn.functional.cross_entropy, optimizer, (x,), target)


def test_each_gradient_and_each_update_is_an_op_whose_key_is_the_same_in_each_capture() -> None:
    model, captured = small_step()
    graph, kinds = captured.graph, [op.kind for op in captured.graph.ops]
    # The first layer's input gradient is not needed, so it is no op.
    backward = {kind for kind in kinds if kind.startswith("convolution_backward")}
    assert backward == {"convolution_backward_weight", "convolution_backward_bias"}
    assert kinds.count("sgd_update") == len(list(model.parameters()))
    again = OpGraph.from_json(graph.to_json())
    for other in (again, small_step()[1].graph):
        assert [op.key for op in other.ops] == [op.key for op in graph.ops]
    assert sorted(again.edges) == sorted(graph.edges)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((torch.ones(8, 3),), r"shape \(8, 3\), the graph was captured for torch.float32 of shape \(4, 3\)"),
        ((torch.ones(4, 3, dtype=torch.float64),), "tensor 0 is torch.float64"),
        ((torch.ones(4, 3), torch.ones(1)), "2 tensors given, the graph takes 1"),
        ((7,), "0 tensors given, the graph takes 1"),
        ((torch.ones(4, 3), 4), r"for the arguments \[\], not \[4\]"),
    ],
)
def test_arguments_that_the_graph_was_not_captured_for_are_refused(arguments: tuple[Any, ...], message: str) -> None:
    """The batch is a number in the graph: another one would give wrong values without an error."""
    captured = capture_forward(lambda x: x.mean() * x.shape[0], torch.ones(4, 3))
    with pytest.raises(CaptureError, match=message):
        captured.run(*arguments)
    assert captured.run(torch.ones(4, 3)).item() == 4.0


def test_arguments_that_are_no_tensors_are_built_in() -> None:
    captured = capture_forward(lambda x, y, factor: x * factor if y is None else x, torch.ones(2), None, 3)
    assert captured.run().tolist() == captured.run(torch.ones(2), None, 3).tolist() == [3.0, 3.0]
    with pytest.raises(CaptureError, match=r"\[None, 3\], not \[None, 4\]"):
        captured.run(torch.ones(2), None, 4)


def test_operators_made_of_others_are_recorded_as_these_also_without_autograd() -> None:
    with torch.inference_mode():
        captured = capture_forward(lambda x: nn.functional.linear(x, x), torch.ones(2, 2))
    assert list(captured.graph.ids) == ["t", "mm"]


def test_capturing_changes_nothing_and_keeps_no_weak_references_to_the_weights() -> None:
    torch.manual_seed(0)
    model = Small()
    before = copy.deepcopy(model.state_dict())
    x, target, optimizer = torch.randn(2, 3, 8, 8), torch.tensor([0, 1]), torch.optim.Adam(model.parameters())
    gc.disable()
    try:
        random_state = torch.get_rng_state()
        capture_training(model, nn.functional.cross_entropy, optimizer, (x,), target)
        assert not any(weakref.getweakrefs(parameter) for parameter in model.parameters())  # `swap_tensors` refuses
    finally:
        gc.enable()
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert not any(p.grad is not None for p in model.parameters())
    assert torch.equal(random_state, torch.get_rng_state())


class Tied(nn.Module):
    """A layer of two names, weights of two layers, and frozen ones."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.frozen = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False), nn.Linear(4, 4)
        self.norm = self.same = nn.BatchNorm1d(4)
        self.b.weight = self.a.weight
        self.frozen.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.frozen(self.same(self.b(torch.tanh(self.norm(self.a(x))))))


def test_shared_and_frozen_parameters_are_trained_once_and_never() -> None:
    torch.manual_seed(1)
    model = Tied()
    eager = copy.deepcopy(model)
    x, target = torch.randn(3, 4), torch.randn(3, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    held = [id(parameter) for parameter in model.parameters()]
    captured = capture_training(model, nn.functional.mse_loss, optimizer, (x,), target)
    assert [id(parameter) for parameter in model.parameters()] == held
    assert [op.kind for op in captured.graph.ops].count("sgd_update") == 3
    captured.run()
    eager_step(eager, nn.functional.mse_loss, torch.optim.SGD(eager.parameters(), lr=0.1), (x,), target)
    assert worst_error(dict(model.state_dict()), dict(eager.state_dict())) < TOLERANCE


OUTSIDE = torch.ones(2)


class Returning(nn.Module):
    """Returns parameters, arguments and values, themselves and as tensors of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.frozen = nn.Parameter(torch.ones(2, 3)), nn.Parameter(torch.ones(2), requires_grad=False)

    def forward(self, x: Tensor, written: Tensor) -> dict[str, Any]:
        y = x * 2
        detached, grown = self.weight.detach(), written.add_(1).detach()
        written.mul_(2)
        return {
            "parameters": [self.weight, self.weight.t().t(), self.weight.view(-1), self.frozen],
            "detached": (detached, detached.t(), self.weight.detach()[0], self.weight.data, self.frozen.detach()),
            "arguments": [x, x.detach(), x.t().t(), written, grown],
            "values": [y, y.detach(), y.t(), y.t(), y.t().t(), y],
            "others": [OUTSIDE, OUTSIDE.detach()],
        }


def test_results_are_tensors_of_their_own_where_eagers_are() -> None:
    model, given = Returning(), [torch.ones(2, 3), torch.ones(3)]
    captured = capture_forward(model, *given)
    with torch.no_grad():
        eager = model(*given)
    for found in (captured.run(*given), captured.run()):
        tensors = [pytree.tree_leaves((result, given, list(model.parameters()), OUTSIDE)) for result in (eager, found)]
        wanted, mine = tensors
        assert [one.requires_grad for one in mine] == [one.requires_grad for one in wanted]
        for (one, other), (my_one, my_other) in zip(combinations(wanted, 2), combinations(mine, 2), strict=True):
            assert (my_one is my_other) == (one is other)
            assert (my_one.data_ptr() == my_other.data_ptr()) == (one.data_ptr() == other.data_ptr())


def test_an_order_that_leaves_out_a_node_is_refused() -> None:
    captured = capture_forward(lambda x: x.sin() + x.cos(), torch.ones(3))
    with pytest.raises(ExecutionError, match="each of 3 nodes once"):
        captured.run(order=[0, 1])
    with pytest.raises((InvalidInput, CaptureError)):
        captured.program.run([])


def test_arguments_that_share_memory_keep_their_order() -> None:
    def function(a: Tensor, b: Tensor) -> Tensor:
        doubled = b * 2
        a.add_(1)
        return doubled

    whole = torch.arange(6.0)
    captured = capture_forward(function, whole.view(2, 3), whole)
    assert [(edge.source, edge.target) for edge in captured.graph.edges] == [(0, 1)]
    apart = capture_forward(function, whole.view(2, 3), whole.clone())
    assert apart.graph.edges == ()
    array = np.arange(6.0)
    parts = capture_forward(function, torch.from_numpy(array[1:]), torch.from_numpy(array[:-1]))
    assert [(edge.source, edge.target) for edge in parts.graph.edges] == [(0, 1)]
    halves = capture_forward(function, torch.from_numpy(array[3:]), torch.from_numpy(array[:3]))
    assert halves.graph.edges == ()
    closed_over = capture_forward(lambda a: function(a, whole), whole.view(2, 3))
    assert [(edge.source, edge.target) for edge in closed_over.graph.edges] == [(0, 1)]
