"""Operators that are out of the ordinary run by plans in every way: inference, training, and `torch.compile`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from tests.runtime.compiled.conftest import graphs_alone, nothing_compiled  # noqa: F401
from tests.runtime.loops.reference import STEPS, sgd
from tests.runtime.loops.ways import WAYS, Run, Way, agrees_with_eager

pytestmark = [
    pytest.mark.usefixtures("one_thread", "plans_win"),
    pytest.mark.filterwarnings("ignore:The .grad attribute"),
]


@pytest.fixture(autouse=True)
def every_fifth_step_verified(monkeypatch: pytest.MonkeyPatch) -> None:
    """In place of the fixture of the same name: loops are compared as wholes."""
    monkeypatch.setenv("THREADCAST_ENGINE_VERIFY_EVERY", "0")


@torch.library.custom_op("threadcast_tests::cubed", mutates_args=())
def cubed(x: Tensor) -> Tensor:
    """An operator of a user's own, with a gradient."""
    return x**3


cubed.register_fake(torch.empty_like)
cubed.register_autograd(
    lambda ctx, gradient: gradient * 3 * ctx.saved_tensors[0] ** 2,
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[0]),
)


class Bag(nn.Module):
    """Means of words' embeddings, weighted sums of them, and largest ones."""

    def __init__(self) -> None:
        super().__init__()
        self.mean, self.sum, self.max = (nn.EmbeddingBag(20, 4, mode=mode) for mode in ("mean", "sum", "max"))
        self.weights = nn.Parameter(torch.rand(5, 6))

    def forward(self, numbers: Tensor) -> Tensor:
        words = (numbers.abs() * 7).long() % 20
        found: Tensor = self.mean(words) + self.sum(words, per_sample_weights=self.weights) + self.max(words)
        return found


class Graph(nn.Module):
    """What torch_geometric does with edges: messages are gathered, and summed, averaged or compared by target."""

    def __init__(self) -> None:
        super().__init__()
        self.message = nn.Linear(6, 4)
        drawn = torch.Generator().manual_seed(2)
        self.register_buffer("source", torch.randint(5, (12,), generator=drawn))
        self.register_buffer("target", torch.randint(5, (12,), generator=drawn))

    def forward(self, x: Tensor) -> Tensor:
        messages = self.message(x)[self.source]
        to = self.target[:, None].expand_as(messages)
        shape = messages.new_zeros(5, 4)
        total = shape.scatter_add(0, to, messages)
        largest = shape.scatter_reduce(0, to, messages, "amax", include_self=False)
        mean = shape.scatter_reduce(0, to, messages, "mean", include_self=False)
        weights = (messages - largest[self.target]).exp()
        softmax = weights / shape.scatter_add(0, to, weights)[self.target]
        attended = torch.zeros_like(shape).index_add_(0, self.target, softmax * messages)
        return total + largest + mean + attended


class Own(nn.Module):
    """An operator registered through `torch.library`."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.last(cubed(self.first(x)))
        return found


class Recurrent(nn.Module):
    """A recurrent layer over the rows. Dynamo leaves a module that has one to PyTorch unless it is told otherwise."""

    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.layer, self.head = kind(6, 8), nn.Linear(8, 4)  # type: ignore[arg-type, call-arg]

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.head(self.layer(x)[0].tanh())
        return found


MODELS: dict[str, Callable[[], nn.Module]] = {
    "embedding bags": Bag,
    "scatter": Graph,
    "torch.library": Own,
    "an LSTM": partial(Recurrent, nn.LSTM),
    "a GRU": partial(Recurrent, nn.GRU),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", MODELS)
def test_operators_run_by_plans(name: str, way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    def loop(run: Run) -> Any:
        torch.manual_seed(0)
        model = MODELS[name]().double()
        step = run.step(model, mse_loss, sgd(model))
        drawn = torch.Generator().manual_seed(1)
        for _ in range(2 * STEPS):
            x, y = (torch.randn(5, size, generator=drawn, dtype=torch.float64) for size in (6, 4))
            run.found.append(step(x, y))
            run.look(model, x)
        return model

    with torch._dynamo.config.patch(allow_rnn=True):
        agrees_with_eager(loop, way, monkeypatch)
