"""Changes of what a function reads are found once, and moves in memory are not changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from threadcast.runtime.watching.held_state import Change, HeldState


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)
        self.factor, self.scales = 1.0, torch.ones(4)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.norm(self.layer(x)) * self.factor * self.scales[0]
        return result


def write_to_weight(model: Any) -> None:
    with torch.no_grad():
        model.layer.weight.add_(1.0)


def set_number(model: Any) -> None:
    model.factor = 2.0


def write_to_attribute(model: Any) -> None:
    model.scales.fill_(2.0)


def add_hook(model: Any) -> None:
    model.norm.register_forward_hook(lambda *_: None)


@pytest.mark.parametrize("change", [write_to_weight, set_number, write_to_attribute, add_hook])
def test_a_changed_value_is_found_once(change: Callable[[nn.Module], None]) -> None:
    model = Model().eval()
    state = HeldState(model)
    assert state.changed() is Change.NONE
    change(model)
    assert [state.changed() for _ in range(3)] == [Change.VALUES, Change.NONE, Change.NONE]


def replace_layer(model: Any) -> None:
    model.norm = nn.BatchNorm2d(4).eval()


def replace_parameter(model: Any) -> None:
    model.layer.weight = nn.Parameter(model.layer.weight.detach())


def replace_buffer(model: Any) -> None:
    model.norm.running_mean = torch.ones(4)


def replace_attribute(model: Any) -> None:
    model.scales = torch.ones(4)


@pytest.mark.parametrize("change", [replace_layer, replace_parameter, replace_buffer, replace_attribute])
def test_a_replaced_object_is_found(change: Callable[[nn.Module], None]) -> None:
    model = Model().eval()
    state = HeldState(model)
    change(model)
    assert state.changed() is Change.OBJECTS


def test_another_memory_format_is_no_change_where_it_is_followed() -> None:
    model = Model().eval()
    state = HeldState(model)
    model.layer.weight.data = model.layer.weight.detach().contiguous(memory_format=torch.channels_last)
    state.follow_moves()
    assert [state.changed() for _ in range(2)] == [Change.NONE] * 2


def test_tensors_of_inference_mode_cannot_be_watched() -> None:
    with torch.inference_mode():
        model = Model().eval()
    assert "inference_mode" in HeldState(model).unwatchable
