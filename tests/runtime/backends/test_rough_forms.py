"""Programs of which a backend computes fewer right digits than PyTorch, for some arguments, are left to others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from tests.runtime.backends.programs import passed_on
from tests.runtime.backends.recorded import AVX2
from threadcast.runtime.backends.probes import Probes

Function = Callable[[Tensor], Any]

X = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
WEIGHT = torch.randn(6, 6, generator=torch.Generator().manual_seed(1))
POWERS = torch.tensor([0.25, 2.0, 8.0, -1.0])
NONE, ORT, OPENVINO, ONNX = set[str](), {"onnxruntime"}, {"openvino"}, {"onnxruntime", "openvino"}
COMPILED = {"openvino", "torch.compile"}


def _left_out(function: Function) -> set[str]:
    probes = Probes(passed_on(function, X), [None])
    return {backend for backend, facts in AVX2.items() if probes.lost_by(facts) is not None}


def _routed(x: Tensor) -> Tensor:
    score = (x @ WEIGHT).sigmoid()
    return score / (score.sum(-1, keepdim=True) + 1e-20)


def _written(x: Tensor) -> Tensor:
    y = x + 1
    y.view(-1).div_(0.1)
    return y.floor()


def _into_zeros(x: Tensor) -> Tensor:
    out = torch.zeros(4, 6)
    out[:, :3] = x[:, :3]
    return out.log1p()


def _quotient_into_zeros(x: Tensor) -> Tensor:
    out = torch.zeros(4, 6)
    out[:] = x / 0.1
    return out.floor()


def _sigmoid_written(x: Tensor) -> Tensor:
    y = x * 1
    y.sigmoid_()
    return y.log()


@pytest.mark.parametrize(
    ("function", "left_out"),
    [
        (torch.log1p, ONNX),
        (torch.expm1, ONNX),
        (_into_zeros, ONNX),
        (lambda x: F.binary_cross_entropy_with_logits(x, torch.ones(4, 6)), ONNX),
        (F.logsigmoid, ONNX),
        (F.softplus, OPENVINO),
        (F.mish, OPENVINO),
        (lambda x: (1 + x.exp()).log(), NONE),
        (lambda x: (2 + x.cos()).log(), NONE),
        (lambda x: (2 + x.exp()).log(), NONE),
        # what has a form in ONNX that computes something else
        (lambda x: torch.atan2(x, -x), ONNX),
        (lambda x: torch.logaddexp(x, x * 2), ONNX),
        (lambda x: x.logcumsumexp(1), ONNX),
        (lambda x: x.new_zeros(2).scatter_reduce(0, torch.tensor([0, 1]), x[0, :2], "mean"), ONNX),
        (lambda x: x.new_zeros(2).scatter_reduce(0, torch.tensor([0, 1]), x[0, :2], "amax"), NONE),
        (lambda x: x % 0.25, NONE),
        # which of equal numbers comes first
        (lambda x: x.topk(2).indices, ONNX),
        (lambda x: x.topk(2).values, NONE),
        (lambda x: x.argsort(-1), ONNX),
        (lambda x: torch.zeros_like(x).scatter(1, x.relu().topk(2).indices, 1.0), ONNX),
        # quotients that become bins
        (lambda x: torch.floor(x / 0.1), OPENVINO),
        (lambda x: (x / 0.1 + 0.5).to(torch.int64), OPENVINO),
        (lambda x: (x / WEIGHT[0]).round(), OPENVINO),
        (lambda x: torch.div(x, 0.3, rounding_mode="trunc"), OPENVINO),
        (lambda x: x[:, :2] / 0.1 > 3, OPENVINO),
        (_written, OPENVINO),
        (_quotient_into_zeros, OPENVINO),
        (lambda x: (x.abs().log2() + 1).floor(), ONNX),
        (lambda x: (x / POWERS[:, None]).floor(), NONE),
        (lambda x: (x / POWERS[0]).relu().floor(), NONE),
        (lambda x: torch.floor(x / 0.25), NONE),
        (lambda x: torch.floor(x * 0.1), NONE),
        (lambda x: (x / 11.3).softmax(-1) @ WEIGHT, NONE),
        (lambda x: ((x / 11.3) @ WEIGHT).argmax(-1), NONE),
        # sigmoids of which all are near 0
        (_routed, ORT),
        (lambda x: x.sigmoid().log(), ORT),
        (lambda x: (x.sigmoid() * 2 + 1e-8).log(), ORT),
        (lambda x: x.sigmoid().argmax(-1), ORT),
        (_sigmoid_written, ORT),
        (lambda x: x.sigmoid() * x, NONE),
        (lambda x: (x.sigmoid() * 2) ** 2 * WEIGHT[0], NONE),
        (lambda x: (x.sigmoid() ** 0.5).sum(), ORT),
        (lambda x: x.sigmoid().topk(2).values, NONE),
        (lambda x: x.sigmoid().max(-1).values, NONE),
        (lambda x: x.sigmoid().max(-1).indices, ORT),
        (lambda x: x.sigmoid().max(), NONE),
        (lambda x: x / (1 + x.sigmoid()), NONE),
        (lambda x: (1 + x.sigmoid()).log(), NONE),
        (lambda x: x.sigmoid() / (x.abs().sum() + 1), NONE),
        (lambda x: x / (x.sigmoid() + 1e-6), ORT),
        (lambda x: F.silu(x) @ WEIGHT, NONE),
        (lambda x: x.sigmoid(), NONE),
        (lambda x: (x.sigmoid() @ WEIGHT).log(), ORT),
        # erf, whose own small results are found by a call with tiny numbers, and in gelu
        (torch.erf, NONE),
        (lambda x: torch.erf(x).sum(1).log(), COMPILED),
        (lambda x: x * (1 + torch.erf(x * 0.7)), NONE),
        (F.gelu, NONE),
        # roundings
        (lambda x: x.half().float() * 2, COMPILED),
        (lambda x: x.bfloat16().view(6, 4).float(), COMPILED),
        (lambda x: x.half()[:, :3].float(), COMPILED),
        (lambda x: x.half() * 2, NONE),
        # what does not depend on arguments
        (lambda x: x + WEIGHT.log1p().nan_to_num().topk(1).values[0], NONE),
        (lambda x: F.layer_norm(F.gelu(x @ WEIGHT), (6,)).softmax(-1), NONE),
    ],
)  # fmt: skip
def test_backends_with_too_few_digits_are_left_out(function: Function, left_out: set[str]) -> None:
    assert _left_out(function) == left_out
