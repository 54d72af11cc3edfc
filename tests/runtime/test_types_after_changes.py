"""Calls in bfloat16 follow the weights and attributes that they read, and are left where these change all the time."""

from __future__ import annotations

import warnings
from contextlib import closing
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import threadcast
from tests.runtime.two_types import CALLS, call_until_captured, in_bfloat16, network
from threadcast.runtime.doors import call_in_types
from threadcast.runtime.doors.type_choice import largest_difference


@pytest.mark.usefixtures("fast_cpu")
def test_calls_in_bfloat16_follow_the_weights() -> None:
    model, x = network(), torch.randn(4, 3, 8, 8)
    with closing(threadcast.optimize(model, backends=False, dtypes=("float32", "bfloat16"))) as call:
        call(x)
        choice = in_bfloat16(call)
        for number in range(CALLS):
            if number % 20 == 10:
                with torch.no_grad():
                    for parameter in model.parameters():
                        parameter.mul_(1.1)
            if number == CALLS // 2:
                model[4] = nn.Linear(8 * 36, 40)
            with torch.no_grad():
                wanted = model(x)
            found = call(x)
            assert largest_difference(wanted, found)[0] <= 0.05
            if number == CALLS // 2 - 1:
                assert not torch.equal(found, wanted)  # it ran in bfloat16
                assert choice.report.runs == "bfloat16"


class Cancelling(nn.Module):
    """Adds 32 numbers to their equals. What subtracts those later loses nearly all digits in bfloat16."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(64, 64), nn.Linear(64, 1, bias=False)
        with torch.no_grad():
            self.first.weight[32:], self.first.bias[32:] = self.first.weight[:32], self.first.bias[:32]
            self.last.weight[:, 32:] = self.last.weight[:, :32]
        self.signs: Tensor
        self.register_buffer("signs", torch.ones(64))
        self.scales, self.factor = torch.ones(64), 1.0

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x) * self.signs * self.scales
        hidden = torch.cat([hidden[:, :32], hidden[:, 32:] * self.factor], 1)
        result: Tensor = self.last(hidden)
        return result


def subtracting() -> Tensor:
    return torch.cat([torch.ones(32), torch.full((32,), -1.001)])


def replace_layer(model: Any) -> None:
    layer = nn.Linear(64, 1, bias=False).eval()
    layer.weight = nn.Parameter(model.last.weight.detach() * subtracting())
    model.last = layer


def replace_parameter(model: Any) -> None:
    model.last.weight = nn.Parameter(model.last.weight.detach() * subtracting())


def replace_data(model: Any) -> None:
    model.last.weight.data = model.last.weight.detach() * subtracting()


def replace_buffer(model: Any) -> None:
    model.signs = subtracting()


def replace_attribute(model: Any) -> None:
    model.scales = subtracting()


def write_to_weight(model: Any) -> None:
    with torch.no_grad():
        model.last.weight.mul_(subtracting())


def write_to_attribute(model: Any) -> None:
    model.scales.copy_(subtracting())


def set_number(model: Any) -> None:
    model.factor = -1.001


CHANGES = [
    replace_layer, replace_parameter, replace_data, replace_buffer, replace_attribute, write_to_weight,
    write_to_attribute, set_number,
]  # fmt: skip


@pytest.mark.usefixtures("fast_cpu")
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("is_module", [True, False])
def test_no_result_differs_too_much_after_a_change_of_what_is_read(
    change: Any, is_module: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("THREADCAST_ENGINE_LEAST_STEP_US", "0")
    model, x = Cancelling().eval(), torch.randn(32, 64)
    function: Any = model if is_module else lambda x: model(x)
    with (
        warnings.catch_warnings(),
        closing(threadcast.optimize(function, backends=False, dtypes=("float32", "bfloat16"))) as call,
    ):
        warnings.filterwarnings("ignore", "threadcast leaves bfloat16")
        call_until_captured(call, x)
        in_bfloat16(call)
        with torch.no_grad():
            assert not torch.equal(call(x), model(x))  # it ran in bfloat16
            change(model)
            for _ in range(12):
                assert largest_difference(model(x), call(x))[0] <= 0.05


@pytest.mark.usefixtures("fast_cpu")
def test_weights_that_change_before_each_call_leave_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THREADCAST_ENGINE_LEAST_STEP_US", "0")
    model, x = Cancelling().eval(), torch.randn(32, 64)
    with closing(threadcast.optimize(model, backends=False, dtypes=("float32", "bfloat16"))) as call:
        call_until_captured(call, x)
        choice = in_bfloat16(call)

        def written_calls() -> None:
            for _ in range(2 * call_in_types.MOST_CHANGES):
                with torch.no_grad():
                    model.last.weight.mul_(1.001)
                call(x)

        with pytest.warns(UserWarning, match="leaves bfloat16: weights or attributes changed"):
            written_calls()
        assert choice.report.runs == "float32"
        assert "checked in both types" in str(choice.report)
        assert call._half is None  # type: ignore[attr-defined]
        call(x[:7])
        assert {report.runs for report in call.types} == {"float32"}  # type: ignore[attr-defined]


@pytest.mark.usefixtures("fast_cpu")
def test_weights_of_inference_mode_stay_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THREADCAST_ENGINE_LEAST_STEP_US", "0")
    with torch.inference_mode():
        model = nn.Linear(64, 64).eval()
    x = torch.randn(4, 64)
    with closing(threadcast.optimize(model, x, backends=False, dtypes=("float32", "bfloat16"))) as call:
        choice = call._choice  # type: ignore[attr-defined]
        for _ in range(CALLS):
            choice.offer()
            call(x)
        assert choice.report.runs == "float32"
        assert "inference_mode" in choice.report.reason
        assert call._half is None  # type: ignore[attr-defined]
