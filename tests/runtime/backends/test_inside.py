"""Programs in the middle of which a backend may come to something else than PyTorch are left to others."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.runtime.backends.programs import passed_on
from threadcast.runtime.backends.inside import Inside
from threadcast.runtime.backends.search import BACKENDS

X = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
WEIGHT = torch.randn(6, 6, generator=torch.Generator().manual_seed(1))
POWERS = torch.tensor([0.25, 2.0, 8.0, -1.0])
NONE, OPENVINO, ONNX, EVERY = set[str](), {"openvino"}, {"onnxruntime", "openvino"}, set(BACKENDS)


def left_out(function: Callable[..., Any], x: Tensor = X) -> set[str]:
    """The backends that are left out of a program."""
    inside = Inside(passed_on(function, x))
    return {backend for backend in BACKENDS if inside.refused(backend) is not None}


def _routed(x: Tensor) -> Tensor:
    score = (x @ WEIGHT).sigmoid()
    return score / (score.sum(-1, keepdim=True) + 1e-20)


def _written(x: Tensor) -> Tensor:
    y = x + 1
    y.view(-1).div_(0.1)
    return y.floor()


def _sigmoid_written(x: Tensor) -> Tensor:
    y = x * 1
    y.sigmoid_()
    return y.log()


@pytest.mark.parametrize(
    ("function", "wanted"),
    [
        # forms
        (lambda x: torch.atan2(x, -x), ONNX),
        (lambda x: torch.logaddexp(x, x * 2), ONNX),
        (lambda x: x.logcumsumexp(1), ONNX),
        (lambda x: x.new_zeros(2).scatter_reduce(0, torch.tensor([0, 1]), x[0, :2], "mean"), ONNX),
        (lambda x: x.new_zeros(2).scatter_reduce(0, torch.tensor([0, 1]), x[0, :2], "amax"), NONE),
        (lambda x: x % 0.25, NONE),
        (lambda x: x % 0.1, ONNX),
        # which of equal numbers comes first
        (lambda x: x.topk(2).indices, ONNX),
        (lambda x: x.topk(2).values, NONE),
        (lambda x: x.argsort(-1), ONNX),
        (lambda x: torch.zeros_like(x).scatter(1, x.relu().topk(2).indices, 1.0), ONNX),
        # quotients that become bins
        (lambda x: x // 0.1, EVERY),
        (lambda x: torch.div(x, 0.3, rounding_mode="trunc"), EVERY),
        (lambda x: torch.floor(x / 0.1), ONNX),
        (lambda x: (x / 0.1 + 0.5).to(torch.int64), ONNX),
        (lambda x: (x / WEIGHT[0]).round(), ONNX),
        (lambda x: x[:, :2] / 0.1 > 3, ONNX),
        (_written, ONNX),
        (lambda x: (x.abs().log2() + 1).floor(), ONNX),
        (lambda x: (x / POWERS[:, None]).floor(), NONE),
        (lambda x: (x / POWERS[0]).relu().floor(), NONE),
        (lambda x: torch.floor(x * 0.1), NONE),
        (lambda x: (x / 11.3).softmax(-1) @ WEIGHT, NONE),
        (lambda x: ((x / 11.3) @ WEIGHT).argmax(-1), NONE),
        # results near 0, and what follows from them
        (_routed, ONNX),
        (lambda x: (x.sigmoid() * 2 + 1e-8).log(), ONNX),
        (lambda x: x.sigmoid().argmax(-1), ONNX),
        (_sigmoid_written, ONNX),
        (lambda x: F.softplus(x).log(), ONNX),
        (lambda x: (F.softplus(x) * WEIGHT[0]).exp(), NONE),
        (lambda x: x.sigmoid() * x, NONE),
        (lambda x: (x.sigmoid() ** 0.5).sum(), ONNX),
        (lambda x: x.sigmoid().topk(2).values, NONE),
        (lambda x: x.sigmoid().max(-1).values, NONE),
        (lambda x: x.sigmoid().max(-1).indices, ONNX),
        (lambda x: (1 + x.sigmoid()).log(), NONE),
        (lambda x: x / (x.sigmoid() + 1e-6), ONNX),
        (lambda x: F.silu(x) @ WEIGHT, NONE),
        (lambda x: torch.erf(x).sum(1).log(), EVERY),
        (lambda x: x * (1 + torch.erf(x * 0.7)), NONE),
        # types
        (lambda x: x.half().float() * 2, EVERY),
        (lambda x: x.bfloat16().view(6, 4).float(), EVERY),
        (lambda x: x.half() * 2, NONE),
        (lambda x: (x.double() + 1e-9) - x.double() > 0, OPENVINO),
        # products as other weights could make them
        (lambda x: (x.abs() @ WEIGHT.abs()).log().relu(), EVERY),
        (lambda x: (y := (x @ WEIGHT).relu()) / y.sum(1, keepdim=True), EVERY),
        (lambda x: ((x @ WEIGHT).abs() + 1e-3).log().relu(), NONE),
        (lambda x: (x @ WEIGHT).masked_fill(x > 0, -math.inf).softmax(1), NONE),
        (lambda x: (y := x @ WEIGHT) / y.norm(dim=1, keepdim=True), NONE),
        # what does not depend on arguments
        (lambda x: x + WEIGHT.log1p().nan_to_num().topk(1).values[0], NONE),
        (lambda x: F.layer_norm(F.gelu(x @ WEIGHT), (6,)).softmax(-1), NONE),
    ],
)  # fmt: skip
def test_backends_that_may_come_to_something_else_inside_are_left_out(
    function: Callable[[Tensor], Any], wanted: set[str]
) -> None:
    assert left_out(function) == wanted


def test_nan_in_the_middle_of_a_network_is_found_where_no_input_makes_it() -> None:
    """Shares of what may be nowhere above 0: of 64 numbers some always are, whatever the input."""
    torch.manual_seed(0)
    layer = nn.Linear(6, 64)
    inside = Inside(passed_on(lambda x: ((y := layer(x).relu()) / y.sum(1, keepdim=True)).relu(), X))
    assert inside.refused("openvino") == "div may make a NaN or an infinity inside, and a library a number of it"


def test_networks_as_people_write_them_lose_no_backend() -> None:
    torch.manual_seed(0)
    image, rows = torch.rand(1, 3, 16, 16), torch.rand(2, 5, 8)
    blocks: list[tuple[nn.Module, Tensor]] = [
        (nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Hardswish()), image),
        (nn.Sequential(nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), nn.ReLU6(), nn.AdaptiveAvgPool2d(1)), image),
        (nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, activation="relu"), rows),
        (nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.ELU(), nn.Softmax(-1), nn.Sigmoid()), rows),
    ]
    for module, x in blocks:
        assert left_out(module.eval(), x) == NONE
