"""What autograd does around calls by the short way: histories, views, versions, transforms, closed engines."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.runtime.compiled.running import perceptron, rows
from tests.runtime.compiled.test_short_way import Pair, by_both, kept, short_calls, with_dropout
from tests.waiting import attempts
from threadcast.runtime.doors.compile_backend import compiled_graphs

__all__ = ["kept"]
pytestmark = pytest.mark.usefixtures("one_thread", "planned_at_once")


def settle(call: Callable[[int], object]) -> None:
    """`call` until calls go the short way."""
    for number in attempts():
        if short_calls() > 3:
            return
        call(number)


def same_gradients(pair: Pair, run: Callable[[Any, int], object], *, steps: int = 3, short: bool = True) -> None:
    """Compare what `run(model, step)` returns and leaves in the gradients; `short`: the compiled one must go so."""
    pair.eager.load_state_dict(pair.mine.state_dict())
    for step in range(steps):
        before, seen = short_calls(), []
        for called, model in ((pair.compiled, pair.mine), (pair.eager, pair.eager)):
            model.zero_grad()
            torch.manual_seed(step)
            seen.append((run(called, step), [parameter.grad for parameter in model.parameters()]))
        torch.testing.assert_close(*seen)
        assert (short_calls() > before) or not short


class Stacked(nn.Module):
    """Two products over sequences, whose results are views; the first one's is returned and saved.

    They have one weight, so that all gradients depend on both results: else calls go no short way.
    """

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 6)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.first(x).tanh()
        return hidden, nn.functional.linear(hidden, self.first.weight.t())


def stacked() -> nn.Module:
    torch.manual_seed(0)
    return Stacked().double()


def sequences(seed: int) -> Tensor:
    return rows(seed, 6).view(2, 3, 8)


def both(model: Any, x: Tensor) -> Tensor:
    """A loss of both results of `stacked`."""
    hidden, result = model(x)
    loss: Tensor = hidden.square().mean() + result.square().mean()
    return loss


@by_both
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
def test_an_input_that_the_gradient_does_not_reach_keeps_its_history() -> None:
    torch.manual_seed(0)
    before, head = nn.Linear(8, 3).double(), nn.Linear(8, 4).double()

    def weighted(x: Tensor, features: Tensor) -> Tensor:
        found: Tensor = head(x) * features.detach().mean()
        return found

    compiled: Any = torch.compile(weighted, backend="threadcast")

    def train(call: Callable[[Tensor, Tensor], Tensor], step: int) -> list[Tensor | None]:
        for model in (before, head):
            model.zero_grad()
        features = before(rows(step + 1)).tanh()
        call(rows(step), features).sum().backward()  # type: ignore[no-untyped-call]
        features.square().sum().backward()
        return [parameter.grad for model in (before, head) for parameter in model.parameters()]

    for step in range(100):
        torch.testing.assert_close(train(compiled, step), train(weighted, step))


@by_both
@pytest.mark.parametrize("write", [lambda y: y.mul_(3), lambda y: F.relu(y, inplace=True), lambda y: y[0].zero_()])
def test_results_may_be_written_to(write: Callable[[Tensor], object]) -> None:
    def run(model: Any, step: int) -> Tensor:
        result: Tensor = model(sequences(step))
        write(result)
        result.square().sum().backward()  # type: ignore[no-untyped-call]
        return result.detach()

    same_gradients(Pair(perceptron, sequences).settle(), run)


@by_both
@pytest.mark.parametrize("backward", [None, True, False])
def test_a_result_of_which_a_view_is_saved_is_freed(backward: bool | None) -> None:
    pair = Pair(stacked, sequences)
    settle(lambda _: pair.train(both))
    before = short_calls()
    hidden, result = pair.compiled(sequences(0))
    assert short_calls() == before + 1
    history = weakref.ref(hidden.grad_fn)
    if backward is not None:
        (hidden.sum() + result.sum()).backward(retain_graph=backward)
    del hidden, result
    gc.collect()
    assert history() is None


def test_calls_without_gradients_around_those_with_them() -> None:
    model = perceptron()

    def inner(x: Tensor) -> Tensor:
        with torch.enable_grad():
            found: Tensor = model(x).square()
        return found

    compiled: Any = torch.compile(inner, backend="threadcast")
    for step in range(100):
        found: list[Any] = []
        for call in (compiled, inner):
            model.zero_grad()
            with torch.no_grad():
                result = call(rows(step))
            result.sum().backward()
            found.append([parameter.grad for parameter in model.parameters()])
        torch.testing.assert_close(*found)


def test_backward_passes_under_transforms_raise_as_by_the_long_way() -> None:
    pair = Pair(perceptron).settle()
    parameters = list(pair.mine.parameters())
    result = pair.compiled(rows(0))
    with pytest.raises(RuntimeError, match="within vmap"):
        torch.func.vmap(lambda gradient: torch.autograd.grad(result, parameters, gradient))(
            torch.ones(3, 5, 4).double()
        )
    pair.train()


def test_batched_gradients_are_eagers() -> None:
    pair = Pair(perceptron).settle()

    def run(model: Any, step: int) -> tuple[Tensor, ...]:
        result = model(rows(step))
        directions = torch.eye(4, dtype=torch.float64)[:, None].repeat(1, 5, 1)
        weights = list(model.parameters())
        return torch.autograd.grad(result, weights, directions, is_grads_batched=True)

    same_gradients(pair, run)


def test_gradients_made_in_inference_mode_may_lie_otherwise() -> None:
    def run(model: Any, step: int) -> None:
        with torch.inference_mode():
            gradient = torch.arange(24.0, dtype=torch.float64).view(4, 3, 2).permute(2, 1, 0)
        model(sequences(step)).backward(gradient)

    same_gradients(Pair(perceptron, sequences).settle(), run)


@by_both
@pytest.mark.parametrize("between", [False, True])
def test_a_model_with_random_numbers_goes_on_once_its_engines_are_closed(between: bool) -> None:
    pair = Pair(with_dropout).settle()

    def close() -> None:
        for graph in compiled_graphs():
            graph.close()

    def run(model: Any, step: int) -> None:
        if not between:
            close()
        result = model(rows(step))
        if between:
            close()
        result.square().sum().backward()

    same_gradients(pair, run, steps=2, short=False)


@by_both
def test_parameters_in_one_memory_have_versions_of_their_own() -> None:
    pair = Pair(perceptron)
    for model in (pair.mine, pair.eager):
        flat, end = torch.cat([parameter.detach().flatten() for parameter in model.parameters()]), 0
        for parameter in model.parameters():
            begin, end = end, end + parameter.numel()
            parameter.data = flat[begin:end].view(parameter.shape)
    pair.settle()

    def run(model: Any, step: int) -> None:
        result = model(rows(step))
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if name.endswith("bias"):
                    parameter.add_(0.0)
        result.square().sum().backward()

    same_gradients(pair, run)
