"""What a user has set, hooked or replaced, and steps of which little is known, go by the optimizer's own loop."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, Optimizer, RMSprop

from tests.runtime.updates.pairs import OPTIMIZERS, Look, Made, Pair, some_gradients, some_parameters
from threadcast.runtime.updates.fused_fit import FusedFit
from threadcast.runtime.updates.fused_updates import FusedUpdates


@pytest.mark.parametrize(
    "make",
    [
        lambda given: SGD(given, lr=0.01, foreach=True),
        lambda given: SGD(given, lr=0.01, foreach=False),
        lambda given: SGD(given, lr=0.01, fused=False),
        lambda given: Adam(given, lr=torch.tensor(0.01)),
    ],
)
def test_what_a_user_has_set_stays(updates: FusedUpdates, make: Made) -> None:
    pair = Pair(updates, make, some_parameters())
    before = copy.deepcopy(pair.mine.param_groups[0]["fused"])
    pair.steps(20)
    assert not any(pair.fused)
    assert pair.mine.param_groups[0]["fused"] is before


def test_other_optimizers_and_parameters_are_left_alone(updates: FusedUpdates) -> None:
    adopted, others = some_parameters(), some_parameters()
    updates.adopt(adopted)
    assert updates.of(RMSprop(adopted, lr=0.01)) is None
    strangers = SGD(others, lr=0.01)
    assert updates.of(strangers) is None
    updates.adopt(others[:1])
    assert updates.of(strangers) is not None


def test_types_for_which_the_kernels_are_wrong_keep_the_loop(updates: FusedUpdates) -> None:
    """`_fused_sgd_` of PyTorch 2.13 leaves bfloat16 parameters of 16 elements and more as they were."""
    parameters = [nn.Parameter(one.detach().bfloat16()) for one in some_parameters()]
    pair = Pair(updates, OPTIMIZERS[1], parameters)
    pair.steps(20)
    for one, other in zip(pair.parameters, pair.others, strict=True):
        assert one.equal(other)


def test_a_step_is_chosen_once_its_closure_has_made_thesome_gradients(updates: FusedUpdates) -> None:
    pair = Pair(updates, OPTIMIZERS[4], some_parameters())
    optimizers = (pair.mine, pair.parameters), (pair.theirs, pair.others)
    seen = []

    def steps(number: int, *, reordered: bool = False) -> None:
        for _ in range(number):
            pair.made += 1
            for optimizer, parameters in optimizers:

                def closure(optimizer: Optimizer = optimizer, parameters: list[nn.Parameter] = parameters) -> float:
                    assert torch.is_grad_enabled()
                    assert optimizer.param_groups[0]["fused"] is None
                    for one, gradient in zip(parameters, some_gradients(parameters, pair.made), strict=True):
                        one.grad = gradient.t().contiguous().t() if reordered and one.dim() == 2 else gradient
                    return 0.5

                assert optimizer.step(closure) == 0.5

    def chosen(fit: FusedFit, optimizer: Optimizer) -> Any:
        seen.append(next_step(fit, optimizer))
        return seen[-1]

    next_step = FusedFit.next_step
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FusedFit, "next_step", chosen)
        steps(6)
        assert all(seen[-2:])
        seen.clear()
        steps(5, reordered=True)
        assert seen
        assert not any(seen)
    assert pair.agree()


def test_a_closure_that_raises_changes_nothing(updates: FusedUpdates) -> None:
    pair = Pair(updates, OPTIMIZERS[1], some_parameters())
    pair.steps(6)

    def closure() -> float:
        raise ValueError("the closure's own")

    with pytest.raises(ValueError, match="the closure's own"):
        pair.mine.step(closure)
    assert pair.mine.param_groups[0]["fused"] is None
    pair.mine.register_step_pre_hook(Look(pair.fused))
    pair.mine.step(closure=None)
    assert pair.fused[-1]


def test_settings_of_other_types_keep_the_loop(updates: FusedUpdates) -> None:
    """`0 == False`, but kernels take no number for it."""
    pair = Pair(updates, OPTIMIZERS[1], some_parameters())
    pair.steps(6)
    for one in (pair.mine, pair.theirs):
        one.param_groups[0]["nesterov"] = 0
    pair.steps(5)
    assert not any(pair.fused[-5:])
    assert pair.agree()


def test_a_replaced_method_is_called(updates: FusedUpdates, monkeypatch: pytest.MonkeyPatch) -> None:
    pair = Pair(updates, OPTIMIZERS[1], some_parameters())
    pair.steps(6)
    before = SGD._init_group

    def reordered(self: SGD, group: Any, params: list[Tensor], grads: list[Tensor], buffers: list[Any]) -> bool:
        found = before(self, group, params, grads, buffers)
        for i, one in enumerate(grads):
            if one.dim() == 2:
                grads[i] = one.t().contiguous().t()
        return found

    monkeypatch.setattr(SGD, "_init_group", reordered)
    pair.steps(5)
    assert not any(pair.fused[-5:])
    assert pair.agree()


def test_a_hook_after_the_step_sees_it_as_it_is(updates: FusedUpdates) -> None:
    pair = Pair(updates, OPTIMIZERS[1], some_parameters())
    pair.steps(6)
    seen = []
    pair.mine.register_step_post_hook(lambda one, *_: seen.append(one.param_groups[0]["fused"]))
    pair.steps(6)
    assert set(seen) == {None}


def test_processes_that_exchange_data_keep_the_loop(updates: FusedUpdates, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their copies of a model stay equal because their updates are."""
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    pair = Pair(updates, OPTIMIZERS[4], some_parameters())
    pair.steps(60)
    assert not any(pair.fused)


def test_an_optimizer_that_cannot_be_a_key_makes_its_steps(updates: FusedUpdates) -> None:
    class Compared(SGD):
        __hash__ = None  # type: ignore[assignment]

        def __eq__(self, other: object) -> bool:
            return self is other

    parameters = some_parameters()
    updates.adopt(parameters)
    for one in parameters:
        one.grad = torch.ones_like(one)
    before = parameters[0].detach().clone()
    Compared(parameters, lr=0.1).step()
    torch.testing.assert_close(parameters[0], before - 0.1)


def test_what_is_strange_about_an_optimizer_is_left_to_it(updates: FusedUpdates) -> None:
    pair = Pair(updates, OPTIMIZERS[1], some_parameters())
    pair.steps(6)
    pair.mine.state[pair.parameters[0]]["momentum_buffer"] = "no tensor"
    with pytest.raises((AttributeError, TypeError)):
        pair.mine.step()
    assert pair.mine.param_groups[0]["fused"] is None


def test_a_hook_before_the_step_sees_it_as_it_is(updates: FusedUpdates) -> None:
    """It may change gradients after they were looked at."""
    pair = Pair(updates, OPTIMIZERS[1], some_parameters())
    pair.steps(6)

    def reorder(optimizer: Optimizer, *_: object) -> None:
        for one in optimizer.param_groups[0]["params"]:
            if one.dim() == 2:
                one.grad = one.grad.t().contiguous().t()

    for one in (pair.mine, pair.theirs):
        one.register_step_pre_hook(reorder)
    pair.steps(5)
    assert not any(pair.fused[-5:])
    assert pair.agree()


def test_deterministic_algorithms_keep_the_loop(updates: FusedUpdates) -> None:
    pair = Pair(updates, OPTIMIZERS[4], some_parameters())
    torch.use_deterministic_algorithms(True)
    try:
        pair.steps(60)
    finally:
        torch.use_deterministic_algorithms(False)
    assert not any(pair.fused)


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated")  # Dynamo imports it
def test_a_compiled_step_is_left_to_its_compiler(updates: FusedUpdates) -> None:
    pair = Pair(updates, OPTIMIZERS[1], some_parameters())
    pair.steps(6)
    torch._dynamo.reset()
    graphs: list[torch.fx.GraphModule] = []

    def compiler(graph: torch.fx.GraphModule, _: object) -> Callable[..., Any]:
        graphs.append(graph)
        return graph.forward

    step = torch.compile(pair.mine.step, backend=compiler)
    try:
        for _ in range(3):
            step()
            pair.theirs.step()
    finally:
        torch._dynamo.reset()
    called = {str(node.target) for graph in graphs for node in graph.graph.nodes if node.op.startswith("call_")}
    assert called
    assert not any("fused" in name for name in called)
    assert pair.agree()
