"""What code asks about which tensor an argument is (`x is self.buffer`) is answered as in eager PyTorch."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import closing

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

import threadcast

pytestmark = [
    pytest.mark.usefixtures("one_thread", "plans_win"),
    pytest.mark.filterwarnings("ignore:threadcast runs this as PyTorch does"),
]
SHARED = torch.ones(4, 4)
EMPTY = torch.ones(0, 4)


class Asks(nn.Module):
    """Adds another number to its result for each tensor that an argument is."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("buffer", torch.ones(4, 4))
        self.held = torch.ones(4, 4)
        self.register_buffer("image", torch.ones(2, 4, 2, 2))
        self.layer = nn.Conv2d(4, 4, 1)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        known = [self.buffer, self.held, SHARED, EMPTY, self.image, y]
        found = [2.0 * i + 2 for i, one in enumerate(known) if x is one] + [1.0] * (y is self.buffer)
        return self.layer(x.reshape(-1, 4, 1, 1)) * (1 + sum(found))


PAIRS: dict[str, Callable[[Asks], tuple[Tensor, Tensor]]] = {
    "a buffer": lambda m: (m.buffer, torch.ones(4)),
    "the second is a buffer": lambda m: (torch.ones(4, 4), m.buffer),
    "both are a buffer": lambda m: (m.buffer, m.buffer),
    "an attribute": lambda m: (m.held, torch.ones(4)),
    "a global tensor": lambda m: (SHARED, torch.ones(4)),
    "an empty tensor": lambda m: (EMPTY, torch.ones(4)),
    "an image": lambda m: (m.image, torch.ones(4)),
    "one tensor twice": lambda m: (torch.ones(4, 4),) * 2,
}


@pytest.mark.parametrize("same_first", [False, True])
@pytest.mark.parametrize("which", PAIRS)
def test_calls_with_the_same_tensor_and_with_a_view_of_it_have_graphs_of_their_own(
    which: str, same_first: bool
) -> None:
    model = Asks().eval()
    with closing(threadcast.optimize(model, backends=False)) as fast, torch.no_grad():
        for is_view in (same_first, not same_first, same_first):
            for _ in range(20):
                x, y = PAIRS[which](model)
                given = (x.detach(), y.detach()) if is_view else (x, y)
                assert torch.allclose(fast(*given), model(*given))
        with_constant = which in ("an attribute", "a global tensor", "an empty tensor")
        assert "plan" in str(fast) or (with_constant and not same_first)
        assert ("an argument is a tensor that code also reads" in str(fast.reports)) == with_constant


@pytest.mark.parametrize("which", ["a buffer", "an attribute"])
def test_a_loss_may_ask_whether_the_target_is_the_models(which: str) -> None:
    def loss(found: Tensor, target: Tensor) -> Tensor:
        return mse_loss(found.flatten(1), target) * (3 if target is of["model"].buffer else 1)

    def steps(model: Asks, step: Callable[..., Tensor]) -> list[float]:
        of["model"] = model
        target = PAIRS[which](model)[0]
        return [
            float(step(torch.full((4, 4), n / 24), torch.ones(4), target.detach() if n % 12 < 6 else target))
            for n in range(24)
        ]

    of: dict[str, Asks] = {}
    model = Asks()
    twin = copy.deepcopy(model)
    optimizer, twins = (torch.optim.SGD(one.parameters(), lr=0.01) for one in (model, twin))

    def eager(x: Tensor, y: Tensor, target: Tensor) -> Tensor:
        twins.zero_grad()
        value = loss(twin(x, y), target)
        value.backward()
        twins.step()
        return value.detach()

    of["model"] = model
    with closing(threadcast.optimize_training(model, loss, optimizer)) as step:
        found = steps(model, step)
    assert found == pytest.approx(steps(twin, eager))
