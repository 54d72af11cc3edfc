"""What a user has set, hooked or replaced, and steps of which little is known, go by the optimizer's own loop."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, Optimizer, RMSprop

from tests.runtime.updates.pairs import OPTIMIZERS, Made, Pair, some_parameters
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


def test_a_step_with_a_closure_is_the_optimizers_own(updates: FusedUpdates) -> None:
    """It may make other gradients than those that were looked at."""
    pair = Pair(updates, OPTIMIZERS[4], some_parameters())
    pair.steps(6)
    for optimizer, parameters in ((pair.mine, pair.parameters), (pair.theirs, pair.others)):

        def closure(optimizer: Optimizer = optimizer, parameters: list[nn.Parameter] = parameters) -> float:
            assert optimizer.param_groups[0]["fused"] is None
            for one in parameters:
                one.grad = torch.ones_like(one).t().contiguous().t() if one.dim() == 2 else torch.ones_like(one)
            return 0.5

        assert optimizer.step(closure) == optimizer.step(closure=closure) == 0.5
    assert pair.agree()
    pair.steps(1)
    assert pair.fused[-1]


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


@pytest.mark.parametrize("of", ["processes that exchange data", "deterministic algorithms"])
def test_what_must_be_equal_keeps_the_loop(updates: FusedUpdates, monkeypatch: pytest.MonkeyPatch, of: str) -> None:
    """Copies of a model in several processes stay equal because their updates are."""
    module, name = (
        (torch.distributed, "is_initialized") if "data" in of else (torch, "are_deterministic_algorithms_enabled")
    )
    monkeypatch.setattr(module, name, lambda: True)
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
