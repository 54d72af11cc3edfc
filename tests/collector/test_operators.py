"""Every op of every captured network can be run alone."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from threadcast import networks
from threadcast.capture.capture import capture_forward, capture_training
from threadcast.capture.program import below_autograd
from threadcast.collector.operators import prepare
from threadcast.core import Op, OpGraph, TensorSpec
from threadcast.core.errors import CaptureError


def shapes(result: object) -> list[tuple[int, ...]]:
    results = result if isinstance(result, list | tuple) else [result]
    return [tuple(tensor.shape) for tensor in results if isinstance(tensor, torch.Tensor)]


@pytest.mark.parametrize("name", networks.names())
def test_every_op_of_a_training_step_runs_alone_and_gives_its_shapes(name: str) -> None:
    work = networks.load(name, "tiny")
    captured = capture_training(
        work.model, work.loss, torch.optim.Adam(work.model.parameters()), work.inputs, work.target
    )
    again = OpGraph.from_json(captured.graph.to_json())
    for op in again.distinct_ops().values():
        prepared = prepare(op)
        with below_autograd():
            result = prepared.target(*prepared.args, **prepared.kwargs)
        assert shapes(result) == [spec.shape for spec in op.outputs]
        assert [tuple(t.stride()) for t in _tensors(result)] == [
            tuple(spec.strides or torch.empty(spec.shape, device="meta").stride()) for spec in op.outputs
        ]


def _tensors(result: object) -> list[torch.Tensor]:
    results = result if isinstance(result, list | tuple) else [result]
    return [tensor for tensor in results if isinstance(tensor, torch.Tensor)]


def test_reset_undoes_what_runs_changed() -> None:
    captured = capture_forward(lambda x: x.clone().mul_(0.5), torch.ones(4))
    prepared = prepare(next(op for op in captured.graph.ops if op.kind == "mul_"))
    ((tensor, _),) = prepared.written
    before = tensor.clone()
    with below_autograd():
        for _ in range(3):
            prepared.run()
    assert not torch.equal(tensor, before)
    prepared.reset()
    assert torch.equal(tensor, before)


def test_indices_lie_in_range_and_vary() -> None:
    embedding = nn.Embedding(50, 8)
    captured = capture_forward(embedding, torch.zeros(40, dtype=torch.int64))
    prepared = prepare(captured.graph.ops[0])
    index = prepared.args[1]
    assert int(index.min()) >= 0
    assert int(index.max()) < 50
    assert len(index.unique()) > 10


@pytest.mark.parametrize(("a", "b"), [((12, 16), (3, 16, 8)), ((16, 12), (12, 8)), ((3, 16, 8), (8, 12))])
def test_all_rows_are_in_groups(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    ends = torch.tensor([2, 2, 12], dtype=torch.int32)
    captured = capture_forward(torch._grouped_mm, torch.randn(a), torch.randn(b), ends)
    prepared = prepare(next(op for op in captured.graph.ops if op.kind == "_grouped_mm"))
    assert prepared.args[2].tolist() == [4, 8, 12]
    with below_autograd():
        result = prepared.target(*prepared.args, **prepared.kwargs)
    assert bool((result != 0).all())


def test_masks_select_as_many_elements_as_in_the_graph() -> None:
    def selecting(x: torch.Tensor, edges: torch.Tensor) -> list[torch.Tensor]:
        mask, row = edges[0] != edges[1], torch.tensor([1])
        placed = torch.zeros(5, 5)
        placed[mask] = x[mask]
        placed[:, mask] += x[:, mask]
        placed[None, edges[:, :4].repeat(3, 2)[:5, :5] > 1] = 2.0
        return [
            placed,
            torch.nonzero(edges[0] - edges[1]),
            torch.masked_select(x, mask),
            x[mask, row],
            x[None, edges[:, :4].repeat(3, 2)[:5, :5] > 1],
            x.view(5, 1, 5)[mask, :, row],
        ]

    captured = capture_forward(selecting, torch.ones(5, 5), torch.tensor([[0, 1, 2, 3, 0], [0, 2, 3, 0, 1]]))
    kinds = set()
    for op in captured.graph.ops:
        prepared = prepare(op)
        with below_autograd():
            result = prepared.target(*prepared.args, **prepared.kwargs)
        assert shapes(result) == [spec.shape for spec in op.outputs]
        kinds.add(op.kind)
    assert {"index", "index_put_", "nonzero", "masked_select"} <= kinds


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({}, "names no operator"),
        ({"target": "mm"}, "names no operator"),
        ({"target": "aten.no_such_thing.default", "args": [], "kwargs": {}}, "has no operator"),
        ({"target": "aten.mm.default"}, "how to call"),
        ({"target": "aten.mm.default", "args": [{"t": 5}], "kwargs": {}}, "how to call"),
    ],
)
def test_an_op_that_names_no_operator_is_refused(attributes: dict[str, object], message: str) -> None:
    with pytest.raises(CaptureError, match=message):
        prepare(Op("mm", (TensorSpec((2, 2)),), attributes))
