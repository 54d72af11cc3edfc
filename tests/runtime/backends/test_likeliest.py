"""The backend that is tried first is the one that was fastest for such networks on this machine."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from threadcast.capture.capture import capture_forward
from threadcast.runtime.backends.likeliest import BackendHistory, network_kind


@pytest.mark.parametrize(
    ("function", "x", "kind"),
    [
        (nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU()).eval(), torch.ones(1, 3, 9, 9), "convolutions"),
        (nn.Sequential(nn.Linear(64, 64), nn.ReLU()), torch.ones(16, 64), "products"),
        (nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval(), torch.ones(2, 4, 8), "products"),
        (torch.sin, torch.ones(16), "pointwise"),
    ],
)
def test_a_network_is_known_by_most_of_its_arithmetic(function: nn.Module, x: torch.Tensor, kind: str) -> None:
    assert network_kind(capture_forward(function, x).graph) == kind


def test_what_was_fastest_here_is_tried_first(tmp_path: Path) -> None:
    path = tmp_path / "plans" / "backends.json"
    names = ["onnxruntime", "openvino", "torch.compile"]
    before = BackendHistory(path).ordered(names, "convolutions")
    for _ in range(3):
        BackendHistory(path).add("convolutions", {before[2]: 0.1, before[0]: 1.5})
    assert BackendHistory(path).ordered(names, "convolutions") == [before[2], before[1], before[0]]
    unlike = BackendHistory(None).ordered(names, "products")
    assert BackendHistory(path).ordered(names, "products") == unlike
    assert BackendHistory(None).ordered([], "products") == []


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"schema": "threadcast.backends/9", "found": []}',
        '{"found": 3}',
        '{"schema": "threadcast.backends/1", "found": [{"kind": "products", "shares": 3}]}',
        '{"schema": "threadcast.backends/1", "found": [{"kind": "products", "shares": {"openvino": -1}}]}',
    ],
)
def test_a_file_of_no_use_counts_as_empty_and_is_written_anew(tmp_path: Path, text: str) -> None:
    path = tmp_path / "backends.json"
    path.write_text(text)
    order = BackendHistory(None).ordered(["openvino", "torch.compile"], "products")
    assert BackendHistory(path).ordered(["openvino", "torch.compile"], "products") == order
    BackendHistory(path).add("products", {order[1]: 0.01})
    assert BackendHistory(path).ordered(order, "products") == [order[1], order[0]]
