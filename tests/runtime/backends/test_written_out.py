"""Operators that exporters do not know are written out, and compute the same."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from tests.runtime.backends.programs import ONNX, call_by, exported, passed_on
from threadcast.runtime.backends.compiled import package_call, write_package
from threadcast.runtime.backends.constant_rows import centred, differences_from_mean
from threadcast.runtime.backends.frozen import TensorCall
from threadcast.runtime.backends.probes import Probes
from threadcast.runtime.backends.program_file import ReadProgram
from threadcast.runtime.backends.written_out import written_out


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_a_transformer_layer_is_written_out(norm_first: bool, activation: str) -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=norm_first, activation=activation).eval()
    x = torch.randn(3, 5, 8)
    read = passed_on(layer, x)
    assert any("_transformer_encoder_layer_fwd" in str(node.target) for node in read.module.graph.nodes)
    written = written_out(read)
    assert not any("_transformer_encoder_layer_fwd" in str(node.target) for node in written.graph.nodes)
    with torch.no_grad():
        torch.testing.assert_close(written(x)[0], layer(x))


@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"scale": 0.3}])
def test_attention_is_written_out(options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    query, key, value = torch.randn(3, 2, 4, 6, 8)

    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, **options)

    read = passed_on(attention, query, key, value)
    assert any("flash_attention" in str(node.target) for node in read.module.graph.nodes)
    written = written_out(read)
    assert not any("flash_attention" in str(node.target) for node in written.graph.nodes)
    torch.testing.assert_close(written(query, key, value)[0], attention(query, key, value))


@pytest.mark.parametrize("boolean", [True, False])
def test_attention_to_nothing_is_zero_in_every_backend(boolean: bool, tmp_path: Path) -> None:
    torch.manual_seed(0)
    query, keep = torch.randn(3, 2, 6, 8), torch.ones(3, 1, 6, 6, dtype=torch.bool)
    masked = keep.clone()
    masked[0, 0, 2], masked[1, 0, 4:], masked[2, 0, :, 3:] = False, False, False

    def attention(q: Tensor, mask: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, q, q, mask)

    def given(kept: Tensor) -> Tensor:
        return kept if boolean else torch.zeros(kept.shape).masked_fill(~kept, -math.inf)

    read = passed_on(attention, query, given(keep))
    wanted = attention(query, given(masked))
    assert wanted[0, :, 2].eq(0).all()
    program = exported(read)
    torch.testing.assert_close(program.module()(query, given(masked))[0], wanted)
    for library in ONNX:
        (found,) = call_by(library, program)([query, given(masked)])
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
        assert found[0, :, 2].eq(0).all()


@pytest.mark.parametrize("library", ONNX)
def test_results_of_attention_that_lie_in_another_order_when_written_out_are_viewed(library: str) -> None:
    """As GPT-2, T5 and conformers have them: PyTorch's kernel leaves them in the order in which they are joined."""
    torch.manual_seed(0)
    x = torch.randn(2, 6, 12)

    def joined(x: Tensor) -> Tensor:
        heads = x.view(2, 6, 3, 4).transpose(1, 2)
        found = F.scaled_dot_product_attention(heads, heads, heads).transpose(1, 2).view(2, 6, 12)
        return F.softshrink(found)  # has to be decomposed

    (found,) = call_by(library, exported(passed_on(joined, x)))([x])
    torch.testing.assert_close(found, joined(x))


def test_self_attention_is_written_out() -> None:
    torch.manual_seed(0)
    attention, x = nn.MultiheadAttention(8, 2, batch_first=True).eval(), torch.randn(3, 5, 8)
    read = passed_on(lambda x: attention(x, x, x, need_weights=False)[0], x)
    assert any("_native_multi_head_attention" in str(node.target) for node in read.module.graph.nodes)
    with torch.no_grad():
        wanted = attention(x, x, x, need_weights=False)[0]
        torch.testing.assert_close(written_out(read)(x)[0], wanted)


@pytest.mark.parametrize("kind", [torch.float32, torch.float64, torch.int64, torch.int32, torch.uint8, torch.int8])
@pytest.mark.parametrize("number", [1, 2.5, 0, -1, 1e-9])
def test_numbers_from_which_tensors_are_subtracted_are_written_out(kind: torch.dtype, number: float) -> None:
    """Of whole numbers only: 0.0 - 0.0 is 0.0, and -0.0 + 0.0 is, too, but exporters may leave out what adds 0."""
    x = torch.tensor([0, 1, 3, 100]).to(kind)
    graph = fx.Graph()
    given = graph.placeholder("x")
    aten = torch.ops.aten
    graph.output((
        graph.call_function(aten.sub.Tensor, (number, given)),
        graph.call_function(aten.rsub.Scalar, (given, number)),
    ))  # fmt: skip
    program = torch.export.export(written_out(ReadProgram(fx.GraphModule(nn.Module(), graph), (x,))), (x,)).module()
    whole = kind in (torch.int64, torch.int32)
    assert whole is not any("sub" in str(node.target) for node in program.graph.nodes)
    for found in program(x):
        torch.testing.assert_close(found, number - x, rtol=0, atol=0)


class Activated(nn.Module):
    """Activations that write in place: to what nothing else reads any more, and to what is read as a view, too."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.mix = nn.BatchNorm2d(3), nn.Conv2d(3, 3, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        alone, viewed = self.norm(self.mix(x)), self.mix(x)
        view = viewed.flatten()
        return F.hardswish(F.relu(alone, inplace=True), inplace=True), viewed.sigmoid_(), view * 2


def test_activations_in_place_return_new_tensors_where_nothing_else_reads_what_they_write_to() -> None:
    torch.manual_seed(0)
    model, x = Activated().eval(), torch.randn(1, 3, 5, 5)
    read = passed_on(model, x)
    written = written_out(read)
    in_place = [str(node.target) for node in written.graph.nodes if str(node.target).endswith("_.default")]
    assert in_place == ["aten.sigmoid_.default"]
    program = torch.export.export(written, (x,))
    with torch.no_grad():
        for found, wanted in zip(program.module()(x), model(x), strict=True):
            torch.testing.assert_close(found, wanted)


def test_a_program_is_only_decomposed_where_an_operator_has_no_form(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.onnx._internal.exporter import _fx_passes

    torch.manual_seed(0)
    decomposed, decompose = list[int](), _fx_passes.decompose_with_registry

    def counted(*arguments: Any) -> Any:
        decomposed.append(1)
        return decompose(*arguments)

    monkeypatch.setattr(_fx_passes, "decompose_with_registry", counted)
    x, plain = torch.randn(1, 3, 6, 6), nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True))
    for module, times in (plain.eval(), 0), (nn.Sequential(nn.Conv2d(3, 4, 3), nn.Softshrink()), 1):
        (found,) = call_by("openvino", exported(passed_on(module, x)))([x])
        assert len(decomposed) == times
        with torch.no_grad():
            torch.testing.assert_close(found, module(x))


class _Windows(nn.Module):
    """A mask that is written part by part, as in Swin, a table that is looked up, and a constant that is written to."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.places = nn.Parameter(torch.randn(5, 2)), nn.Buffer(torch.tensor([[0, 3], [1, 4]]))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        mask = x.new_zeros(4, 4)
        for at in range(4):
            mask[at, :at].fill_(float(at))
        bias = self.table[self.places.view(-1)].view(2, 2, 2).permute(2, 0, 1).contiguous()
        written, early = x.new_zeros(4), x.new_ones(4)
        y = x * early
        early.add_(1.0)
        written[1:] = x[0, 1:]
        return x + mask.masked_fill(mask > 2, 9.0), y * early + (written + 1), bias.sum() * x, self.table.t() + 1


def test_what_is_the_same_in_every_call_is_computed_before_and_nothing_else() -> None:
    torch.manual_seed(0)
    module, x = _Windows().eval(), torch.randn(4, 4)
    read = passed_on(module, x)
    before = read.weights_digest()
    program = torch.export.export(written_out(read), (x,))
    assert read.weights_digest() == before
    names = [str(node.target) for node in program.graph.nodes if node.op == "call_function"]
    assert not any(one in name for name in names for one in ("fill", "aten.index.Tensor", "permute"))
    for given in (x, torch.randn(4, 4)):
        for found, wanted in zip(program.module()(given), module(given), strict=True):
            torch.testing.assert_close(found, wanted, rtol=0, atol=0)
        found = program.module()(given)
        found[3].fill_(0.0)  # a result, which is the same in every call, is new in each


def test_a_difference_of_tensors_stays() -> None:
    given = torch.tensor([5, 3]), torch.tensor([1, 2])
    program = exported(passed_on(lambda a, b: torch.sub(a, b, alpha=2), *given)).module()
    assert any("sub" in str(node.target) for node in program.graph.nodes)
    assert program(*given)[0].tolist() == [3, -1]


class _Norms(nn.Module):
    """Norms of (2, 8, 6, 128), as layers and written out."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.rows = nn.LayerNorm(128), nn.LayerNorm((6, 128), elementwise_affine=False)
        self.instance, self.group, self.one = nn.InstanceNorm2d(8), nn.GroupNorm(4, 8), nn.GroupNorm(1, 8)

    def forward(self, x: Tensor) -> list[Tensor]:
        y = x - x.mean(-1, keepdim=True)
        variance, mean = torch.var_mean(x, (2, 3), keepdim=True, correction=0)
        return [
            self.layer(x), self.rows(x), self.instance(x), self.group(x), self.one(x),
            self.layer(x - x.mean(1, keepdim=True) + x),
            y / (x.var(-1, keepdim=True) + 1e-5).sqrt(),
            y / (y.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt(),
            (x - mean) * torch.rsqrt(variance + 1e-5),
            (x - x.mean()) / (x.std() + 1e-5),
        ]  # fmt: skip


BACKENDS = [*ONNX, pytest.param("torch.compile", marks=pytest.mark.system)]
"""Inductor takes a C++ compiler's time."""


def run_by(backend: str, read: ReadProgram, folder: Path) -> TensorCall:
    if backend != "torch.compile":
        return call_by(backend, exported(read))
    return package_call(write_package(exported(read), folder, 1, freezing=False), read.example)


@pytest.mark.parametrize("backend", BACKENDS)
def test_norms_of_one_number_have_the_digits_of_pytorch_in_every_backend(backend: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    norms, noise = _Norms().eval(), torch.randn(2, 8, 6, 128)
    exact = _Norms().eval().double()
    run = run_by(backend, passed_on(norms, noise), tmp_path)
    silence, first_far = noise.clone(), noise.clone()
    silence[1] = -80.3
    first_far[..., 0] = 300.0
    with torch.no_grad():
        for x in (noise, silence, first_far, *(torch.full_like(noise, value) for value in (0.0, 1.7, 33.3, 1000.1))):
            for found, wanted in zip(run([x]), exact(x.double()), strict=True):
                torch.testing.assert_close(found.double(), wanted, rtol=1e-4, atol=3e-5)
        for value in (math.inf, math.nan):
            x = noise.clone()
            x[0, 0, 0, 0] = value
            for found, wanted in zip(run([x]), norms(x), strict=True):
                assert found.isnan().equal(wanted.isnan())


class _Means(nn.Module):
    """What norms return beside their values, for (2, 8, 6, 128)."""

    def forward(self, x: Tensor) -> list[Tensor]:
        group = torch.ops.aten.native_group_norm(x, None, None, 2, 8, 768, 4, 1e-5)
        layer = torch.ops.aten.native_layer_norm(x, [128], None, None, 1e-5)
        batch = torch.ops.aten.native_batch_norm(x, None, None, None, None, True, 0.0, 1e-5)
        return [*group, *layer, *batch]


@pytest.mark.system
def test_the_means_that_norms_return_are_of_what_they_are_given(tmp_path: Path) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 8, 6, 128) + 5
    read = passed_on(_Means().eval(), x)
    for outputs in (exported(read).module()(x), run_by("torch.compile", read, tmp_path)([x])):
        for found, wanted in zip(outputs, _Means()(x), strict=True):
            torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


def test_only_the_mean_of_what_it_is_taken_off_is_taken_off_again() -> None:
    x = torch.randn(3, 4, 6)

    def found(function: Any) -> list[Any]:
        program = passed_on(function, x.clone())
        torch.testing.assert_close(written_out(program)(x)[0], function(x.clone()))
        return list(differences_from_mean(program.module).values())

    def written_between(x: Tensor) -> Tensor:
        y = x * 2
        mean = y.mean(-1, keepdim=True)
        y += 1
        return y - mean

    assert found(lambda x: x - x.mean(1, keepdim=True)) == [[1]]
    assert found(lambda x: x - x.mean()) == [[]]
    assert found(lambda x: x - torch.var_mean(x, (0, 2), keepdim=True)[1]) == [[0, 2]]
    for other in (
        lambda x: x - (x * 2).mean(-1, keepdim=True),
        lambda x: x - x[:, :, :1].mean(-1, keepdim=True),
        lambda x: x.transpose(0, 2)[:, :3, :3] - x.transpose(0, 2)[:, :3, :3].mean(0),
        lambda x: torch.sub(x, x.mean(-1, keepdim=True), alpha=2),
        lambda x: x.mean(-1, keepdim=True) - x,
        written_between,
    ):
        assert found(other) == []


class _Masked(nn.Module):
    """Values above 3 count as infinitely low, which no value of the example is."""

    def forward(self, x: Tensor) -> Tensor:
        masked = x.masked_fill(x > 3, -math.inf)
        return torch.where(masked - masked.mean(-1, keepdim=True) > 0, x, -x)


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_infinite_mean_is_taken_off_as_in_pytorch(backend: str, tmp_path: Path) -> None:
    """OpenVINO's `>` says True of NaN on some processors, which its answers show there."""
    torch.manual_seed(0)
    x = torch.rand(8, 64)
    read = passed_on(_Masked().eval(), x)
    run = run_by(backend, read, tmp_path)
    with torch.no_grad():
        left_out = Probes(read, [None]).disagreement(run) is not None
    x[:, ::8] = 4.0
    assert left_out or run([x])[0].equal(_Masked()(x))
    assert not left_out or backend == "openvino"
    assert centred(torch.tensor([2e38, 2e38, 2e38, 2e38])).eq(2e38).all()


def test_group_norms_keep_the_order_of_their_values_in_memory() -> None:
    class Rows(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.GroupNorm(2, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.norm(x).permute(0, 2, 3, 1).reshape(2, 36)  # type: ignore[no-any-return]

    x = torch.randn(2, 4, 3, 3).contiguous(memory_format=torch.channels_last)
    found = exported(passed_on(Rows().eval(), x)).module()(x)
    torch.testing.assert_close(found[0], Rows().eval()(x))


def test_no_numbers_and_other_precisions_are_centred_as_they_are() -> None:
    assert centred(torch.empty(0, 4), [1]).shape == (0, 4)
    assert centred(torch.empty(4, 0), [1]).shape == (4, 0)
    assert centred(torch.tensor([[7.3], [-1.0]]), [1]).eq(0).all()
    for dtype in (torch.float16, torch.bfloat16, torch.float64):
        x = torch.ones(3, dtype=dtype)
        assert centred(x) is x
