"""Graphs below autograd, captured with their inputs as arguments."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from threadcast.capture.graph.capture import capture_graph
from threadcast.core.errors import CaptureError


def test_weights_are_arguments_and_no_tensor_of_the_example_is_kept() -> None:
    weight = torch.nn.Parameter(torch.randn(4, 3))
    captured = capture_graph(lambda w, x, factor: [x @ w.t() * factor], (weight, torch.randn(2, 3), 2))
    assert all(value.is_meta for value in captured.arguments)
    other, x = torch.randn(4, 3), torch.randn(2, 3)
    (found,) = captured.run(other, x, 2)
    torch.testing.assert_close(found, x @ other.t() * 2)


def test_results_that_the_graph_returns_apart_are_apart_after_a_run() -> None:
    def graph(x: Tensor) -> list[Tensor]:
        double = x * 2
        return [double, double.detach(), double.view(-1), double.view(-1), x.detach(), x, double]

    x = torch.ones(2, 2)
    found = capture_graph(graph, (x,)).run(x)
    assert len({id(value) for value in found[:6]}) == 6
    assert found[5] is x
    assert found[6] is found[0]
    for value, wanted in zip(found, graph(x), strict=True):
        assert torch.equal(value, wanted)
    assert len({value.data_ptr() for value in found}) == 2


def test_operators_belong_to_the_pass_that_is_named_and_write_to_no_input() -> None:
    captured = capture_graph(lambda x: [x * 2], (torch.ones(3),), phase="backward")
    assert [node.phase for node in captured.program.nodes] == ["backward"]
    with pytest.raises(CaptureError, match="writes to an input"):
        capture_graph(lambda x: [x.add_(1)], (torch.ones(3),))
