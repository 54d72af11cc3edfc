"""Programs that may make NaN of finite numbers, where a backend would make a number of it, are left to others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.runtime.backends.programs import passed_on
from tests.runtime.backends.recorded import AVX2, FUSED
from threadcast.core.settings import Settings
from threadcast.runtime.backends.exported import write_onnx
from threadcast.runtime.backends.library_facts import Facts, LibraryFacts
from threadcast.runtime.backends.onnx_libraries import requests, sessions, write_optimised
from threadcast.runtime.backends.probes import Probes

Function = Callable[[Tensor], Any]

X = torch.rand(4, 6, generator=torch.Generator().manual_seed(0)) + 0.5
NONE, OPENVINO, BOTH = set[str](), {"openvino"}, {"openvino", "torch.compile"}
weight = torch.randn(6, 6, generator=torch.Generator().manual_seed(0))


def _left_out(function: Function, facts: Mapping[str, Facts] = AVX2) -> set[str]:
    """The backends that are left out of a program."""
    probes = Probes(passed_on(function, X), [None])
    return {backend for backend in facts if probes.lost_by(facts[backend], FUSED if backend == "torch.compile" else ())}


def _sliced(x: Tensor) -> Tensor:
    out = torch.zeros(4, 6)
    out[:, :3], out[:, 3:] = x[:, :3].log(), x[:, 3:]
    return out.relu()


def _one_row(x: Tensor) -> Tensor:
    y = x * 1
    y[0].log_()
    return y.relu()


def _by_a_view(x: Tensor) -> Tensor:
    y = x.log()
    y.view(-1).relu_()
    return y * 2


def _made_negative(x: Tensor) -> Tensor:
    y = x.exp()
    y.view(-1).sub_(1.0)
    return y.sqrt().relu()


def _written_and_read(x: Tensor) -> Tensor:
    y = x.log()
    y.relu_()
    return y * 2


def _degrees(x: Tensor) -> Tensor:
    counts = torch.zeros(4).scatter_add(0, torch.tensor([0, 1, 1, 3]), torch.ones(4)) + 0 * x.abs().sum(1)
    found = counts.pow(-0.5)
    return x * found.masked_fill(found == torch.inf, 0.0).unsqueeze(1)


def _degrees_in_place(x: Tensor) -> Tensor:
    """As graph networks of torch_geometric have them."""
    edges = torch.tensor([0, 1, 1, 3])
    found = x.new_zeros(4).scatter_add_(0, edges, x.new_ones(4)).pow_(-0.5)
    found.masked_fill_(found == torch.inf, 0.0)
    return x * found.unsqueeze(1)


def _softmax_of_edges(x: Tensor) -> Tensor:
    edges = torch.tensor([0, 1, 1, 0])
    most = x.new_zeros(2, 6).scatter_reduce_(0, edges[:, None].expand(4, 6), x, "amax", include_self=False)
    found = (x - most.index_select(0, edges)).exp()
    total = x.new_zeros(2, 6).scatter_add_(0, edges[:, None].expand(4, 6), found) + 1e-16
    return found / total.index_select(0, edges)


def _one_of_several_filled(x: Tensor) -> Tensor:
    found = x.abs().log()
    found[0].masked_fill_(found[0] == -torch.inf, 0.0)
    return found * 0.0


def _written_negative(x: Tensor) -> Tensor:
    found = x.new_zeros(4, 6)
    found[0] = x[0]
    return found.sqrt()


def _set(x: Tensor, where: Any, value: float) -> Tensor:
    y = x * 1
    y[where] = value
    return y


def _filled_by_parts(x: Tensor) -> Tensor:
    found = x.abs().log()
    part, _ = found.split(3, 1)
    part.masked_fill_(part.isinf(), 0.0)
    return found * 0.0


def _normalised_in_place(x: Tensor) -> Tensor:
    return x / x.pow(2).mean(1, keepdim=True).add_(1e-6).sqrt_()


def _filled_with_the_least(x: Tensor) -> Tensor:
    return x.masked_fill(x > 1, x.abs().log().amin()).softmax(1)


def _roots_of_degrees(x: Tensor) -> Tensor:
    counts = x.abs().sum(1, keepdim=True)
    return x * torch.where(counts > 0, counts.rsqrt(), 0.0)


def _masked(x: Tensor, mask: Tensor, value: float = -torch.inf) -> Tensor:
    return x.masked_fill(mask, value)


LOST: dict[str, tuple[Function, set[str]]] = {
    "a logarithm": (lambda x: x.log().relu() @ weight, BOTH),
    "of what is positive": (lambda x: (x.abs() + 1e-3).log().relu(), NONE),
    "a part of it shown": (lambda x: ((y := x.log()).relu(), y[:2]), BOTH),
    "some pixels of it shown": (lambda x: ((y := x.log()).relu(), F.conv1d(y[:, None], _ONE, stride=2)), BOTH),
    "shown": (lambda x: ((y := x.log()).relu(), y), NONE),
    "shown by a sum": (lambda x: (y := x.log()) + y.relu(), NONE),
    "shown by integers alone": (lambda x: ((y := x.log()).relu(), y != 0), BOTH),
    "kept": (lambda x: x.log() @ weight, NONE),
    "extremes": (lambda x: x.log().amax(1), {"openvino", "onnxruntime"}),
    "the largest number's norm": (lambda x: x.log().norm(p=torch.inf, dim=1), {"openvino", "onnxruntime"}),
    "in place": (lambda x: (x + 1).log_().relu_() * 2, BOTH),
    "written to and read": (_written_and_read, BOTH),
    "written by a view": (_by_a_view, BOTH),
    "in one row": (_one_row, BOTH),
    "into a slice": (_sliced, BOTH),
    "made negative by a view": (_made_negative, BOTH),
    "a norm": (lambda x: F.relu(F.layer_norm(x, (6,))), NONE),
    "a norm by what may be 0": (lambda x: F.relu(F.layer_norm(x, (6,), eps=0.0)), BOTH),
    "of squares": (lambda x: (x * (x.pow(2).mean(1, keepdim=True) + 1e-6).rsqrt()).relu(), NONE),
    "of a difference": (lambda x: ((x - 0.3).mean(1, keepdim=True) + 1e-6).rsqrt().relu(), BOTH),
    "limits the other way round": (lambda x: x.clamp(0.5, -0.5).sqrt().relu(), BOTH),
    "a sum without one part": (lambda x: torch.add(x.abs(), torch.ones(6), alpha=0).div(x).relu(), BOTH),
    "integers": (lambda x: (x / (x.abs() + 0.5).long()).relu(), BOTH),
    "a quotient": (lambda x: (x / x.sum(1, keepdim=True)).relu(), BOTH),
    "by what is never 0": (lambda x: (x / (x.abs().sum(1, keepdim=True) + 1e-3)).relu(), NONE),
    "normalised": (lambda x: F.normalize(x).relu(), NONE),
    "by constants": (lambda x: (x / weight[0].abs().add(1)).relu(), NONE),
    "by constants of which one is 0": (lambda x: (x / torch.arange(6)).relu(), BOTH),
    "a power": (lambda x: x.pow(0.5).softmax(1), OPENVINO),
    "degrees": (lambda x: _degrees(x).relu(), NONE),
    "degrees in place": (lambda x: _degrees_in_place(x).relu(), NONE),
    "a soft-max of edges": (lambda x: _softmax_of_edges(x).relu(), NONE),
    "infinities of which some are filled": (lambda x: _one_of_several_filled(x).relu(), BOTH),
    "zeros of which some are written to": (lambda x: _written_negative(x).relu(), BOTH),
    "roots of degrees": (lambda x: _roots_of_degrees(x).relu(), NONE),
    "a difference of infinities": (lambda x: (x.abs().log() - (2 * x).abs().log()).relu(), BOTH),
    "an infinity times 0": (lambda x: F.silu(x.abs().log()).relu(), BOTH),
    "a masked row": (lambda x: _masked(x, x > 1).softmax(1).relu(), BOTH),
    "masked alike after": (lambda x: _masked(_masked(x, m := x > 1).softmax(1), m, 0.0).relu(), NONE),
    "masked by what is large": (lambda x: _masked(_masked(x, m := x > 1, torch.inf).softmax(1), m, 0.0).relu(), BOTH),
    "set to -inf": (lambda x: _set(x, x > 1, -torch.inf).softmax(1).relu(), BOTH),
    "scattered": (lambda x: x.scatter(1, _EVERY, -torch.inf).softmax(1).relu(), BOTH),
    "chosen from -inf": (lambda x: torch.where(x > 1, torch.full_like(x, -torch.inf), x).softmax(1).relu(), BOTH),
    "chosen rows of -inf": (lambda x: (x + F.embedding((x[:, 0] > 1).long(), _ROWS)).softmax(1).relu(), BOTH),
    "-inf that is filled": (
        lambda x: (x + torch.full((6,), -torch.inf).masked_fill(x[0] > 1, 0)).softmax(1).relu(),
        BOTH,
    ),
    "masked twice, filled once": (lambda x: _masked(_masked(x + _LATER, m := x > 1).softmax(1), m, 0.0).relu(), BOTH),
    "filled by parts": (lambda x: _filled_by_parts(x).relu(), BOTH),
    "filled with what varies": (lambda x: _filled_with_the_least(x).relu(), BOTH),
    "rounded quotients": (lambda x: (x // x.round()).relu(), BOTH),
    "by what is 0 in float32": (lambda x: (x / (x.abs() + 1e-50)).relu(), BOTH),
    "in half precision": (lambda x: ((y := x.half()) / (y.abs() + 1e-8)).relu(), BOTH),
    "an infinity that is constant": (lambda x: (x * torch.full((6,), torch.inf)).clamp(max=3), BOTH),
    "shown as integers": (lambda x: ((y := x.log()).relu(), y.sum(dtype=torch.int32).float()), BOTH),
    "a variance that is given": (lambda x: F.batch_norm(x, torch.zeros(6), x[0]).relu(), BOTH),
    "normalised in place": (lambda x: _normalised_in_place(x).relu(), NONE),
    "RMS norm": (lambda x: F.rms_norm(x, (6,), eps=1e-6).relu(), NONE),
    "cosines": (lambda x: F.cosine_similarity(x, x.flip(1)).relu(), NONE),
    "local responses": (lambda x: F.local_response_norm(x.view(1, 4, 3, 2), 3).relu(), NONE),
    "by mean and variance": (lambda x: (x / (torch.var_mean(x, 1, keepdim=True)[0] + 1e-5).sqrt()).relu(), NONE),
    "zeros like a logarithm": (lambda x: torch.zeros_like(x.log()).relu(), NONE),
    "attention by a mask": (
        lambda x: F.scaled_dot_product_attention(
            x[None, None], x[None, None], x[None, None], x[None, None, :, :4] > 0.6
        )[0, 0, 0].relu(),
        NONE,
    ),
    "always masked": (lambda x: (x + torch.triu(torch.full((4, 6), -torch.inf), 1)).softmax(1).relu(), NONE),
    "complex": (lambda x: torch.view_as_complex(x.view(4, 3, 2)).masked_fill(x[:, :3] > 1, 1j), NONE),
}
_ONE = torch.ones(1, 1, 1)
_EVERY = torch.arange(6).expand(4, 6)
_ROWS = torch.tensor([[0.0], [-torch.inf]]).expand(2, 6).clone()
_LATER = torch.full((4, 6), -torch.inf).triu(1)


@pytest.mark.parametrize("name", LOST)
def test_backends_that_may_lose_a_nan_are_left_out(name: str) -> None:
    function, without = LOST[name]
    assert _left_out(function) == without


def test_infinities_of_arguments_may_fill_a_row() -> None:
    def masked(x: Tensor, mask: Tensor) -> Tensor:
        return (x + mask).softmax(1).relu()

    mask = torch.zeros(4, 6)
    assert Probes(passed_on(masked, X, mask), [None, None]).lost_by(AVX2["openvino"]) is None
    mask[0, 3] = -torch.inf
    assert Probes(passed_on(masked, X, mask), [None, None]).lost_by(AVX2["openvino"]) is not None


def test_what_is_lost_is_named() -> None:
    probes = Probes(passed_on(lambda x: x.log().relu(), X), [None])
    assert probes.lost_by(AVX2["openvino"]) == "NaN arises inside, of which relu makes a number"


def test_nan_in_the_middle_of_a_network_is_found_where_no_input_makes_it() -> None:
    """Shares of what may be nowhere above 0: of 64 numbers some always are, whatever the input."""
    torch.manual_seed(0)
    layer = nn.Linear(6, 64)
    probes = Probes(passed_on(lambda x: ((y := layer(x).relu()) / y.sum(1, keepdim=True)).relu(), X), [None])
    assert probes.lost_by(AVX2["openvino"]) is not None


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
        probes = Probes(passed_on(module.eval(), x), [None])
        assert not any(probes.lost_by(one, FUSED) for one in AVX2.values())


OPERATORS: dict[str, Function] = {
    "relu": torch.relu, "sigmoid": torch.sigmoid, "tanh": torch.tanh, "gelu": F.gelu, "silu": F.silu, "erf": torch.erf,
    "hardswish": F.hardswish, "leaky_relu": F.leaky_relu, "elu": F.elu, "sum": lambda x: x.sum(1), "abs": torch.abs,
    "mean": lambda x: x.mean(1), "mm": lambda x: x @ weight, "cumsum": lambda x: x.cumsum(1), "mish": F.mish,
    "softplus": F.softplus, "mul": lambda x: x * 0.0, "sub": lambda x: x - x, "topk": lambda x: x.topk(2)[0],
    "softmax": lambda x: x.softmax(1), "exp": torch.exp, "sin": torch.sin, "sqrt": torch.sqrt, "cos": torch.cos,
    "native_layer_norm": lambda x: F.layer_norm(x, (6,)), "log": torch.log, "reciprocal": torch.reciprocal,
    "cat": lambda x: torch.cat([x, x], 1), "maximum": lambda x: torch.maximum(x, weight[:4]),
    "hardtanh": F.hardtanh, "hardsigmoid": F.hardsigmoid, "rsqrt": torch.rsqrt, "neg": torch.neg,
}  # fmt: skip


def test_operators_lose_no_nan_but_those_that_the_library_said(tmp_path: Path) -> None:
    exported = torch.export.export(_All(), (X,))
    given = X.clone()
    given[1, 2] = given[3, 0] = -1.0
    wanted = exported.module()(given)
    write_onnx(exported, tmp_path / "model.onnx")
    asked = LibraryFacts(Settings.read()["engine.cache"] / "libraries")
    for backend, calls in (
        ("onnxruntime", sessions(write_optimised(tmp_path / "model.onnx"), 1)),
        ("openvino", requests(tmp_path / "model.onnx", 1)),
    ):
        found = next(iter(calls.values()))()([given])
        lost = [bool((eager.isnan() & ~mine.isnan()).any()) for eager, mine in zip(wanted, found, strict=True)]
        lose = {name for name, one in zip(OPERATORS, lost, strict=True) if one}
        assert not [name for name in lose if not asked.asked(backend).differs(name, "nan")], backend
        assert lose or backend == "onnxruntime", "nothing is shown where nothing is lost"


class _All(nn.Module):
    def forward(self, x: Tensor) -> list[Tensor]:
        return [function(x.log()) for function in OPERATORS.values()]
