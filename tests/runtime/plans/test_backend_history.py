"""The backend that is tried first is the one that was fastest for such networks on this machine."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from threadcast.capture.graph.capture import capture_forward
from threadcast.runtime.plans.backend_history import (
    WORTH,
    BackendHistory,
    Forecast,
    NetworkKind,
    Shape,
    network_kind,
    shape_of,
)


def text_encoder() -> nn.Module:
    """A layer that PyTorch runs as one operator, behind a large table of words."""
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    return nn.Sequential(nn.Embedding(5_000, 8), layer).eval().requires_grad_(False)


@pytest.mark.parametrize(
    ("function", "x", "kind"),
    [
        (nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU()).eval(), torch.ones(1, 3, 9, 9), "convolutions"),
        (nn.Sequential(nn.Linear(64, 64), nn.ReLU()), torch.ones(16, 64), "products"),
        (text_encoder(), torch.ones(8, 32, dtype=torch.int64), "products"),
        (torch.sin, torch.ones(16), "pointwise"),
    ],
)
def test_a_network_is_known_by_most_of_its_arithmetic(function: nn.Module, x: torch.Tensor, kind: str) -> None:
    assert network_kind(capture_forward(function, x).graph) == kind


NAMES = ["onnxruntime", "openvino", "torch.compile"]


def test_what_gained_most_for_its_cost_here_is_tried_first(tmp_path: Path) -> None:
    path = tmp_path / "plans" / "backends.json"
    before = BackendHistory(path).ordered(NAMES, "convolutions")
    for _ in range(5):
        BackendHistory(path).add("convolutions", {before[2]: 0.1, before[0]: 1.5}, {before[2]: 2.0})
    assert BackendHistory(path).ordered(NAMES, "convolutions") == [before[2], before[1], before[0]]
    unlike = BackendHistory(None).ordered(NAMES, "products")
    assert BackendHistory(path).ordered(NAMES, "products") == unlike
    assert BackendHistory(None).ordered([], "products") == []


@pytest.mark.parametrize(
    ("kind", "backend", "shares", "loses"),
    [
        ("products", "torch.compile", {"openvino": 0.4}, True),
        ("products", "torch.compile", {}, False),
        ("convolutions", "torch.compile", {"openvino": 0.25}, True),
        ("convolutions", "torch.compile", {"openvino": 0.5, "onnxruntime": 0.6}, False),
        ("convolutions", "onnxruntime", {"openvino": 0.25}, False),
        ("pointwise", "torch.compile", {"openvino": 0.8}, False),
    ],
)
def test_the_shipped_prior_knows_what_loses(
    kind: NetworkKind, backend: str, shares: dict[str, float], loses: bool
) -> None:
    forecast = BackendHistory(None).forecast(backend, kind, shares)
    assert 0 < forecast.gain <= forecast.most
    assert (forecast.beyond(max([1.0, *(1 / share for share in shares.values())])) < WORTH) == loses


def test_what_is_expected_beyond_a_known_gain_grows_with_what_is_likely() -> None:
    sure, likely, unlikely = (Forecast(2.0, most, 1.0) for most in (2.0, 3.0, 2.2))
    assert [sure.beyond(known) for known in (1.0, 2.0, 4.0)] == [2.0, 1.0, 1.0]
    assert likely.beyond(2.5) > unlikely.beyond(2.5) > 1.0
    assert likely.beyond(1.0) > likely.beyond(1.5) > likely.beyond(9.0) == pytest.approx(1.0)
    gains = np.exp(np.random.default_rng(0).normal(math.log(2.0), math.log(1.5) / 1.2816, 100_000))
    assert likely.beyond(2.5) == pytest.approx(np.maximum(gains / 2.5, 1.0).mean(), rel=0.01)


def test_a_machine_whose_searches_found_otherwise_is_believed(tmp_path: Path) -> None:
    path = tmp_path / "backends"
    for _ in range(5):
        BackendHistory(path).add("products", {"openvino": 0.5, "torch.compile": 0.25}, {"torch.compile": 7.0})
    forecast = BackendHistory(path).forecast("torch.compile", "products", {"openvino": 0.4})
    assert forecast.gain == pytest.approx(5.0)
    assert forecast.cost_s == 7.0


def test_what_won_for_one_size_is_what_is_tried_for_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU()).eval()
    small, large = (shape_of(capture_forward(model, torch.ones(1, 3, size, size)).graph) for size in (9, 32))
    other = shape_of(capture_forward(nn.Conv2d(3, 8, 3).eval(), torch.ones(1, 3, 9, 9)).graph)
    assert small.structure == large.structure != other.structure
    path = tmp_path / "backends"
    shares = {"openvino": 0.8, "torch.compile": 0.7, "another": 0.5}
    BackendHistory(path).add("convolutions", shares, {}, shape=small, failed=["onnxruntime"])
    history, names = BackendHistory(path), [*shares, "onnxruntime"]

    def tried(shape: Shape) -> list[str]:
        found: dict[str, float] = {}
        for name in history.ordered(names, "convolutions", shape):
            if history.forecast(name, "convolutions", found, shape).beyond(1 / min([1.0, *found.values()])) >= WORTH:
                found[name] = shares.get(name, 1.0)
        return [*found]

    assert tried(large) == ["another"]
    unlike = BackendHistory(None).forecast("onnxruntime", "convolutions").gain
    for shape in (small, other, Shape()):  # what is best for the same sizes is stored elsewhere
        assert history.forecast("onnxruntime", "convolutions", shape=shape).gain == unlike
    assert history.of_search(names, "convolutions", large).gain == pytest.approx(2.0)
    assert history.forecast("openvino", "convolutions", {"another": 0.25}, large).gain == pytest.approx(2.5)
    monkeypatch.setattr(time, "time", lambda: 2.0**33)
    assert history.forecast("onnxruntime", "convolutions", shape=large).gain == unlike, "it is not believed for ever"


def test_what_lost_for_one_size_is_not_searched_for_another(tmp_path: Path) -> None:
    BackendHistory(tmp_path / "backends").add("products", dict.fromkeys(NAMES, 1.2), {}, shape=Shape("a", "b"))
    assert BackendHistory(tmp_path / "backends").of_search(NAMES, "products", Shape("a", "c")).most < 1


def test_a_search_is_expected_to_gain_as_its_best_and_to_cost_as_its_first() -> None:
    history = BackendHistory(None)
    found, alone = history.of_search(NAMES, "products"), history.forecast("openvino", "products")
    assert (found.gain, found.most) == (alone.gain, alone.most)
    assert alone.cost_s < found.cost_s < history.forecast("torch.compile", "products").cost_s


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"schema": "threadcast.backends/9", "found": []}',
        '{"found": 3}',
        '{"schema": "threadcast.backends/1", "found": [{"kind": "products", "shares": 3}]}',
        '{"schema": "threadcast.backends/1", "found": [{"kind": "products", "shares": {"openvino": -1}}]}',
        '{"schema": "threadcast.backends/1", "found": [{"kind": "products", "shares": {}, "shape": ["a", "b", 1]}]}',
    ],
)
def test_a_file_of_no_use_counts_as_empty_and_is_written_anew(tmp_path: Path, text: str) -> None:
    path = tmp_path / "backends.json"
    path.write_text(text)
    forecast = BackendHistory(None).forecast("openvino", "products")
    assert BackendHistory(path).forecast("openvino", "products") == forecast
    BackendHistory(path).add("products", {"openvino": 0.01}, {})
    assert BackendHistory(path).forecast("openvino", "products").most >= forecast.most
    assert json.loads(path.read_text())["found"] == [{"kind": "products", "shares": {"openvino": 0.01}, "cost_s": {}}]
