"""Plans have the bits of their graph, graphs those of PyTorch but for what stands for an operator, which is judged."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from tests.runtime.compiler import needs_compiler
from threadcast import networks
from threadcast.capture.graph.capture import capture_forward, capture_training
from threadcast.capture.graph.captured import Captured
from threadcast.capture.graph.program import Program
from threadcast.core import Case, Machine
from threadcast.runtime.check import shadow
from threadcast.runtime.check.judge import BothOrders, copied_bytes, substitutes
from threadcast.runtime.check.shadow import Checked, Ran, Shadowed, checked_step, leaves
from threadcast.runtime.check.step_state import needed_bytes
from threadcast.runtime.operators import products
from threadcast.runtime.operators.fuse import fused
from threadcast.runtime.operators.products import with_products
from threadcast.runtime.plans.sequential import sequential

Run = Callable[..., Any]


def _with_wrong(captured: Captured, of: str, change: Callable[[Tensor], Any]) -> Captured:
    """The graph with `change` applied to the results of the first operator whose id begins or ends so."""
    program, ids = captured.program, captured.graph.ids
    at = next(i for i, op in enumerate(ids) if op.startswith(of) or op.endswith(of))
    right = program.nodes[at].target

    def wrong(*args: Any, **kwargs: Any) -> Any:
        result = right(*args, **kwargs)
        written = [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, Tensor)]
        if result is None or not written:  # an update
            written = [leaf for leaf in pytree.tree_leaves(args[:1]) if isinstance(leaf, Tensor)]
        change(written[0])
        return result

    nodes = tuple(replace(node, target=wrong) if i == at else node for i, node in enumerate(program.nodes))
    return replace(captured, program=Program(program.inputs, nodes, program.outputs, program.structure))


def _ran(captured: Captured, machine: Machine) -> Ran:
    def unused(_: Captured) -> Any:
        raise AssertionError

    return Ran(captured, sequential(captured.graph, machine, Case(1)), unused)


def _run(captured: Captured) -> Run:
    return partial(captured.run, threads=[1] * len(captured.graph))


class _Training:
    """A training step of a network, of which the same graph is run op after op with one thread an op, as a plan."""

    def __init__(self, name: str, optimizer: Callable[..., torch.optim.Optimizer], machine: Machine) -> None:
        work = networks.load(name, "tiny", batch=4)
        torch.manual_seed(0)
        self.model, self.loss, self._machine = work.model.train(), work.loss, machine
        self.optimizer = optimizer(self.model.parameters())
        self.arguments = work.inputs, work.target
        assert self.loss is not None
        self.captured = capture_training(self.model, self.loss, self.optimizer, work.inputs, work.target)

    def _eager(self, inputs: Any, target: Any) -> Tensor:
        self.optimizer.zero_grad()
        loss: Tensor = self.loss(self.model(*inputs), target)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach()

    def _trace(self, inputs: Any, target: Any) -> None:
        torch.autograd.grad(self.loss(self.model(*inputs), target), list(self.model.parameters()))

    def shadowed(self) -> Shadowed:
        def loss(result: Any) -> dict[str, Any]:
            return {"loss": result["loss"] if isinstance(result, dict) else result}

        return Shadowed(self._eager, self._trace, self.model, self.optimizer, loss)

    def checked(self, captured: Captured, run: Run | None = None) -> Checked:
        by = _ran(captured, self._machine)
        run = _run(captured) if run is None else run
        return checked_step(self.shadowed(), run, self.arguments, captured, ran=lambda: by)


ADAM: Any = partial(torch.optim.AdamW, lr=1e-2)
SGD: Any = partial(torch.optim.SGD, lr=0.1, momentum=0.9)


@pytest.mark.parametrize("optimizer", [ADAM, SGD], ids=["AdamW", "SGD"])
@pytest.mark.parametrize("name", networks.names())
def test_graphs_of_networks_are_right(name: str, optimizer: Any, machine: Machine) -> None:
    training = _Training(name, optimizer, machine)
    for _ in range(2):
        assert training.checked(training.captured).difference is None


@pytest.mark.parametrize(("name", "of"), [
    ("lenet", "convolution_backward.weight"), ("lenet", "convolution_backward.input"),
    ("lenet", "convolution_backward.bias"), ("lstm", "add"), ("transformer", "native_layer_norm_backward.weight"),
    ("transformer", "native_layer_norm_backward.input"), ("lenet", "_fused_adamw_"), ("lenet", "relu"),
    ("lenet", "convolution"), ("transformer", "_softmax"), ("inception_block", "native_batch_norm"),
])  # fmt: skip
@pytest.mark.parametrize("share", [1e-3, -1.0])
def test_an_operator_that_is_wrong_is_found_and_named(name: str, of: str, share: float, machine: Machine) -> None:
    training = _Training(name, ADAM, machine)
    wrong = _with_wrong(training.captured, of, lambda result: result.mul_(1 + share))
    assert training.checked(wrong).difference is not None


def test_memory_must_hold_copies_of_all_that_a_step_changes_and_of_what_is_judged(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = _Training("lenet", ADAM, machine)
    state = shadow.COPIES * needed_bytes(training.model, training.optimizer, training.arguments)
    judged = copied_bytes(training.captured, substitutes(training.captured))
    for free, enough in ((2 * (state + judged), True), (2 * (state + judged) - 2, False)):
        monkeypatch.setattr(shadow, "free_bytes", lambda free=free: free)
        reason = training.shadowed().too_large(training.arguments, training.captured)
        assert (reason is None) == enough, reason
    assert "that are free" in str(reason)


@pytest.mark.parametrize("wrong", ["rounding", "stale", "nan"])
def test_a_plan_with_other_bits_than_its_graph_is_found(wrong: str, machine: Machine) -> None:
    """As after a race, or where a value was freed too early."""
    training = _Training("lenet", ADAM, machine)
    weight = next(training.model.parameters())

    def plan(*given: Any) -> Any:
        before = weight.detach().clone()
        result = training.captured.run(*given, threads=[1] * len(training.captured.graph))
        if wrong == "stale":
            weight.data.copy_(before)
        else:
            weight.data.view(-1)[3] *= 1 + 2.0**-22 if wrong == "rounding" else torch.nan
        return result

    assert training.checked(training.captured, plan).difference is not None


@needs_compiler
@pytest.mark.parametrize("name", ["lenet", "lstm", "transformer", "inception_block"])
def test_graphs_with_operators_of_our_own_are_right_and_wrong_ones_found(
    name: str, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(products, "serves", lambda: True)
    monkeypatch.setattr(products, "LEAST_FLOPS", 1)
    training = _Training(name, ADAM, machine)
    for made in filter(None, (with_products(training.captured), fused(training.captured))):
        assert training.checked(made).difference is None
        pairs = zip(made.graph.ids, made.program.nodes, strict=True)
        spaces = ((op, getattr(node.target, "namespace", ""), node.phase) for op, node in pairs)
        ours = [op for op, space, phase in spaces if space.startswith("threadcast") and phase != "update"]
        for op in ours[:: max(1, len(ours) // 4)]:
            wrong = _with_wrong(made, op, lambda result: result.mul_(1.001) if result.is_floating_point() else None)
            assert training.checked(wrong).difference is not None, op


class _Unsteady:
    """A sum and a mean, which in call `number`, counted from 1, are off by these shares: kernels whose threads add in
    whatever order they come do not repeat their bits."""

    def __init__(self, of_sum: Callable[[int], float], of_mean: Callable[[int], float]) -> None:
        self._of_sum, self._of_mean, self.calls = of_sum, of_mean, 0

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        self.calls += 1
        return x.sum(0) * (1 + self._of_sum(self.calls)), x.mean() * (1 + self._of_mean(self.calls))


ROUNDING = 2.0**-22


@pytest.mark.parametrize(
    ("of_sum", "of_mean", "refused", "calls"),
    [
        (lambda n: ROUNDING * n, lambda _: 0.0, False, 3), (lambda n: 1e-2 * n, lambda _: 0.0, True, 2),
        (lambda n: ROUNDING * n, lambda n: ROUNDING * (n == 2), True, 10),
        (lambda n: ROUNDING * n, lambda n: 1e-2 * (n == 2), True, 2),
        (lambda _: 0.0, lambda n: ROUNDING * (n in (2, 5)), False, 5),
        (lambda _: 0.0, lambda n: ROUNDING * (n == 2), True, 5),
    ],
    ids=["never the same", "off by more", "beside one that is steady", "beside one that is wrong", "seldom", "once"],
)  # fmt: skip
def test_what_pytorch_does_not_repeat_may_differ_by_roundings_and_is_run_again_to_see(
    of_sum: Callable[[int], float], of_mean: Callable[[int], float], refused: bool, calls: int
) -> None:
    step = _Unsteady(of_sum, of_mean)
    checked = checked_step(Shadowed(step, step, None, None, leaves), step, (torch.rand(9, 5) + 1,), None)
    assert (checked.difference is not None) == refused
    assert step.calls == calls


class _Images(nn.Module):
    """Convolutions, norms and pools; a bias before a batch norm has a gradient that is rounding alone."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.GELU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3),
            nn.GroupNorm(4, 32), nn.SiLU(), nn.Upsample(scale_factor=2, mode="bilinear"), nn.Conv2d(32, 16, 3),
            nn.BatchNorm2d(16), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(64, 10),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.layers(x)
        return found


Wrong = Callable[[_Images], Any]
WRONG: dict[str, Wrong] = {
    "another order": lambda model: model.layers[0].weight.data.copy_(model.layers[0].weight.data.flip(1)),
    "a stale buffer": lambda model: model.layers[1].running_mean.zero_(),
    "nan": lambda model: model.layers[13].weight.data.view(-1)[0:1].fill_(torch.nan),
}


def _in_both_orders(optimizer: Any, wrong: Wrong, dtype: torch.dtype) -> Checked:
    torch.manual_seed(0)
    model = _Images().to(dtype)
    made = optimizer(model.parameters())

    def eager(x: Tensor) -> Tensor:
        loss = nn.functional.cross_entropy(model(x).float(), torch.arange(len(x)) % 10)
        loss.backward()  # type: ignore[no-untyped-call]
        made.step()
        made.zero_grad()
        return loss.detach()

    def lie(memory_format: torch.memory_format) -> None:
        for one in model.modules():
            if isinstance(one, nn.Conv2d):
                one.weight.data = one.weight.data.contiguous(memory_format=memory_format)

    def in_order(x: Tensor) -> Tensor:
        lie(torch.channels_last)
        wrong(model)
        found = eager(x.contiguous(memory_format=torch.channels_last))
        lie(torch.contiguous_format)
        return found

    shadowed, x = Shadowed(eager, eager, model, made, leaves), torch.randn(4, 3, 16, 16).to(dtype)
    eager(x)
    return checked_step(shadowed, in_order, (x,), None, in_order=lambda: in_order)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("optimizer", [ADAM, SGD], ids=["AdamW", "SGD"])
def test_channels_last_is_judged_operator_by_operator(optimizer: Any, dtype: torch.dtype) -> None:
    """Adam makes a whole step of a gradient that is rounding alone."""
    assert _in_both_orders(optimizer, lambda _: None, dtype).difference is None


def test_a_mean_that_is_rounding_alone_refuses_no_channels_last() -> None:
    torch.manual_seed(0)
    norm, x = nn.BatchNorm2d(72), torch.randn(2, 72, 16, 16)

    def eager(x: Tensor) -> Tensor:
        found: Tensor = norm(x)
        return found.detach()

    def in_order(x: Tensor) -> Tensor:
        return eager(x.contiguous(memory_format=torch.channels_last))

    x -= x.mean((0, 2, 3), keepdim=True)
    checked = checked_step(Shadowed(eager, eager, norm, None, leaves), in_order, (x,), None, in_order=lambda: in_order)
    assert float(norm.running_mean.abs().max()) < 1e-6
    assert checked.difference is None


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_another_result_in_channels_last_is_found(wrong: Wrong) -> None:
    assert _in_both_orders(SGD, wrong, torch.float32).difference is not None


def test_code_that_reads_memory_in_its_order_is_found_in_channels_last() -> None:
    def in_memory(x: Tensor) -> Tensor:
        return x.as_strided((x.numel(),), (1,)).cumsum(0)

    def in_order(x: Tensor) -> Tensor:
        return in_memory(x.contiguous(memory_format=torch.channels_last))

    shadowed = Shadowed(in_memory, in_memory, None, None, leaves)
    checked = checked_step(shadowed, in_order, (torch.randn(2, 3, 4, 4),), None, in_order=lambda: in_order)
    assert checked.difference is not None


def test_a_result_of_the_wrong_order_is_found_where_no_operator_says_so(machine: Machine) -> None:
    """A graph that calls the right operators on other values than PyTorch does."""
    x = torch.randn(4, 4)
    captured = capture_forward(lambda x: (x @ x) - x.t(), x)
    other = capture_forward(lambda x: (x @ x) - x, x)
    mixed = replace(other, graph=captured.graph) if len(other.graph) == len(captured.graph) else other
    shadowed = Shadowed(captured.run, captured.run, None, None, leaves)
    by = _ran(mixed, machine)
    assert checked_step(shadowed, mixed.run, (x,), mixed, ran=lambda: by).difference is not None


@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize(("batch", "mean", "noise"), [(8, 100.0, 1e-3), (16, 0.0, 1.0), (64, 1.0, 1e-2)])
def test_gradients_of_batch_norm_that_cancel_out_are_right_in_both_orders(
    train: bool, batch: int, mean: float, noise: float
) -> None:
    """Its sums have terms of both signs, of which the sizes bound the result: not the result of the sizes."""
    torch.manual_seed(0)
    x, gradient = mean + torch.randn(batch, 6, 32, 32), 1 + noise * torch.randn(batch, 6, 32, 32)
    weight, means, scale = torch.rand(6), x.mean((0, 2, 3)), x.var((0, 2, 3)).rsqrt()
    given = [one.contiguous(memory_format=torch.channels_last) for one in (gradient, x)]
    of_batch = (means, torch.ones(6), means, scale, train, 1e-5, [True] * 3)
    with BothOrders() as orders:
        found = torch.ops.aten.native_batch_norm_backward(*given, weight, *of_batch)
    assert orders.difference is None
    wanted = torch.ops.aten.native_batch_norm_backward(gradient, x, weight, *of_batch)
    torch.testing.assert_close(list(found), list(wanted))
