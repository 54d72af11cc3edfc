"""Programs of all kinds give eager's results: what they return, write, and differentiate."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.runtime.compiled.running import perceptron, rows, run_until_settled, runners, trains_as_eager

pytestmark = [
    pytest.mark.usefixtures("one_thread", "plans_win"),
    pytest.mark.filterwarnings("ignore:The .grad attribute"),  # of Dynamo's own look at inputs
]

WEIGHT = rows(100, 8)


def close(found: Any, wanted: Any) -> None:
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-12)


def compare(function: Callable[..., Any], inputs: Callable[[int], tuple[Any, ...]], **options: Any) -> None:
    """Run a compiled function and eager's on inputs of their own until its graphs have settled; compare all of them."""
    compiled = torch.compile(function, backend="threadcast", **options)

    def call(seed: int) -> None:
        given, wanted = inputs(seed), inputs(seed)
        close(compiled(*given), function(*wanted))
        close(given, wanted)

    run_until_settled(call)


def test_nothing_and_constants_are_returned_beside_tensors() -> None:
    compare(lambda x: {"x": (x @ WEIGHT).tanh(), "n": None, "k": (3, 0.5, x.shape[0])}, lambda i: (rows(i),))


def test_views_of_inputs_are_views_and_written_inputs_are_written() -> None:
    def function(x: Tensor, y: Tensor) -> Any:
        y.mul_(2).add_((x @ WEIGHT).tanh())
        return y[1:], x.t()

    compiled = torch.compile(function, backend="threadcast")

    @torch.no_grad()
    def call(seed: int) -> None:
        x, y, wanted_y = rows(seed), rows(seed + 1), rows(seed + 1)
        part, turned = compiled(x, y)
        close((part, turned), function(x, wanted_y))
        close(y, wanted_y)
        assert part.data_ptr() == y[1:].data_ptr()
        assert turned.data_ptr() == x.data_ptr()

    run_until_settled(call)


def test_complex_numbers() -> None:
    weight = torch.view_as_complex(torch.stack([WEIGHT, WEIGHT.flip(0)], dim=-1))

    def function(x: Tensor) -> Any:
        y = torch.fft.fft(x @ WEIGHT) @ weight
        return torch.view_as_real(y.conj() * y), y.abs(), y.T

    compare(function, lambda i: (rows(i),))
    assert runners() == {"inference": ["plan"]}


def test_gradients_of_complex_numbers() -> None:
    def loss(model: Any, step: int) -> Tensor:
        found: Tensor = model(rows(step)).abs().square().mean()
        return found

    class Spectrum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.filter = nn.Parameter(torch.randn(8, dtype=torch.complex128))

        def forward(self, x: Tensor) -> Tensor:
            return torch.fft.ifft(torch.fft.fft(x) * self.filter)

    assert trains_as_eager(Spectrum, loss, steps=60) == {"forward": ["plan"], "backward": ["plan"]}


def test_sparse_arguments_run_as_pytorch() -> None:
    sparse = torch.eye(8, dtype=torch.float64).to_sparse()
    compiled = torch.compile(lambda x: torch.sparse.mm(sparse, x @ WEIGHT), backend="threadcast")
    with torch.no_grad():
        for seed in range(10):
            close(compiled(rows(seed, 8)), rows(seed, 8) @ WEIGHT)


def test_a_whole_program_is_one_graph_where_that_is_asked() -> None:
    compare(lambda x: (x @ WEIGHT).tanh().sum(dim=0), lambda i: (rows(i),), fullgraph=True)
    breaking = torch.compile(lambda x: x * 2 if x.sum() > 0 else x, backend="threadcast", fullgraph=True)
    with pytest.raises(torch._dynamo.exc.Unsupported):
        breaking(rows(0))


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_gradients_may_be_switched_off_around_and_inside(mode: Any) -> None:
    model = perceptron()

    def function(x: Tensor) -> Any:
        y = model(x)
        with torch.no_grad():
            z = model(y @ WEIGHT[:4])
        return y, z

    compiled = torch.compile(function, backend="threadcast")
    with mode():

        def call(seed: int) -> None:
            found, wanted = compiled(rows(seed)), function(rows(seed))
            assert [one.requires_grad for one in found] == [one.requires_grad for one in wanted]
            for one, other in zip(found, wanted, strict=True):
                close(one.detach(), other.detach())

        run_until_settled(call)


def test_second_derivatives_raise_and_never_are_wrong() -> None:
    compiled = torch.compile(perceptron(), backend="threadcast")
    for seed in range(5):
        x = rows(seed).requires_grad_()
        (gradient,) = torch.autograd.grad(compiled(x).sum(), x, create_graph=True)
        with pytest.raises(RuntimeError, match="double backward"):
            gradient.square().sum().backward()


def test_two_calls_before_one_backward_pass() -> None:
    trains_as_eager(
        perceptron, lambda model, step: (model(rows(step)) - model(rows(step + 1))).square().mean(), steps=60
    )
