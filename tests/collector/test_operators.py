"""Every op of every captured network can be run alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

from threadcast import networks
from threadcast.capture.graph.capture import capture_forward, capture_training
from threadcast.capture.graph.program import below_autograd
from threadcast.collector.operators import PreparedOp, prepare
from threadcast.core import Op, OpGraph, TensorSpec
from threadcast.core.errors import CaptureError


def captured_op(function: Any, *inputs: Any, kind: str) -> Op:
    return next(op for op in capture_forward(function, *inputs).graph.ops if op.kind == kind)


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


def test_masks_of_elements_have_runs_that_are_true_and_runs_that_are_not() -> None:
    def fill(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return x.masked_fill(mask, 0.0)

    prepared = prepare(captured_op(fill, torch.ones(8, 1000), torch.ones(8, 1000).bool(), kind="masked_fill"))
    mask = prepared.args[1].flatten().int()
    assert 0.4 < mask.float().mean() < 0.6
    assert 0 < mask.diff().count_nonzero() < 8000 / 50


def test_lengths_that_are_one_number_for_all_are_not_0() -> None:
    def loss(log_probs: torch.Tensor, targets: torch.Tensor, *lengths: torch.Tensor) -> torch.Tensor:
        return torch.ctc_loss(log_probs, targets, *(one.expand(4) for one in lengths))  # type: ignore[attr-defined,no-any-return]

    inputs = torch.zeros(50, 4, 20), torch.ones(4, 10).long(), torch.tensor([30]), torch.tensor([10])
    prepared = prepare(captured_op(loss, *inputs, kind="_ctc_loss"))
    assert [one.tolist() for one in prepared.args[2:4]] == [[50] * 4, [10] * 4]


def test_a_mask_and_what_it_selects_from_may_be_broadcast_to_each_other() -> None:
    inputs = torch.ones(1, 4), torch.tensor([[True], [False], [False]]), torch.ones(4)
    prepared = prepare(captured_op(torch.masked_scatter, *inputs, kind="masked_scatter"))
    with below_autograd():
        prepared.run()
    assert prepared.args[1].sum() == 1


def test_the_gradient_of_what_is_put_into_places_of_a_mask_can_be_computed() -> None:
    module = nn.Linear(8, 8)

    def loss(result: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return torch.ones(100, 8).masked_scatter(mask.expand(100, 8), result).square().sum()

    mask = torch.arange(100).view(100, 1) < 2
    optimizer = torch.optim.SGD(module.parameters())
    captured = capture_training(module, loss, optimizer, (torch.ones(2, 8),), mask)
    prepared = prepare(next(op for op in captured.graph.ops if op.kind == "masked_scatter_backward"))
    with below_autograd():
        assert prepared.target(*prepared.args).shape == (2, 8)


def segment_sums(data: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    return torch.segment_reduce(data, "sum", lengths=lengths)


@pytest.mark.parametrize("expanded", [False, True])
def test_a_mask_of_places_for_other_elements_has_as_many_places(expanded: bool) -> None:
    def fill(rows: torch.Tensor, mask: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
        return rows.masked_scatter(mask.expand_as(rows) if expanded else mask, others)

    mask = torch.arange(100).view(2, 50, 1) % 5 < 2
    prepared = prepare(captured_op(fill, torch.ones(2, 50, 8), mask, torch.ones(40, 8), kind="masked_scatter"))
    with below_autograd():
        prepared.run()
    assert prepared.args[1].sum() == (320 if expanded else 40)


@pytest.mark.parametrize(
    ("kind", "function", "arguments"),
    [
        ("binary_cross_entropy", nn.functional.binary_cross_entropy, (torch.rand(8, 3), torch.rand(8, 3))),
        ("remainder", torch.remainder, (torch.arange(9), torch.ones(9).int())),
        ("fmod", torch.fmod, (torch.arange(9), torch.ones(9).int())),
        ("floor_divide", torch.floor_divide, (torch.arange(9), torch.ones(9).int())),
        ("linalg_cholesky_ex", torch.linalg.cholesky, (torch.eye(30).expand(2, 30, 30),)),
        ("linalg_cholesky_ex", torch.linalg.cholesky, (torch.eye(30).expand(2, 30, 30).clone(),)),
        ("linalg_lu_solve", torch.linalg.lu_solve, (torch.eye(3), torch.arange(1, 4).int(), torch.ones(3, 2))),
        ("cholesky", torch.cholesky, (torch.eye(30),)),
        ("segment_reduce", segment_sums, (torch.ones(9, 2), torch.tensor([3, 3, 3]))),
        ("lu_unpack", torch.lu_unpack, (torch.eye(3), torch.arange(1, 4).int())),
    ],
)
def test_ops_get_values_for_which_they_do_all_of_their_work(kind: str, function: Any, arguments: Any) -> None:
    prepared = prepare(captured_op(function, *arguments, kind=kind))
    with below_autograd():
        first, *more = _tensors(prepared.target(*prepared.args, **prepared.kwargs))
    assert bool(first.isfinite().all())
    if kind == "linalg_cholesky_ex":
        assert not more[0].any(), "the number of the row at which it ended"


@pytest.mark.parametrize("shape", [(4, 10), (40,)])
def test_a_ctc_loss_has_sequences_and_targets_of_their_greatest_length(shape: tuple[int, ...]) -> None:
    def loss(log_probs: torch.Tensor, targets: torch.Tensor, *lengths: torch.Tensor) -> torch.Tensor:
        return torch.ctc_loss(log_probs, targets, *lengths)  # type: ignore[attr-defined,no-any-return]

    lengths = torch.full((4,), 30), torch.full((4,), 10)
    prepared = prepare(captured_op(loss, torch.zeros(50, 4, 20), torch.ones(shape).long(), *lengths, kind="_ctc_loss"))
    with below_autograd():
        losses, _ = prepared.target(*prepared.args)
    assert prepared.args[2].tolist() == [50] * 4
    assert prepared.args[3].tolist() == [10] * 4
    assert bool((losses != 0).all())


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


TABLE, ROWS, ROW = TensorSpec((50, 8)), TensorSpec((40, 8)), {"t": 0}
INDEX, WIDE_INDEX = TensorSpec((40,), "int64"), TensorSpec((40, 8), "int64")
EXPANDED_INDEX = TensorSpec((40, 8), "int64", (1, 0))
OFFSETS = TensorSpec((4,), "int64")

INDEXING: dict[str, tuple[tuple[TensorSpec, ...], list[Any], int]] = {
    "index.Tensor": ((TABLE, INDEX), [[{"t": 1}]], 50),
    "_unsafe_index.Tensor": ((TABLE, INDEX), [[None, {"t": 1}]], 8),
    "index_put.default": ((TABLE, INDEX, ROWS), [[{"t": 1}], {"t": 2}], 50),
    "index_put_.default": ((TABLE, INDEX, ROWS), [[{"t": 1}], {"t": 2}, True], 50),
    "_index_put_impl_.default": ((TABLE, INDEX, ROWS), [[{"t": 1}], {"t": 2}], 50),
    "index_select.default": ((TABLE, INDEX), [-1, {"t": 1}], 8),
    "index_add.default": ((TABLE, INDEX, ROWS), [0, {"t": 1}, {"t": 2}], 50),
    "index_add_.default": ((TABLE, TensorSpec((40,), "int32"), ROWS), [-2, {"t": 1}, {"t": 2}], 50),
    "index_copy.default": ((TABLE, INDEX, ROWS), [0, {"t": 1}, {"t": 2}], 50),
    "index_fill.int_Scalar": ((TABLE, INDEX), [0, {"t": 1}, 2.0], 50),
    "gather.default": ((TABLE, EXPANDED_INDEX), [0, {"t": 1}], 50),
    "scatter.value": ((TABLE, WIDE_INDEX), [0, {"t": 1}, 2.0], 50),
    "scatter_.src": ((TABLE, WIDE_INDEX, ROWS), [0, {"t": 1}, {"t": 2}], 50),
    "scatter_add.default": ((TABLE, EXPANDED_INDEX, ROWS), [0, {"t": 1}, {"t": 2}], 50),
    "scatter_reduce.two": ((TABLE, WIDE_INDEX, ROWS), [0, {"t": 1}, {"t": 2}, "amax"], 50),
    "take.default": ((TABLE, INDEX), [{"t": 1}], 400),
    "put.default": ((TABLE, INDEX, TensorSpec((40,))), [{"t": 1}, {"t": 2}], 400),
    "_embedding_bag.default": ((TABLE, INDEX, OFFSETS), [{"t": 1}, {"t": 2}], 50),
    "embedding_renorm_.default": ((TABLE, INDEX), [{"t": 1}, 1.0, 2.0], 50),
    "multi_margin_loss.default": ((ROWS, INDEX), [{"t": 1}], 8),
}


def prepared_twice(name: str, inputs: tuple[TensorSpec, ...], args: list[Any], **kwargs: Any) -> PreparedOp:
    """The op, prepared a second time with the same values, after runs of the first one."""
    outputs = kwargs.pop("outputs", ())
    op = Op(name.split(".")[0], inputs, {"target": f"aten.{name}", "args": args, "kwargs": kwargs}, outputs)
    first, again = prepare(op), prepare(op)
    for one, other in zip(pytree.tree_leaves(first.args), pytree.tree_leaves(again.args), strict=True):
        assert one.equal(other) if isinstance(one, torch.Tensor) else one == other
    with below_autograd():
        first.run()
        first.reset()
        first.run()
    return again


@pytest.mark.parametrize("name", INDEXING)
def test_indices_of_each_operator_lie_in_range_and_vary(name: str) -> None:
    inputs, args, limit = INDEXING[name]
    prepared = prepared_twice(name, inputs, [ROW, *args], outputs=(ROWS,))
    (index,) = (t for t in pytree.tree_leaves(prepared.args) if isinstance(t, torch.Tensor) and t.shape[0] == 40
                and not t.is_floating_point())  # fmt: skip
    assert 0 <= int(index.min()) <= int(index.max()) < limit
    assert len(index.unique()) > min(limit, 40) // 2


def test_indices_in_a_list_are_of_the_axes_after_masks_and_gaps() -> None:
    inputs = (TensorSpec((3, 4, 5, 2, 60)), TensorSpec((4, 5), "bool"), INDEX)
    attributes = {"target": "aten.index.Tensor", "args": [ROW, [None, {"t": 1}, None, {"t": 2}]], "kwargs": {}}
    mask, index = prepare(Op("index", inputs, attributes, (TensorSpec((40, 3, 2)),))).args[1][1::2]
    assert mask.dtype is torch.bool
    assert 30 < int(index.max()) < 60


def test_an_index_of_two_axes_is_legal_on_both() -> None:
    prepared = prepared_twice("index.Tensor", (TABLE, INDEX), [ROW, [{"t": 1}, {"t": 1}]], outputs=(INDEX,))
    assert int(prepared.args[1][0].max()) == 7


@pytest.mark.parametrize("size", [0, 1])
@pytest.mark.parametrize("name", sorted(INDEXING))
def test_indices_of_axes_of_one_element_or_none_are_legal(name: str, size: int) -> None:
    inputs, args, _ = INDEXING[name]
    small = tuple(
        TensorSpec(tuple({50: size, 40: size}.get(side, side if size == 0 else 1) for side in spec.shape), spec.dtype)
        for spec in inputs
    )
    if name == "_embedding_bag.default":
        small = (*small[:2], TensorSpec((size,), "int64"))
    if not (name == "multi_margin_loss.default" and size == 0):
        prepared_twice(name, small, [ROW, *args], outputs=(ROWS,))


@pytest.mark.parametrize(("last", "expected"), [(False, [0, 10, 20, 30]), (True, [0, 13, 26, 40])])
def test_offsets_of_bags_rise_to_the_last_index(last: bool, expected: list[int]) -> None:
    args = [ROW, {"t": 1}, {"t": 2}, False, 0, False, None, last]
    assert prepared_twice("_embedding_bag.default", (TABLE, INDEX, OFFSETS), args).args[2].tolist() == expected


@pytest.mark.parametrize("mode", [0, 1, 2])
def test_gradients_of_bags_have_indices_of_every_bag(mode: int) -> None:
    inputs = (TensorSpec((4, 8)), INDEX, OFFSETS, INDEX, OFFSETS, TensorSpec((4, 8), "int64"))
    args = [{"t": i} for i in range(6)] + [50, False, mode, False, None]
    _, indices, offsets, bag, size, largest, *_ = prepared_twice("_embedding_bag_backward.default", inputs, args).args
    assert len(indices.unique()) > 15
    assert (offsets.tolist(), size.tolist()) == ([0, 10, 20, 30], [10] * 4)
    assert bag.tolist() == [i // 10 for i in range(40)]
    assert 0 <= int(largest.min()) <= int(largest.max()) < 50
    assert (len(largest.unique()) > 10) == (mode == 2)


@pytest.mark.parametrize(
    ("name", "shape", "pooled", "args", "least"),
    [
        ("max_unpool2d", (2, 3, 4, 4), (2, 3, 4, 4), [[8, 8]], 16),
        ("max_unpool3d", (2, 2, 4, 4), (2, 2, 4, 4), [[4, 8, 8], [2, 2, 2], [0, 0, 0]], 32),
        ("adaptive_max_pool2d_backward", (2, 3, 8, 8), (2, 3, 4, 4), [], 30),
        ("adaptive_max_pool3d_backward", (3, 4, 8, 8), (3, 2, 4, 4), [], 50),
        ("max_pool3d_with_indices_backward", (3, 4, 8, 8), (3, 2, 4, 4), [[2] * 3, [2] * 3, [0], [1], False], 50),
    ],
)  # fmt: skip
def test_indices_of_pools_are_of_their_windows(
    name: str, shape: tuple[int, ...], pooled: tuple[int, ...], args: list[Any], least: int
) -> None:
    index = TensorSpec(pooled, "int64")
    if "unpool" in name:
        prepared = prepared_twice(f"{name}.default", (TensorSpec(shape), index), [ROW, {"t": 1}, *args])
    else:
        gradient = TensorSpec(pooled)
        prepared = prepared_twice(
            f"{name}.default", (TensorSpec(shape), index, gradient), [{"t": 2}, ROW, *args, {"t": 1}]
        )
    found = next(t for t in prepared.args if isinstance(t, torch.Tensor) and not t.is_floating_point())
    assert len(found.unique()) >= least


@pytest.mark.parametrize("dtype", ["int64", "int32", "uint8"])
def test_integers_to_sort_and_to_count_vary(dtype: str) -> None:
    integers = TensorSpec((1000,), dtype)
    assert len(prepared_twice("sort.default", (integers,), [ROW]).args[0].unique()) > 200
    counted = prepared_twice("bincount.default", (integers,), [ROW], outputs=(TensorSpec((100,), "int64"),))
    assert len(counted.target(*counted.args)) == 100
    assert len(counted.args[0].unique()) > 80


def test_rows_are_repeated_as_often_as_the_output_says() -> None:
    repeats, outputs = TensorSpec((30,), "int64"), (TensorSpec((100,), "int64"),)
    prepared = prepared_twice("repeat_interleave.Tensor", (repeats,), [ROW], output_size=100, outputs=outputs)
    assert int(prepared.args[0].sum()) == 100
    assert len(prepared.args[0].unique()) == 2
