"""Operators that graphs in channels last may have give the same numbers whatever the order of each input is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from threadcast.runtime.layout.graph_layout import _ANY_STRIDES, _CONVOLUTIONS

aten = torch.ops.aten
pytestmark = pytest.mark.usefixtures("one_thread")

SHAPES = (
    (2, 8, 5, 6),
    (2, 8, 1, 1),
    (3, 1, 4, 4),
    (1, 3, 7, 1),
    (2, 16, 1, 5),
    (1, 1, 1, 1),
    (1, 4, 8, 8),
    (4, 32, 2, 2),
)
"""Images; of those with one channel or one pixel, strides do not say in which order they are."""

Example = tuple[Any, tuple[Any, ...]]


def images(shape: Sequence[int], seed: int = 0) -> Tensor:
    return torch.randn(tuple(shape), generator=torch.Generator().manual_seed(seed))


def convolutions(shape: Sequence[int]) -> Iterator[Example]:
    x, channels = images(shape), shape[1]
    for kernel, stride, padding, dilation, groups in (
        ((1, 1), [1, 1], [0, 0], [1, 1], 1), ((3, 3), [1, 1], [1, 1], [1, 1], 1), ((3, 3), [2, 2], [1, 1], [1, 1], 1),
        ((3, 1), [1, 1], [1, 0], [1, 1], channels), ((3, 3), [1, 1], [2, 2], [2, 2], 1),
    ):  # fmt: skip
        weight = images((2 * channels, channels // groups, *kernel), 1)
        bias = images((2 * channels,), 2)
        settings: tuple[Any, ...] = (stride, padding, dilation, False, [0, 0], groups)
        y = aten.convolution.default(x, weight, bias, *settings)
        yield aten.convolution.default, (x, weight, bias, *settings)
        if kernel != (1, 1) or max(stride) == 1:
            given = (images(y.shape, 3), x, weight, [2 * channels], *settings, [True, True, True])
            yield aten.convolution_backward.default, given


def norms(shape: Sequence[int]) -> Iterator[Example]:
    x, channels = images(shape), shape[1]
    if x.numel() == channels:
        return
    one = [images((channels,), i) for i in range(4)]
    running = one[3].square() + 0.5
    for training in (True, False):
        given = (x, one[0], one[1], one[2], running, training, 0.1, 1e-5)
        yield aten._native_batch_norm_legit_functional.default, given
        _, mean, rstd, *_ = aten._native_batch_norm_legit_functional.default(*given)
        back = (images(shape, 5), x, one[0], one[2], running, mean, rstd, training, 1e-5, [True, True, True])
        yield aten.native_batch_norm_backward.default, back


def pools(shape: Sequence[int]) -> Iterator[Example]:
    x = images(shape)
    for size in ([1, 1], [2, 3]):
        yield aten._adaptive_avg_pool2d.default, (x, size)
        yield aten._adaptive_avg_pool2d_backward.default, (images((*shape[:2], *size), 1), x)
    for kernel, stride, padding in (([1, 1], [1, 1], [0, 0]), ([3, 3], [2, 2], [1, 1]), ([3, 3], [1, 1], [1, 1])):
        average = (kernel, stride, padding, False, True, None)
        y = aten.avg_pool2d.default(x, *average)
        yield aten.avg_pool2d.default, (x, *average)
        yield aten.avg_pool2d_backward.default, (images(y.shape, 1), x, *average)
        largest = (kernel, stride, padding, [1, 1], False)
        y, places = aten.max_pool2d_with_indices.default(x, *largest)
        yield aten.max_pool2d_with_indices.default, (x, *largest)
        yield aten.max_pool2d_with_indices_backward.default, (images(y.shape, 1), x, *largest, places)


def others(shape: Sequence[int]) -> Iterator[Example]:
    x, y = images(shape), images(shape, 1)
    for dims in ([1], [2, 3], [0, 2, 3], [0]):
        yield aten.mean.dim, (x, dims, True)
        yield aten.sum.dim_IntList, (x, dims)
    yield aten.mean.default, (x,)
    yield aten.sum.default, (x,)
    for dim in (0, 1, 3):
        yield aten.cat.default, ([x, y, x], dim)
        yield aten._log_softmax.default, (x, dim, False)
        softmax = aten._log_softmax.default(x, dim, False)
        yield aten._log_softmax_backward_data.default, (y, softmax, dim, torch.get_default_dtype())
    yield aten.hardswish.default, (x,)
    for backward in (aten.hardswish_backward, aten.mish_backward, aten.hardsigmoid_backward):
        yield backward.default, (y, x)
    yield aten.leaky_relu_backward.default, (y, x, 0.1, False)
    yield aten.elu_backward.default, (y, 1.0, 1.0, 1.0, False, x)
    yield aten.hardtanh_backward.default, (y, x, -0.5, 0.5)
    yield aten.softplus_backward.default, (y, x, 1.0, 20.0)
    yield aten.constant_pad_nd.default, (x, [1, 2, 0, 1], 0.5)
    yield (
        aten.nll_loss_forward.default,
        (x.reshape(shape[0], -1), torch.zeros(shape[0], dtype=torch.long), None, 1, -100),
    )
    for plain in (aten.clone, aten.detach, aten.alias, aten.ones_like, aten.zeros_like):
        yield plain.default, (x,)
    yield aten._to_copy.default, (x,)
    yield aten.full_like.default, (x, 2.0)
    yield aten.expand.default, (x, [-1, -1, *shape[2:]])
    yield aten.permute.default, (x, [2, 0, 3, 1])
    yield aten.reshape.default, (x, [shape[0], -1])
    yield aten.reshape.default, (x, [-1, shape[3]])
    yield aten.select.int, (x, 1, 0)
    yield aten.slice.Tensor, (x, 1, 0, 1)
    yield aten.squeeze.dim, (x, 3)
    yield aten.squeeze.dims, (x, [2, 3])
    yield aten.transpose.int, (x, 1, 3)
    yield aten.unsqueeze.default, (x, 2)
    yield aten.new_zeros.default, (x, list(shape))


KINDS: dict[str, Callable[[Sequence[int]], Iterator[Example]]] = {
    "convolutions": convolutions, "norms": norms, "pools": pools, "others": others,
}  # fmt: skip
MATRICES = {
    aten.addmm.default, aten.mm.default, aten.t.default, aten.view.default, aten.nll_loss_backward.default,
    aten.arange.default, aten.full.default, aten.scalar_tensor.default,
}  # fmt: skip
"""Operators that take no images: matrices and single numbers have no order of channels; `view` is `reshape` there."""


def orders(value: Any) -> list[Any]:
    """The value as it is, and in channels last."""
    if isinstance(value, list) and value and isinstance(value[0], Tensor):
        return [value, [value[0].contiguous(memory_format=torch.channels_last), *value[1:]]]
    if not isinstance(value, Tensor) or value.dim() != 4:
        return [value]
    moved = torch.empty_strided(
        value.shape, (value[0].numel(), 1, value.shape[1] * value.shape[3], value.shape[1]), dtype=value.dtype
    )
    return [value, moved.copy_(value)]


@pytest.fixture(params=[torch.float64, torch.float32], ids=str)
def dtype(request: pytest.FixtureRequest) -> Iterator[torch.dtype]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(request.param)
    yield request.param
    torch.set_default_dtype(before)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_an_operator_gives_the_same_numbers_for_images_in_any_order(
    kind: str, shape: Sequence[int], dtype: torch.dtype
) -> None:
    near = 1e-10 if dtype is torch.float64 else 1e-4
    tried = 0
    for operator, arguments in KINDS[kind](shape):
        wanted = operator(*arguments)
        for given in product(*map(orders, arguments)):
            found = operator(*given)
            torch.testing.assert_close(
                found, wanted, rtol=near, atol=near, check_stride=False, msg=lambda text, of=operator: f"{of}: {text}"
            )
            tried += 1
    assert tried or kind == "norms"


def test_every_operator_that_may_run_in_channels_last_is_tried() -> None:
    tried = {operator for examples in KINDS.values() for operator, _ in examples((2, 8, 5, 6))}
    assert tried == (_ANY_STRIDES | set(_CONVOLUTIONS)) - MATRICES


def test_group_norm_is_told_from_them() -> None:
    x, gradient = images((2, 8, 5, 6)), images((2, 8, 5, 6), 1)
    _, mean, rstd = aten.native_group_norm.default(x, None, None, 2, 8, 30, 2, 1e-5)
    wanted, _, _ = aten.native_group_norm_backward.default(
        gradient, x, mean, rstd, None, 2, 8, 30, 2, [True, False, False]
    )
    found, _, _ = aten.native_group_norm_backward.default(
        gradient, orders(x)[1], mean, rstd, None, 2, 8, 30, 2, [True, False, False]
    )
    if torch.allclose(found, wanted):
        pytest.skip("this PyTorch computes it rightly")
    assert aten.native_group_norm_backward.default not in _ANY_STRIDES
