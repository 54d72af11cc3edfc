"""What a callable calls is recorded as it is called, without doing it."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from threadcast.capture.graph.capture import capture_forward
from threadcast.capture.graph.recorder import Recorder
from threadcast.capture.graph.values import Ref
from threadcast.core.errors import CaptureError
from threadcast.core.tensor import TensorSpec


def test_calls_refer_to_arguments_constants_and_results_in_order() -> None:
    closed_over = torch.ones(3)

    def function(given: list[Tensor], factor: float) -> dict[str, Tensor]:
        values, _ = torch.sort(given[0] + closed_over)
        return {"scaled": values * factor, "given": given[1]}

    recording = Recorder().record(function, ([torch.zeros(3), torch.ones(2)], 2.0))
    add, sort, mul = recording.calls
    (constant,) = recording.constants
    assert recording.constants[constant] is closed_over
    assert [call.name for call in recording.calls] == ["add", "sort", "mul"]
    assert add.args == (Ref(0), Ref(constant))
    assert sort.args == (Ref(add.number),)
    assert sort.result == [TensorSpec((3,)), TensorSpec((3,), "int64")]
    assert mul.args == (Ref(sort.number, 0), 2.0)
    assert recording.outputs == [Ref(mul.number), Ref(1)]
    assert recording.specs[Ref(1)] == TensorSpec((2,))


def test_nothing_is_computed_drawn_or_written() -> None:
    x = torch.zeros(3)
    torch.manual_seed(1)
    state = torch.get_rng_state()
    recording = Recorder().record(lambda t: t.add_(1).mul_(torch.rand(3)), (x,))
    assert x.tolist() == [0, 0, 0]
    assert torch.equal(torch.get_rng_state(), state)
    add, rand, mul = recording.calls
    assert mul.args == (Ref(add.number), Ref(rand.number))
    assert recording.outputs == [Ref(mul.number)]


def test_a_tensor_that_is_closed_over_is_written_by_runs_and_not_by_capturing() -> None:
    count, shown = torch.zeros(()), torch.zeros(3)

    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        count.add_(1)
        shown.copy_(x)
        return x * count, count

    captured = capture_forward(function, torch.ones(3))
    assert (count.item(), shown.tolist()) == (0, [0, 0, 0])
    for i in (1, 2):
        scaled, counted = captured.run(torch.full((3,), 5.0))
        assert (count.item(), counted.item(), scaled.tolist(), shown.tolist()) == (i, i, [5.0 * i] * 3, [5.0] * 3)


def test_a_constant_made_of_numbers_is_new_in_every_run() -> None:
    def function(x: Tensor) -> Tensor:
        total = torch.tensor([1.0, 2.0])
        total += x
        return total

    captured = capture_forward(function, torch.ones(2))
    assert [captured.run(torch.ones(2)).tolist() for _ in range(2)] == [[2, 3], [2, 3]]


def test_phases_are_as_told_and_backward_calls_are_recorded() -> None:
    recorder = Recorder()

    def step(weight: Tensor) -> Tensor:
        loss = (weight * weight).sum()
        recorder.phase = "backward"
        return torch.autograd.grad(loss, weight)[0]

    calls = recorder.record(step, (torch.ones(3, requires_grad=True),)).calls
    phases = [call.phase for call in calls]
    assert phases == sorted(phases, reverse=True)
    assert set(phases) == {"forward", "backward"}


def test_operators_made_of_others_are_recorded_as_these_also_without_autograd() -> None:
    def names(x: Tensor) -> list[str]:
        with torch.inference_mode():
            return [call.name for call in Recorder().record(lambda t: torch.nn.functional.linear(t, t), (x,)).calls]

    assert names(torch.ones(2, 2)) == ["t", "mm"]


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda x: x[x > 0], "DynamicOutputShape"),
        (lambda x: x if x.sum() > 0 else -x, "DataDependentOutput"),
        (lambda x: torch.ones(int(x.sum().item())), "Control flow"),
        (lambda x: x @ torch.ones(7, 7), "RuntimeError"),
        (lambda x: x.numpy(), "RuntimeError"),
        (lambda x: x.tolist(), "DataDependentOutput"),
        (lambda x: torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,)), "cond"),
        (lambda x: x.to(torch.uint16) + 1, "uint16"),
    ],
)  # fmt: skip
def test_what_depends_on_values_is_refused_with_the_reason(function: Callable[..., object], reason: str) -> None:
    with pytest.raises(CaptureError, match=f"cannot capture.*{re.escape(reason)}"):
        Recorder().record(function, (torch.ones(5_000),))
