"""Operators whose kernels write outside of their memory, or lay results out by the threads, are in no graph."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from torch import nn

from threadcast.capture.graph.capture import capture_forward, capture_training
from threadcast.capture.graph.optimizers import NoUpdate
from threadcast.core.errors import CaptureError

LAST = torch.channels_last


@pytest.mark.parametrize(
    ("channels", "size", "stride", "memory_format", "unsafe"),
    [
        (3, 1, 2, LAST, True), (12, 1, (1, 2), LAST, True), (3, 1, 2, torch.contiguous_format, False),
        (3, 1, 1, LAST, False), (3, 3, 2, LAST, False), (16, 1, 2, LAST, False),
    ],
)  # fmt: skip
def test_a_weight_gradient_that_overruns_its_memory_is_not_captured(
    channels: int, size: int, stride: int, memory_format: torch.memory_format, unsafe: bool
) -> None:
    model = nn.Conv2d(channels, 8, size, stride=stride)
    x = torch.ones(1, channels, 64, 64).contiguous(memory_format=memory_format)

    with pytest.raises(CaptureError, match="outside of its memory") if unsafe else nullcontext():
        capture_training(model, lambda result, _: result.sum(), NoUpdate(), (x,), torch.zeros(()))


@pytest.mark.parametrize(
    ("size", "stride", "image_last", "weight_last", "by_threads"),
    [
        (1, 1, True, False, True), (1, 1, False, True, True), (1, 1, True, True, True),
        (1, 1, False, False, False), (1, 2, True, True, False), (3, 1, True, True, False),
    ],
)  # fmt: skip
def test_a_convolution_that_lays_its_result_out_by_the_threads_is_not_captured(
    size: int, stride: int, image_last: bool, weight_last: bool, by_threads: bool
) -> None:
    model, x = nn.Conv3d(3, 4, size, stride=stride), torch.ones(2, 3, 6, 6, 6)
    if weight_last:
        model = model.to(memory_format=torch.channels_last_3d)  # type: ignore[call-overload]
    if image_last:
        x = x.to(memory_format=torch.channels_last_3d)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    wanted = model(x).stride()
    torch.set_num_threads(before)
    with pytest.raises(CaptureError, match="number of threads") if by_threads else nullcontext():
        assert capture_forward(model, x).run(x).stride() == wanted
