"""Tensors change the order of their numbers in memory, and nothing else."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from threadcast.runtime.plans.model_format import ModelFormat, formats_of
from threadcast.runtime.plans.variant import MemoryFormat

IMAGES = torch.randn(2, 3, 4, 5)


@pytest.fixture
def model() -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(24, 2))


def test_parameters_and_their_state_go_to_channels_last_and_back(model: nn.Sequential) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(IMAGES).sum().backward()
    optimizer.step()
    weight = model[0].weight
    tensors = [weight, optimizer.state[weight]["momentum_buffer"]]
    values, strides, changes = [tensor.clone() for tensor in tensors], [tensor.stride() for tensor in tensors], []
    owner = ModelFormat(model, optimizer, changed=lambda: changes.append(1))
    owner.set(MemoryFormat.AS_GIVEN)
    assert not changes
    owner.set(MemoryFormat.CHANNELS_LAST)
    owner.set(MemoryFormat.CHANNELS_LAST)
    assert all(tensor.is_contiguous(memory_format=torch.channels_last) for tensor in tensors)
    assert all(map(torch.equal, tensors, values))
    owner.set(MemoryFormat.AS_GIVEN)
    assert [tensor.stride() for tensor in tensors] == strides
    assert all(map(torch.equal, tensors, values))
    assert len(changes) == 2
    assert model[0].weight is weight


def test_arguments_follow_the_current_format(model: nn.Sequential) -> None:
    owner = ModelFormat(model)
    assert owner.arguments({"x": IMAGES})["x"] is IMAGES
    owner.set(MemoryFormat.CHANNELS_LAST)
    x, count, name = owner.arguments((IMAGES, torch.ones(1, 2, 3, 4, dtype=torch.int64), "name"))
    assert x.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(x, IMAGES)
    assert count.is_contiguous()
    assert name == "name"


def test_parameters_that_were_replaced_are_as_given_after_a_reset(model: nn.Sequential) -> None:
    owner = ModelFormat(model)
    owner.set(MemoryFormat.CHANNELS_LAST)
    model[0] = nn.Conv2d(3, 4, 3)
    owner.reset()
    assert owner.current is MemoryFormat.AS_GIVEN
    owner.set(MemoryFormat.CHANNELS_LAST)
    assert model[0].weight.is_contiguous(memory_format=torch.channels_last)


class OwnConvolution(nn.Module):
    """Convolves without a layer that does, as traced models do."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 3, 3, 3))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return nn.functional.conv2d(images, self.weight)


@pytest.mark.parametrize(
    ("model", "example", "formats"),
    [
        (nn.Sequential(nn.Conv2d(3, 4, 3)), IMAGES, 2),
        (OwnConvolution(), IMAGES, 2),
        (nn.Sequential(nn.Conv2d(3, 4, 3)), IMAGES[0], 1),
        (nn.Linear(5, 1), IMAGES, 1),
        (None, IMAGES, 1),
    ],
)
def test_channels_last_is_tried_where_images_meet_convolutions(
    model: nn.Module | None, example: torch.Tensor, formats: int
) -> None:
    assert len(formats_of(model, [example])) == formats
