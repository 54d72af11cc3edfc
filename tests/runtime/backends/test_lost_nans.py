"""Programs that may make NaN of finite numbers, where a backend would make a number of it, are left to others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from tests.runtime.backends.programs import passed_on
from threadcast.runtime.backends.exported import write_onnx
from threadcast.runtime.backends.lost_nans import LOSES, lost_nan
from threadcast.runtime.backends.onnx_runtime import sessions, write_optimised
from threadcast.runtime.backends.open_vino import requests

X = torch.rand(4, 6) + 0.5
NONE, OPENVINO, ALL = set[str](), {"openvino"}, {"openvino", "torch.compile"}
weight = torch.randn(6, 6)

LOST: dict[str, tuple[Callable[[Tensor], Any], set[str]]] = {
    "log": (lambda x: x.log().relu() @ weight, ALL),
    "seen too": (lambda x: (x.log().relu(), x.log()), ALL),
    "seen as well": (lambda x: (y := x.log()) + y.relu(), NONE),
    "a part of it seen": (lambda x: ((y := x.log()).relu(), y[:2]), ALL),
    "in place": (lambda x: (x + 1).log_().relu_() * 2, ALL),
    "written to and read": (lambda x: _written_and_read(x), ALL),
    "kept": (lambda x: x.log() @ weight, NONE),
    "extremes": (lambda x: x.log().amax(1), {"openvino", "onnxruntime"}),
    "a norm": (lambda x: F.relu(F.layer_norm(x, (6,))), NONE),
    "of squares": (lambda x: (x * (x.pow(2).mean(1, keepdim=True) + 1e-6).rsqrt()).relu(), NONE),
    "of a difference": (lambda x: ((x - 0.3).mean(1, keepdim=True) + 1e-6).rsqrt().relu(), ALL),
    "a quotient": (lambda x: (x / x.sum(1, keepdim=True)).relu(), ALL),
    "by what is never 0": (lambda x: (x / (x.abs().sum(1, keepdim=True) + 1e-3)).relu(), NONE),
    "normalised": (lambda x: F.normalize(x).relu(), NONE),
    "by constants": (lambda x: (x / weight[0].abs().add(1)).relu(), NONE),
    "a power": (lambda x: x.pow(0.5).softmax(1), OPENVINO),
    "degrees": (lambda x: _degrees(x).relu(), NONE),
    "a masked row": (lambda x: _masked(x).softmax(1).relu(), ALL),
    "masked before and after": (lambda x: _masked(x).softmax(1).masked_fill(x > 1, 0.0).relu(), ALL),
    "masked alike before and after": (lambda x: _masked_twice(x).relu(), NONE),
    "always masked": (lambda x: (x + torch.triu(torch.full((4, 6), -torch.inf), 1)).softmax(1).relu(), NONE),
}


def _written_and_read(x: Tensor) -> Tensor:
    y = x.log()
    y.relu_()
    return y * 2


def _degrees(x: Tensor) -> Tensor:
    found = torch.zeros(4).scatter_add(0, torch.tensor([0, 1, 1, 3]), torch.ones(4)) + 0 * x.abs().sum(1)
    found = found.pow(-0.5)
    return x * found.masked_fill(found == torch.inf, 0.0).unsqueeze(1)


def _masked(x: Tensor) -> Tensor:
    return x.masked_fill(x > 1, -torch.inf)


def _masked_twice(x: Tensor) -> Tensor:
    mask = x > 1
    return x.masked_fill(mask, -torch.inf).softmax(1).masked_fill(mask, 0.0)


@pytest.mark.parametrize("name", LOST)
def test_backends_that_may_lose_a_nan_are_left_out(name: str) -> None:
    function, without = LOST[name]
    read = passed_on(function, X)
    assert {backend for backend in LOSES if lost_nan(read.module, (), backend)} == without


def test_infinities_of_arguments_may_fill_a_row() -> None:
    read = passed_on(lambda x, mask: (x + mask).softmax(1).relu(), X, torch.zeros(4, 6))
    assert lost_nan(read.module, (), "openvino") is None
    assert lost_nan(read.module, (1,), "openvino") is not None


def test_what_is_made_and_lost_is_named() -> None:
    read = passed_on(lambda x: x.log().relu(), X)
    assert lost_nan(read.module, (), "openvino") == "log may make NaN, of which relu makes a number"


OPERATORS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu, "sigmoid": torch.sigmoid, "tanh": torch.tanh, "gelu": F.gelu, "silu": F.silu, "erf": torch.erf,
    "hardswish": F.hardswish, "layer_norm": lambda x: F.layer_norm(x, (6,)), "leaky_relu": F.leaky_relu, "elu": F.elu,
    "sum": lambda x: x.sum(1), "mean": lambda x: x.mean(1), "mm": lambda x: x @ weight, "abs": torch.abs,
    "cumsum": lambda x: x.cumsum(1), "softplus": F.softplus, "mul": lambda x: x * 0.0, "sub": lambda x: x - x,
    "topk": lambda x: x.topk(2)[0], "amax": lambda x: x.amax(1), "exp": torch.exp,
}  # fmt: skip


@pytest.mark.parametrize("name", OPERATORS)
def test_operators_that_lose_no_nan_by_the_tables_lose_none(name: str, tmp_path: Any) -> None:
    function = OPERATORS[name]
    exported = torch.export.export(_Module(function), (X,))
    given = X.clone()
    given[1, 2] = given[3, 0] = -1.0
    wanted = exported.module()(given)
    write_onnx(exported, tmp_path / "model.onnx")
    for backend, calls in (
        ("onnxruntime", sessions(write_optimised(tmp_path / "model.onnx"), 1)),
        ("openvino", requests(tmp_path / "model.onnx", 1)),
    ):
        (found,) = next(iter(calls.values()))()([given])
        if name not in LOSES[backend]:
            assert torch.equal(found.isnan(), wanted.isnan()), backend


class _Module(torch.nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x.log())
