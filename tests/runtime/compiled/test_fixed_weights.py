"""Graphs for inference whose weights stay the same: backends, on copies of the weights."""

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
from threadcast.runtime.backends.search import BackendSearch
from threadcast.runtime.compiled.fixed_weights import FixedWeights
from threadcast.runtime.compiled.graph_calls import GraphCalls
from threadcast.runtime.doors.compile_backend import compiled_graphs
from threadcast.runtime.tuner.candidate import Way, backend
from threadcast.runtime.tuner.report import Report

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

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        y = torch.relu(self.norm(self.first(x)))
        return self.second(y), y.transpose(1, 3), y[1:]


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


def test_what_is_written_to_weights_counts_and_results_share_memory_as_eagers() -> None:
    model = images()
    compiled = torch.compile(model, backend="threadcast", options=FREEZE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def call(seed: int) -> None:
        with torch.no_grad():
            found = compiled(batch(seed))
            same(found, model(batch(seed)))
            found[1].zero_()
            assert not found[2].any()
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


def test_layers_that_share_a_graph_have_their_own_weights() -> None:
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(6, 6), nn.Tanh()).eval() for _ in range(3)]
    compiled = [torch.compile(layer, backend="threadcast", options=FREEZE) for layer in layers]
    with torch.no_grad():
        for seed in range(30):
            x = torch.randn(4, 6, generator=torch.Generator().manual_seed(seed))
            for one, layer in zip(compiled, layers, strict=True):
                torch.testing.assert_close(one(x), layer(x), rtol=1e-5, atol=1e-6)


@pytest.mark.usefixtures("one_thread", "plans_win")
def test_by_default_writes_to_few_elements_that_pytorch_does_not_count_are_seen() -> None:
    model = images()
    compiled = torch.compile(model, backend="threadcast")
    weight: Tensor = model.first.weight  # type: ignore[assignment]
    writes: list[Callable[[], object]] = [
        lambda: weight.data[1, 0, 0].fill_(9.0),
        lambda: weight.data[:4].zero_(),
        lambda: weight.detach().numpy()[5, 2, 1].fill(3.0),
        lambda: setattr(model.first, "weight", nn.Parameter(2 * weight.detach())),
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


def test_weights_without_versions_are_not_copied() -> None:
    with torch.inference_mode():
        weight = torch.randn(4, 3, 3, 3)
    assert fixed(weight).backends(2) is None


def test_a_backend_takes_the_inputs_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = torch.randn(4, 3, 3, 3)
    weights = fixed(weight)

    def poll(_: BackendSearch, *, unlimited: bool) -> Way:
        return Way(backend("another"), lambda args, kwargs: [F.conv2d(*args, weight, **kwargs)], lambda: False)

    monkeypatch.setattr(BackendSearch, "__init__", lambda *_, **__: None)
    monkeypatch.setattr(BackendSearch, "poll", poll)
    make = weights.backends(2)
    assert make is not None
    found = make(None, (batch(0),), [])  # type: ignore[arg-type]
    assert found is not None
    way = found.poll(unlimited=False)
    assert way is not None
    same(way.run(batch(3)), [F.conv2d(batch(3), weight)])
    assert not way.holds()
