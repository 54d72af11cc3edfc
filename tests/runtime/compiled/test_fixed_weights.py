"""Graphs for inference whose weights stay the same: channels last and backends, on copies of the weights."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.fx import symbolic_trace
from torch.nn import functional as F

from tests.runtime.compiled.running import run_until_settled
from tests.runtime.compiler import needs_compiler
from tests.runtime.conftest import DefaultWins
from tests.waiting import attempts
from threadcast.runtime.backends.search import BackendSearch
from threadcast.runtime.compiled import graph_calls
from threadcast.runtime.compiled.fixed_weights import FixedWeights
from threadcast.runtime.compiled.graph_calls import GraphCalls
from threadcast.runtime.doors.compile_backend import compiled_graphs
from threadcast.runtime.plans.variant import MemoryFormat
from threadcast.runtime.tuner import candidates
from threadcast.runtime.tuner.contender import Contender, backend
from threadcast.runtime.tuner.report import Report

LAST, GIVEN = MemoryFormat.CHANNELS_LAST, MemoryFormat.AS_GIVEN
FREEZE = {"freeze": True}


@pytest.fixture(autouse=True)
def no_searches(monkeypatch: pytest.MonkeyPatch) -> None:
    """No process searches for backends."""
    monkeypatch.setattr(BackendSearch, "start", BackendSearch.close)


class Images(nn.Module):
    """Returns images whose axes are exchanged, and others."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = torch.relu(self.norm(self.first(x)))
        return self.second(y), y.transpose(1, 3)


def images() -> nn.Module:
    torch.manual_seed(0)
    return Images().eval()


def batch(seed: int) -> Tensor:
    return torch.randn(2, 3, 12, 12, generator=torch.Generator().manual_seed(seed))


def same(found: Any, wanted: Any) -> None:
    """Equal values and strides."""
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5, check_stride=True)


def reports() -> list[Report]:
    return [report for graph in compiled_graphs() for report in graph.reports]


@pytest.mark.usefixtures("nothing_is_left_out")
def test_channels_last_is_tried_and_results_lie_as_eagers_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(candidates, "Tournament", DefaultWins)  # so that all is compared, whatever is faster
    model = images()
    compiled = torch.compile(model, backend="threadcast", options=FREEZE)
    strides = [parameter.stride() for parameter in model.parameters()]

    @torch.no_grad()
    def call(seed: int) -> None:
        same(compiled(batch(seed)), model(batch(seed)))

    run_until_settled(call)
    (report,) = reports()
    assert {"plan, channels last", "eager, channels last"} <= set(report.verdicts)
    assert [parameter.stride() for parameter in model.parameters()] == strides  # guards of other graphs rely on these


def test_a_single_forced_memory_format_follows_what_is_written_to_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FixedWeights, "worth_trying", lambda *_: (LAST,))
    model = images()
    compiled = torch.compile(model, backend="threadcast", options=FREEZE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def call(seed: int) -> None:
        with torch.no_grad():
            same(compiled(batch(seed)), model(batch(seed)))
        if seed % 5 == 0:
            optimizer.zero_grad()
            model(batch(seed))[0].square().mean().backward()
            optimizer.step()
        elif seed % 5 == 1:
            for parameter in model.parameters():
                parameter.data.mul_(1.01)
        elif seed % 5 == 2:
            model.load_state_dict({name: value * 0.99 for name, value in model.state_dict().items()})

    run_until_settled(call, least=40)
    assert [report.layout for report in reports()] == [LAST]


class Chained(nn.Module):
    """Convolutions with loops over single elements between them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 64, 3, padding=1), nn.Conv2d(64, 64, 3, padding=1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.first(x)
        for _ in range(3):
            y = self.second(y.sigmoid() * y.tanh() * 0.5 + y)
        return y, y.transpose(1, 3)


@needs_compiler
@pytest.mark.usefixtures("one_thread", "plans_win")
def test_fused_loops_in_channels_last_are_compared_in_that_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every fifth call also runs by PyTorch, in the order in which the plan was made; else it would raise."""
    monkeypatch.setattr(FixedWeights, "worth_trying", lambda *_: (LAST,))
    torch.manual_seed(0)
    model = Chained().eval()
    compiled, compared = torch.compile(model, backend="threadcast", options=FREEZE), []
    plain = graph_calls.shadow_step

    def noted(*given: Any) -> Any:
        compared.append(reports()[0].fused)
        return plain(*given)

    monkeypatch.setattr(graph_calls, "shadow_step", noted)

    @torch.no_grad()
    def call(seed: int) -> None:
        same(compiled(batch(seed)), model(batch(seed)))

    for seed in attempts():
        call(seed)
        if sum(compared) >= 3:
            break
    assert [(report.runs, report.layout, report.fused) for report in reports()] == [("plan", LAST, True)]


@pytest.mark.parametrize("memory_format", [LAST, GIVEN])
def test_results_that_share_memory_do_so_in_every_format(
    memory_format: MemoryFormat, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FixedWeights, "worth_trying", lambda *_: (memory_format,))
    model = nn.Conv2d(3, 4, 3)

    def both(x: Tensor) -> tuple[Tensor, Tensor]:
        y = model(x)
        return y, y[1:]

    compiled = torch.compile(both, backend="threadcast", options=FREEZE)

    @torch.no_grad()
    def call(seed: int) -> None:
        image, part = compiled(batch(seed))
        image.zero_()
        assert not part.any()

    run_until_settled(call)
    assert [report.layout for report in reports()] == [memory_format]


def test_layers_that_share_a_graph_have_their_own_weights() -> None:
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(6, 6), nn.Tanh()).eval() for _ in range(3)]
    compiled = [torch.compile(layer, backend="threadcast", options=FREEZE) for layer in layers]
    with torch.no_grad():
        for seed in range(30):
            x = torch.randn(4, 6, generator=torch.Generator().manual_seed(seed))
            for one, layer in zip(compiled, layers, strict=True):
                torch.testing.assert_close(one(x), layer(x), rtol=1e-5, atol=1e-6)


def test_weights_that_are_replaced_count_as_inputs() -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 4).eval()
    compiled = torch.compile(model, backend="threadcast", options=FREEZE)
    with torch.no_grad():
        for seed in range(30):
            if seed % 10 == 9:
                model.weight = nn.Parameter(torch.randn(4, 4))
            x = torch.randn(3, 4)
            torch.testing.assert_close(compiled(x), model(x), rtol=1e-5, atol=1e-6)


def test_by_default_weights_are_not_copied() -> None:
    model = images()
    compiled = torch.compile(model, backend="threadcast")

    @torch.no_grad()
    def call(seed: int) -> None:
        same(compiled(batch(seed)), model(batch(seed)))

    run_until_settled(call)
    assert [report.layout for report in reports()] == [GIVEN]
    assert not any("channels last" in name for report in reports() for name in report.verdicts)


@pytest.mark.usefixtures("one_thread", "plans_win")
def test_by_default_writes_to_few_elements_that_pytorch_does_not_count_are_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    offered = FixedWeights.worth_trying  # channels last, wherever it may be used
    monkeypatch.setattr(FixedWeights, "worth_trying", lambda *given: offered(*given)[:1])
    model = images()
    compiled = torch.compile(model, backend="threadcast")
    weight: Tensor = model.first.weight  # type: ignore[assignment]
    writes: list[Callable[[], object]] = [
        lambda: weight.data[1, 0, 0].fill_(9.0),
        lambda: weight.data[:4].zero_(),
        lambda: weight.detach().numpy()[5, 2, 1].fill(3.0),
    ]
    with torch.no_grad():
        run_until_settled(lambda seed: same(compiled(batch(seed)), model(batch(seed))))
        assert [report.runs for report in reports()] == ["plan"]
        for write in writes:
            before = model(batch(0))[0]
            write()
            assert not torch.allclose(model(batch(0))[0], before, atol=0.01)
            same(compiled(batch(0)), model(batch(0)))


def fixed(weight: Tensor) -> FixedWeights:
    convolution, options = torch.ops.aten.convolution.default, ([1, 1], [0, 0], [1, 1], False, [0, 0], 1)
    graph = symbolic_trace(lambda x, w: (convolution(x, w, None, *options),))
    return FixedWeights(graph, [1], (batch(0), weight))


def test_weights_of_a_model_that_is_gone_are_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FixedWeights, "worth_trying", lambda *_: (LAST,))
    monkeypatch.setattr(FixedWeights, "backends", lambda *_, **__: None)  # a search keeps them until it is over
    freed = threading.Event()
    close = GraphCalls.forget_weights

    def closing(graph: GraphCalls) -> None:
        close(graph)
        freed.set()

    monkeypatch.setattr(GraphCalls, "forget_weights", closing)

    def run() -> list[weakref.ref[Tensor]]:
        model = images()
        compiled = torch.compile(model, backend="threadcast", options=FREEZE)
        with torch.no_grad():
            run_until_settled(lambda seed: compiled(batch(seed)))
        return [weakref.ref(parameter) for parameter in model.parameters()]

    weights = run()
    gc.collect()
    assert freed.wait(60)
    gc.collect()
    assert [weight() for weight in weights] == [None] * len(weights)


def test_copies_are_renewed_before_a_call_whose_weights_were_written_to() -> None:
    weight = torch.randn(4, 3, 3, 3)
    weights = fixed(weight)
    weights.set(LAST)
    before = weights.as_pytorch(batch(1))[0]
    weight.mul_(2)
    weights.set(LAST)
    torch.testing.assert_close(weights.as_pytorch(batch(1))[0], 2 * before)
    assert weight.is_contiguous()


def test_weights_without_versions_are_not_copied() -> None:
    with torch.inference_mode():
        weight = torch.randn(4, 3, 3, 3)
    assert fixed(weight).worth_trying((batch(0),)) == (GIVEN,)
    assert fixed(torch.randn(4, 3, 3, 3)).worth_trying((batch(0),)) == (LAST, GIVEN)


def test_a_backend_takes_the_inputs_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = torch.randn(4, 3, 3, 3)
    weights = fixed(weight)

    def poll(_: BackendSearch, *, unlimited: bool) -> Contender:
        return Contender(backend("another"), lambda args, kwargs: [F.conv2d(*args, weight, **kwargs)], lambda: False)

    monkeypatch.setattr(BackendSearch, "__init__", lambda *_, **__: None)
    monkeypatch.setattr(BackendSearch, "poll", poll)
    make = weights.backends(2)
    assert make is not None
    found = make(None, (batch(0),), [])  # type: ignore[arg-type]
    assert found is not None
    contender = found.poll(unlimited=False)
    assert contender is not None
    same(contender.run(batch(3)), [F.conv2d(batch(3), weight)])
    assert not contender.holds()
