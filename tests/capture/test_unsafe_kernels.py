"""Operators of which PyTorch's kernels write outside of their memory are in no graph."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from threadcast.capture.capture import capture_training
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

    def loss(result: Tensor, _: Tensor) -> Tensor:
        return result.sum()

    def capture() -> None:
        capture_training(model, loss, torch.optim.SGD(model.parameters(), lr=0.1), (x,), torch.zeros(()))

    if unsafe:
        with pytest.raises(CaptureError, match="outside of its memory"):
            capture()
    else:
        capture()
