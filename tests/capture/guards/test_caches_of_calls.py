"""What calls keep for later ones: caches are captured once they are full; a call that keeps something is refused."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from threadcast.capture.graph.capture import capture_forward
from threadcast.capture.guards.module_values import ModuleChanged
from threadcast.core.errors import CaptureError


@functools.lru_cache(maxsize=2)
def kept_noise(size: int) -> Tensor:
    return torch.randn(size)


@functools.cache
@torch.no_grad()
def kept_range(size: int) -> Tensor:
    return torch.arange(float(size))


class Masking(nn.Module):
    """Has a cached method, as masks of attention have, and fills an attribute, as rotary embeddings do."""

    factors: Tensor | None = None

    @functools.cache  # noqa: B019
    def mask(self, size: int) -> Tensor:
        return torch.ones(size, size).tril()[-1]

    def forward(self, x: Tensor) -> Tensor:
        if self.factors is None:
            self.factors = torch.arange(5.0).cos() * self.mask(len(x))
        return x * self.factors


@functools.cache
def kept_object(size: int) -> SimpleNamespace:
    return SimpleNamespace(size=size)


def fills_kept_object(x: Tensor) -> Tensor:
    held = kept_object(len(x))
    if not hasattr(held, "factors"):
        held.factors = torch.arange(float(held.size))
    factors: Tensor = held.factors
    return x * factors


kept_ones = functools.cache(torch.ones)
IN_DICTIONARY: dict[int, Tensor] = {}


def fills_dictionary(x: Tensor) -> Tensor:
    if len(x) not in IN_DICTIONARY:
        IN_DICTIONARY[len(x)] = torch.randn(len(x))
    return x * IN_DICTIONARY[len(x)]


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x * kept_noise(len(x)), lambda x: x * kept_range(len(x)), lambda x: x * kept_ones(len(x)), Masking(),
        fills_kept_object, fills_dictionary,
    ],
)  # fmt: skip
def test_a_cache_gets_no_fake_tensor_and_is_captured_once_full(function: Any) -> None:
    x = torch.full((5,), 3.0)
    with pytest.raises(CaptureError, match=r"is filled in every call|is set in every call"):
        capture_forward(function, x)
    wanted = function(x)
    assert type(wanted) is Tensor
    for _ in range(2):
        torch.testing.assert_close(capture_forward(function, x).run(x), wanted, rtol=0, atol=0)
    torch.testing.assert_close(function(x), wanted, rtol=0, atol=0)


def catches_all(x: Tensor) -> Tensor:
    with suppress(Exception):
        return x * kept_noise(len(x))
    return x * 2


def test_what_a_functions_cache_holds_already_stays() -> None:
    before = kept_noise(3)
    for function in (lambda x: x * kept_noise(len(x)), catches_all):
        with pytest.raises(CaptureError, match="the cache of kept_noise"):
            capture_forward(function, torch.ones(7))
        assert kept_noise(3) is before
    assert type(kept_noise(7)) is Tensor


def test_caches_of_constants_may_be_filled_in_a_captured_call() -> None:
    @functools.cache
    def half(size: int) -> tuple[int, str]:
        return size // 2, "half"

    @functools.lru_cache(maxsize=0)
    def not_kept(size: int) -> Tensor:
        return torch.ones(size)

    captured = capture_forward(lambda x: x * half(len(x))[0] * not_kept(len(x)), torch.ones(6))
    assert captured.run(torch.ones(6)).tolist() == [3.0] * 6
    assert half.cache_info().currsize == 1


class Keeping(nn.Module):
    """Keeps something in each call, in the way that it is told."""

    def __init__(self, keep: Callable[[Any, Tensor], object]) -> None:
        super().__init__()
        self.keep, self.calls, self.seen, self.last = keep, 0, list[Tensor](), torch.ones(3)
        self.meter = SimpleNamespace(largest=2)
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.keep(self, y := x * 2)
        return y


def by_names(holder: Any, **values: Any) -> None:
    """Sets attributes by names that are computed."""
    for name in filter(partial(hasattr, holder), values):
        delattr(holder, name)
    for name, value in values.items():
        setattr(holder, name, value)


@pytest.mark.parametrize(
    ("keep", "what"),
    [
        (lambda model, y: setattr(model, "calls", model.calls + 1), "calls"),
        (lambda model, y: model.seen.append(y), "seen"),
        (lambda model, y: setattr(model, "count", model.count + 1), "count is exchanged"),
        (lambda model, y: by_names(model, last=y), "last"),
        (lambda model, y: by_names(model.meter, largest=y.max(), last=y), "meter.la"),
        (lambda model, y: vars(model.meter).update(last=y), "meter.last"),
    ],
)
def test_a_module_that_keeps_something_in_every_call_is_refused_and_left_alone(
    keep: Callable[[Any, Tensor], object], what: str
) -> None:
    model = Keeping(keep)
    before = {**vars(model), **vars(model.meter), **model._buffers}
    with pytest.raises(CaptureError, match=what):
        capture_forward(model, torch.ones(4))
    now = {**vars(model), **vars(model.meter), **model._buffers}
    assert list(now) == list(before)
    assert all(now[name] is value for name, value in before.items())
    assert not model.seen
    model(torch.ones(4))


@pytest.mark.parametrize("whole", [False, True])
def test_a_layer_elsewhere_whose_weights_get_other_memory_keeps_its_own(whole: bool) -> None:
    layer, x = nn.Linear(3, 3), torch.ones(2, 3)
    memory, wanted = layer.bias.data_ptr(), layer.bias.detach().clone()

    def moves(x: Tensor) -> Tensor:
        layer.bias.data = (x[0] if whole else layer.bias.data) + 1
        return layer(x)

    with pytest.raises(ModuleChanged, match="the memory of a tensor is set"):
        capture_forward(moves, x)
    assert layer.bias.data_ptr() == memory
    assert torch.equal(layer.bias, wanted)
