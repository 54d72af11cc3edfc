"""Models in half precision, and autocast inside of and around calls and steps, against eager PyTorch."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import closing, nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import threadcast
from tests.waiting import attempts

HALVES = [torch.bfloat16, torch.float16]
CALLS = 60
"""Calls until a plan has run, and then some."""


class Convolutional(nn.Module):
    """Convolutions with batch norm and pooling, and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 16, 3), nn.GELU()
        )
        self.head = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.head(self.body(x).mean((2, 3)))
        return result


def images(dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(2, 3, 14, 14, generator=torch.Generator().manual_seed(0)).to(dtype)


def attention() -> nn.Module:
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    return nn.Sequential(layer, nn.LayerNorm(16), nn.Linear(16, 5))


def tokens(dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(3, 7, 16, generator=torch.Generator().manual_seed(0)).to(dtype)


NETWORKS: dict[str, tuple[Callable[[], nn.Module], Callable[..., Tensor]]] = {
    "convolutions": (Convolutional, images),
    "attention": (attention, tokens),
}


@pytest.fixture(autouse=True)
def every_call_may_learn(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Within the test learning may take any time, and nothing may run as PyTorch with a warning."""
    monkeypatch.setenv("THREADCAST_ENGINE_TUNING_SHARE", "1")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def made(network: str) -> tuple[nn.Module, Callable[..., Tensor]]:
    torch.manual_seed(0)
    make, example = NETWORKS[network]
    return make(), example


def ran_by_a_plan(call: Any) -> bool:
    return getattr(call._optimized._last, "ran", None) is not None


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("network", NETWORKS)
def test_models_in_half_precision_are_planned(network: str, dtype: torch.dtype) -> None:
    model, example = made(network)
    model, x = model.to(dtype).eval(), example(dtype)
    with torch.no_grad():
        wanted = model(x)
    with closing(threadcast.optimize(model, backends=False)) as call:
        by_plan = 0
        for _ in range(CALLS):
            found = call(x)
            by_plan += ran_by_a_plan(call)
            torch.testing.assert_close(found, wanted, rtol=0.02, atol=0.02)
        assert by_plan
        assert not call.reports[0].reason


@pytest.mark.parametrize("inside", [True, False], ids=["inside", "around"])
@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("network", NETWORKS)
def test_calls_with_autocast_are_planned(network: str, dtype: torch.dtype, inside: bool) -> None:
    model, example = made(network)
    model.eval()
    x = example()

    def cast(x: Tensor) -> Any:
        with torch.autocast("cpu", dtype):
            return model(x)

    with torch.no_grad():
        wanted = cast(x)
        precise = model(x)
    assert wanted.dtype is dtype
    with closing(threadcast.optimize(cast if inside else model, backends=False)) as call:
        by_plan = 0
        for _ in range(CALLS):
            with nullcontext() if inside else torch.autocast("cpu", dtype):
                found = call(x)
            by_plan += ran_by_a_plan(call)
            torch.testing.assert_close(found, wanted, rtol=0.02, atol=0.02)
        assert by_plan
        if not inside:  # the same call without autocast is of another kind
            torch.testing.assert_close(call(x), precise)


def test_autocast_around_a_call_does_not_cast_what_the_graph_has_left_in_single_precision() -> None:
    def product(x: Tensor) -> Tensor:
        with torch.autocast("cpu", enabled=False):
            return x @ x

    x = torch.randn(32, 32)
    with closing(threadcast.optimize(product)) as call:
        by_plan = 0
        for _ in range(CALLS):
            with torch.autocast("cpu", torch.bfloat16):
                torch.testing.assert_close(call(x), product(x))
            by_plan += ran_by_a_plan(call)
        assert by_plan
        assert call(x).dtype is torch.float32


def test_another_default_type_of_autocast_is_another_kind_of_call() -> None:
    def product(x: Tensor) -> Tensor:
        with torch.autocast("cpu"):
            return x @ x

    x, before = torch.randn(32, 32), torch.get_autocast_dtype("cpu")
    try:
        with closing(threadcast.optimize(product, backends=False)) as call:
            for dtype in (torch.bfloat16, torch.float16, torch.bfloat16):
                torch.set_autocast_dtype("cpu", dtype)
                for _ in range(4):
                    found = call(x)
                    assert found.dtype is dtype
                    torch.testing.assert_close(found, product(x))
            assert call.reports[0].reason == ""
            with torch.autocast("cpu", torch.float16, enabled=False):  # sets the default type within
                torch.testing.assert_close(call(x), product(x))
    finally:
        torch.set_autocast_dtype("cpu", before)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("network", NETWORKS)
def test_training_in_half_precision_is_planned(network: str, dtype: torch.dtype) -> None:
    model, example = made(network)
    model, x = model.to(dtype), example(dtype)
    target = torch.arange(x.shape[0]) % 5
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def loss(output: Tensor, target: Tensor) -> Tensor:
        return nn.functional.cross_entropy(output if output.dim() == 2 else output[:, 0], target)

    with closing(threadcast.optimize_training(model, loss, optimizer)) as step:
        first = step(x, target)
        for _ in attempts():  # looks are no steps by a plan; that is made in a process beside steps of 1 ms
            last = step(x, target)
            if ran_by_a_plan(step) and last < first:
                break
        assert ran_by_a_plan(step)
        assert last < first
        assert all(parameter.dtype is dtype for parameter in model.parameters())


def test_weights_that_are_written_to_between_calls_in_one_autocast_context_are_refused_aloud() -> None:
    model = nn.Linear(16, 5).eval()
    x = torch.randn(3, 16, generator=torch.Generator().manual_seed(0))
    with closing(threadcast.optimize(model, backends=False)) as call:
        by_plan = 0
        for i in range(2 * CALLS):
            with torch.autocast("cpu", torch.bfloat16):
                found = call(x)
                by_plan += ran_by_a_plan(call)
                torch.testing.assert_close(found, model(x), rtol=0.02, atol=0.02)
            if i % 7 == 0:
                with torch.no_grad():
                    model.weight.add_(0.1)  # between contexts all is well
        assert by_plan
        with torch.autocast("cpu", torch.bfloat16):
            call(x)
            with torch.no_grad():
                model.weight.add_(0.1)
            with pytest.warns(UserWarning, match="between calls in one autocast context"):
                call(x)
            assert not ran_by_a_plan(call)
