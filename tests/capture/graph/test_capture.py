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
from threadcast.capture.graph.program import Node
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


def kinds(captured: Captured) -> list[str]:
    return [op.kind for op in captured.graph.ops]


def test_convolution_backward_is_split_into_one_task_a_gradient() -> None:
    _, split = small_step()
    # The first layer's input gradient is not needed, so it is no task.
    assert {"convolution_backward_weight", "convolution_backward_bias"} <= set(kinds(split))
    assert "convolution_backward_input" not in kinds(split)


def test_every_parameter_has_an_update_task_of_its_own() -> None:
    model, captured = small_step()
    assert kinds(captured).count("sgd_update") == len(list(model.parameters()))


def test_an_update_waits_for_every_reader_of_its_parameter() -> None:
    _, captured = small_step()
    slots = [entry.name for entry in captured.program.inputs]
    weight = slots.index("head.weight")
    readers = [i for i, node in enumerate(captured.program.nodes) if weight in {ref.slot for ref in node.refs()}]
    update = readers[-1]
    assert captured.graph.ops[update].kind == "sgd_update"
    # head.weight is read through its transpose, by the forward product and by the input gradient.
    before = set(captured.graph.predecessors[update])
    users = {i for i, op in enumerate(captured.graph.ops) if op.kind in {"addmm", "mm"} and op.inputs[-1].strides}
    assert users
    assert users <= before


def test_random_operators_keep_their_order() -> None:
    class Two(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return nn.functional.dropout(x, 0.5), nn.functional.dropout(x, 0.5)

    captured = capture_forward(Two().train(), torch.ones(64))
    random_ops = [i for i, op in enumerate(captured.graph.ops) if op.kind == "bernoulli_"]
    assert len(random_ops) == 2
    assert random_ops[0] in captured.graph.predecessors[random_ops[1]]
    for seed in range(4):
        torch.manual_seed(7)
        first, second = captured.run(order=random_order(captured.graph, random.Random(seed)))
        torch.manual_seed(7)
        expected = Two().train()(torch.ones(64))
        assert torch.equal(first, expected[0])
        assert torch.equal(second, expected[1])


def test_a_write_through_a_view_keeps_its_place() -> None:
    def through_view(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x.clone()
        before = y.sum()
        y[0].mul_(10.0)
        return before, y.sum()

    x = torch.arange(6.0).reshape(2, 3) + 1
    captured = capture_forward(through_view, x)
    for seed in range(10):
        before, after = captured.run(order=random_order(captured.graph, random.Random(seed)))
        assert (before.item(), after.item()) == (21.0, 75.0)


def test_run_takes_changed_data_and_changed_rates() -> None:
    model = Small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    batch = (torch.randn(2, 3, 8, 8),), torch.tensor([0, 3])
    captured = capture_training(model, nn.functional.cross_entropy, optimizer, *batch)
    optimizer.param_groups[0]["lr"] = 0.0
    before = copy.deepcopy(dict(model.named_parameters()))
    first = captured.run(torch.zeros(2, 3, 8, 8), torch.tensor([1, 1]))["loss"]
    second = captured.run(torch.ones(2, 3, 8, 8), torch.tensor([2, 2]))["loss"]
    assert first.item() != second.item()
    assert all(torch.equal(before[name], p) for name, p in model.named_parameters())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((torch.ones(8, 3),), r"shape \(8, 3\), the graph was captured for torch.float32 of shape \(4, 3\)"),
        ((torch.ones(4, 3, dtype=torch.float64),), "tensor 0 is torch.float64"),
        ((torch.ones(4, 3), torch.ones(1)), "2 tensors given, the graph takes 1"),
        ((7,), "0 tensors given, the graph takes 1"),
    ],
)
def test_arguments_that_the_graph_was_not_captured_for_are_refused(arguments: tuple[Any, ...], message: str) -> None:
    """The batch is a number in the graph: another one would give wrong values without an error."""
    captured = capture_forward(lambda x: x.mean() * x.shape[0], torch.ones(4, 3))
    with pytest.raises(CaptureError, match=message):
        captured.run(*arguments)
    assert captured.run(torch.ones(4, 3)).item() == 4.0


def test_an_argument_may_be_none() -> None:
    captured = capture_forward(lambda x, y: x + 1 if y is None else x, torch.ones(2), None)
    assert captured.run().tolist() == captured.run(torch.ones(2), None).tolist() == [2.0, 2.0]


def test_capturing_changes_nothing() -> None:
    torch.manual_seed(0)
    model = Small()
    before = copy.deepcopy(model.state_dict())
    optimizer = torch.optim.Adam(model.parameters())
    x, target = torch.randn(2, 3, 8, 8), torch.tensor([0, 1])
    random_state = torch.get_rng_state()
    capture_training(model, nn.functional.cross_entropy, optimizer, (x,), target)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert not any(p.grad is not None for p in model.parameters())
    assert torch.equal(random_state, torch.get_rng_state())


def test_a_module_that_has_two_names_is_trained_as_eager_does_and_stays_itself() -> None:
    torch.manual_seed(1)
    twice = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Tanh())
    model = nn.Sequential(twice, nn.Linear(4, 4), twice)
    eager = copy.deepcopy(model)
    x, target = torch.randn(3, 4), torch.randn(3, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    held = [id(parameter) for parameter in model.parameters()]
    captured = capture_training(model, nn.functional.mse_loss, optimizer, (x,), target)
    assert [id(parameter) for parameter in model.parameters()] == held
    captured.run()
    eager_step(eager, nn.functional.mse_loss, torch.optim.SGD(eager.parameters(), lr=0.1), (x,), target)
    assert worst_error(dict(model.state_dict()), dict(eager.state_dict())) < TOLERANCE


def test_shared_and_frozen_parameters_are_trained_once_and_never() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.frozen = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False), nn.Linear(4, 4)
            self.b.weight = self.a.weight
            self.frozen.requires_grad_(False)

        def forward(self, x: Tensor) -> Tensor:
            return self.frozen(self.b(torch.tanh(self.a(x))))

    torch.manual_seed(1)
    model = Tied()
    eager = copy.deepcopy(model)
    x, target = torch.randn(3, 4), torch.randn(3, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    captured = capture_training(model, nn.functional.mse_loss, optimizer, (x,), target)
    assert kinds(captured).count("sgd_update") == 1
    captured.run()
    eager_step(eager, nn.functional.mse_loss, torch.optim.SGD(eager.parameters(), lr=0.1), (x,), target)
    assert worst_error(dict(model.state_dict()), dict(eager.state_dict())) < TOLERANCE


def test_keys_of_equal_ops_are_equal_across_captures() -> None:
    assert [op.key for op in small_step()[1].graph.ops] == [op.key for op in small_step()[1].graph.ops]


def test_captured_graph_survives_its_json_form() -> None:
    graph = small_step()[1].graph
    again = OpGraph.from_json(graph.to_json())
    assert [op.key for op in again.ops] == [op.key for op in graph.ops]
    assert sorted(again.edges) == sorted(graph.edges)


def test_outputs_of_any_nesting_come_back_as_they_were() -> None:
    def nested(x: Tensor, options: dict[str, Tensor]) -> dict[str, Any]:
        return {"sum": x + options["y"], "list": [x * 2, (options["y"], 3)]}

    captured = capture_forward(nested, torch.ones(2), {"y": torch.ones(2) * 4})
    result = captured.run(torch.zeros(2), {"y": torch.ones(2)})
    assert result["list"][1][1] == 3
    assert result["sum"].tolist() == [1.0, 1.0]


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


@pytest.mark.parametrize(
    "read",
    [lambda w: w.tolist(), lambda w: w.numpy(), np.asarray, np.from_dlpack],
)
def test_numbers_of_a_tensor_that_is_not_an_argument_cannot_be_captured(read: Callable[[Tensor], Any]) -> None:
    with pytest.raises(CaptureError, match="cannot capture"):
        capture_forward(lambda x: x * float(read(OUTSIDE)[0]), torch.ones(3))
    assert OUTSIDE.tolist() == [1.0, 1.0]
    assert capture_forward(lambda x: x * torch.tensor([2.0]).tolist()[0], torch.ones(3)).run().tolist() == [2.0] * 3


def test_unknown_optimizers_and_settings_are_named() -> None:
    model = nn.Linear(2, 2)
    arguments = (torch.ones(1, 2),), torch.ones(1, 2)
    future = torch.optim.SGD(model.parameters(), lr=0.1)
    future.defaults["lookahead"] = True
    rate = torch.tensor(0.1, requires_grad=True)
    for optimizer, message in [
        (torch.optim.RMSprop(model.parameters()), "RMSprop.*SGD, Adam, AdamW"),
        (torch.optim.Adam(model.parameters(), differentiable=True), "differentiable"),
        (torch.optim.Adam(model.parameters(), capturable=True), "capturable"),
        (torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, dampening=0.5), "does not dampen"),
        (torch.optim.SGD(model.parameters(), lr=rate), "lr=.* is a tensor"),
        (torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=torch.tensor(0.1)), "weight_decay=.* is a tensor"),
        (future, "not known: lookahead"),
    ]:
        with pytest.raises(CaptureError, match=message):
            capture_training(model, nn.functional.mse_loss, optimizer, *arguments)


def test_an_order_that_leaves_out_a_node_is_refused() -> None:
    captured = capture_forward(lambda x: x.sin() + x.cos(), torch.ones(3))
    with pytest.raises(ExecutionError, match="each of 3 nodes once"):
        captured.run(order=[0, 1])
    with pytest.raises((InvalidInput, CaptureError)):
        captured.program.run([])


def test_values_are_freed_after_their_last_use(monkeypatch: pytest.MonkeyPatch) -> None:
    def function(x: Tensor) -> Tensor:
        large = x.sin()
        large.mul_(2)  # nobody uses what it returns, which is `large` itself
        return large.cos().exp()

    program = capture_forward(function, torch.ones(3)).program
    outputs: list[weakref.ref[Tensor]] = []
    alive: list[int] = []

    call = Node.call

    def watched(node: Node, slots: Sequence[Any]) -> Any:
        alive.append(len({id(value) for output in outputs if (value := output()) is not None}))
        value = call(node, slots)
        outputs.append(weakref.ref(value))
        return value

    monkeypatch.setattr(Node, "call", watched)
    program.run([torch.ones(3)])
    assert alive == [0, 1, 1, 1]


def test_an_argument_that_is_no_tensor_may_not_change() -> None:
    captured = capture_forward(lambda x, factor: x * factor, torch.ones(2), 3)
    assert captured.run(torch.ones(2), 3).tolist() == [3.0, 3.0]
    with pytest.raises(CaptureError, match=r"\[3\], not \[4\]"):
        captured.run(torch.ones(2), 4)


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


def test_capturing_leaves_no_weak_references_to_the_weights() -> None:
    model = nn.Linear(3, 3)
    gc.disable()
    try:
        capture_forward(model, torch.ones(2, 3))
        assert not weakref.getweakrefs(model.weight)
        torch.utils.swap_tensors(model.weight, nn.Parameter(torch.zeros(3, 3)))
    finally:
        gc.enable()
    assert not model.weight.any()
