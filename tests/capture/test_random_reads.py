"""Branches that chance decides (`if torch.rand([]) < p`) are built into a graph, which refuses calls that go others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._pytree import tree_leaves

from threadcast.capture.capture import Captured, capture_forward, capture_graph, capture_training
from threadcast.core.errors import CaptureError


class Dropped(nn.Module):
    """Layers that are left out by chance, after dropout, as those of wav2vec2 are."""

    def __init__(self, p: float = 0.4, layers: int = 3) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.p = p
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        x = F.dropout(x, 0.3, self.training)
        for layer in self.layers:
            if torch.rand([]) < self.p:
                continue
            x = F.dropout(layer(x).relu(), 0.2, self.training)
        return F.dropout(x, 0.1, self.training)


def way(model: Dropped, x: Tensor, seed: int) -> tuple[bool, ...]:
    """Which layers a call of `model` from this seed calls, by a run of it."""
    called: list[int] = []
    hooks = [layer.register_forward_hook(lambda *_, i=i: called.append(i)) for i, layer in enumerate(model.layers)]
    torch.manual_seed(seed)
    with torch.no_grad():
        model(x)
    for hook in hooks:
        hook.remove()
    return tuple(i in called for i in range(len(model.layers)))


def run(captured: Captured, *arguments: Any, seed: int) -> tuple[Any, Tensor] | None:
    """The result from this seed and the generator's state after it; None where the graph is not right for the call."""
    torch.manual_seed(seed)
    before = torch.get_rng_state()
    assert captured.reads is not None
    if not captured.reads.hold([leaf for leaf in tree_leaves(arguments) if isinstance(leaf, Tensor)]):
        with pytest.raises(CaptureError, match="other numbers"):
            captured.run(*arguments)
        assert torch.equal(torch.get_rng_state(), before)
        return None
    assert torch.equal(torch.get_rng_state(), before)
    result = captured.run(*arguments)
    return result, torch.get_rng_state()


def test_a_graph_runs_the_calls_that_go_its_way_and_refuses_others() -> None:
    model = Dropped().train()
    x = torch.randn(5, 4, generator=torch.Generator().manual_seed(1))
    torch.manual_seed(7)
    before = torch.get_rng_state()
    captured = capture_forward(model, x)
    assert torch.equal(torch.get_rng_state(), before)
    own, ways = way(model, x, 7), []
    for seed in range(40):
        ways.append(way(model, x, seed))
        found = run(captured, x, seed=seed)
        assert (found is not None) == (ways[-1] == own), seed
        if found is not None:
            torch.manual_seed(seed)
            with torch.no_grad():
                wanted = model(x)
            assert torch.equal(found[0], wanted)
            assert torch.equal(found[1], torch.get_rng_state())
    assert 1 < ways.count(own) < len(ways)


def test_a_training_step_trains_the_layers_that_chance_leaves() -> None:
    x, target = torch.randn(5, 4), torch.randn(5, 4)
    one, other = Dropped(), Dropped()
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in (one, other)]
    torch.manual_seed(3)
    captured = capture_training(one, F.mse_loss, optimizers[0], (x,), target)
    ran = 0
    for seed in range(3, 30):
        found = run(captured, (x,), target, seed=seed)
        if found is None:
            continue
        ran += 1
        torch.manual_seed(seed)
        optimizers[1].zero_grad()
        loss = F.mse_loss(other(x), target)
        loss.backward()
        optimizers[1].step()
        torch.testing.assert_close(found[0]["loss"], loss.detach())
    for mine, wanted in zip(one.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(mine, wanted)
    assert ran > 1


@pytest.mark.parametrize("p", [0.0, 0, -1])
def test_what_cannot_happen_is_not_asked(p: float) -> None:
    model, x = Dropped(p=p).train(), torch.ones(2, 4)
    captured = capture_forward(model, x)
    assert captured.reads is None
    torch.manual_seed(5)
    found, state = captured.run(x), torch.get_rng_state()
    torch.manual_seed(5)
    assert torch.equal(found, model(x))
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize("function", [
    lambda x: x if torch.rand(()) <= 0.0 else x * 2, lambda x: x if torch.rand(()) < 1e-30 else x * 2,
    lambda x: x if torch.randn(()) < 0.0 else x * 2, lambda x: x if torch.rand(()) < torch.rand(()) else x * 2,
])  # fmt: skip
def test_what_may_happen_is_asked(function: Callable[[Tensor], Tensor]) -> None:
    assert capture_forward(function, torch.ones(2)).reads is not None


def test_a_condition_of_chance_and_of_an_argument_is_one_of_both() -> None:
    def function(x: Tensor, n: Tensor) -> Tensor:
        return x * 2 if torch.rand([]) * n < 0.5 else x * 3

    torch.manual_seed(0)
    assert torch.rand([]) < 0.5
    torch.manual_seed(0)
    captured = capture_forward(function, torch.ones(2), torch.tensor(1))
    found = run(captured, torch.ones(2), torch.tensor(1), seed=0)
    assert found is not None
    assert found[0].tolist() == [2.0, 2.0]
    assert run(captured, torch.ones(2), torch.tensor(100), seed=0) is None


def test_a_mask_drawn_in_place_may_decide() -> None:
    def function(x: Tensor) -> Tensor:
        mask = torch.empty(3).bernoulli_(0.5)
        return x + 1 if torch.equal(mask, torch.ones(3)) else x - mask

    captured, x = capture_forward(function, torch.zeros(3)), torch.zeros(3)
    for seed in range(20):
        found = run(captured, x, seed=seed)
        torch.manual_seed(seed)
        if found is not None:
            assert torch.equal(found[0], function(x))


GENERATOR = torch.Generator()


@pytest.mark.parametrize("function", [
    lambda x: x * torch.rand(1).item(), lambda x: x[torch.rand(9) > 0.5], lambda x: x * torch.randint(3, ()).item(),
    lambda x: x * 2 if torch.rand((), generator=GENERATOR) < 0.5 else x,
    lambda x: x * 2 if (x.sum() < 0 or torch.rand(()) < 0.5) else x,
    lambda x: x[torch.multinomial(x, 2)] * (2 if torch.rand(()) < 0.5 else 1),
    lambda x: x * torch.poisson(x) * (2 if torch.rand(()) < 0.5 else 1),
])  # fmt: skip
def test_numbers_of_chance_that_hardly_come_again_or_cannot_be_drawn_before_are_not_built_in(
    function: Callable[[Tensor], Tensor],
) -> None:
    with pytest.raises(CaptureError, match="Control flow"):
        capture_forward(function, torch.ones(9))


def test_draws_of_very_many_numbers_are_not_made_twice() -> None:
    def function(x: Tensor) -> Tensor:
        return F.dropout(x, 0.5) * (2 if torch.rand(()) < 0.5 else 1)

    assert capture_forward(function, torch.ones(1 << 22)).reads is not None
    with pytest.raises(CaptureError, match="Control flow"):
        capture_forward(function, torch.ones((1 << 22) + 1))


def test_a_graph_that_others_call_on_their_own_state_has_no_chance_built_in() -> None:
    with pytest.raises(CaptureError, match="Control flow"):
        capture_graph(lambda x: [x * 2 if torch.rand(()) < 0.5 else x], [torch.ones(2)])


@pytest.mark.parametrize("draw", [
    lambda x: x.clone().bernoulli_(0.5), lambda x: x.bernoulli(0.5), lambda x: torch.native_dropout(x, 0.5, True)[0],
    lambda x: x + torch.rand(3, 7), torch.rand_like, lambda x: x.clone().uniform_(), lambda x: x * torch.randn(7),
    torch.randn_like, lambda x: x.clone().normal_(), lambda x: x + torch.randint(9, (3, 7)),
    lambda x: torch.randint_like(x, 9), lambda x: torch.randint_like(x, 2, 9), lambda x: x + torch.randint(2, 9, (7,)),
    lambda x: x[:, torch.randperm(7)], lambda x: x.T.clone().bernoulli_(0.3), lambda x: x.double().bernoulli_(0.3),
    lambda x: F.scaled_dot_product_attention(x[None, None], x[None, None], x[None, None]),
], ids=range(17))  # fmt: skip
def test_draws_before_a_condition_move_the_generator_as_the_call_does(draw: Callable[[Tensor], Tensor]) -> None:
    def function(x: Tensor) -> tuple[Tensor, bool]:
        drawn = draw(x)
        return drawn, bool(torch.rand(()) < 0.5)

    x = torch.linspace(0, 1, 21).view(3, 7)
    torch.manual_seed(0)
    captured, ways = capture_forward(function, x), set()
    for seed in range(24):
        torch.manual_seed(seed)
        drawn, taken = function(x)
        found = run(captured, x, seed=seed)
        ways.add(taken)
        torch.manual_seed(0)
        assert (found is not None) == (taken == function(x)[1])
        if found is not None:
            assert torch.equal(found[0][0], drawn)
    assert ways == {True, False}
