"""The choice between float32 and bfloat16, and calls by it."""

from __future__ import annotations

import gc
import math
import warnings
import weakref
from collections.abc import Callable
from contextlib import closing, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import threadcast
from threadcast.core.errors import InvalidInput
from threadcast.runtime import call_in_types
from threadcast.runtime.bfloat16_speed import Bfloat16Speed
from threadcast.runtime.tuning.tuning import Tuning
from threadcast.runtime.type_choice import CHECKS, RECHECK, TypeChoice, Way, largest_difference

CALLS = 80
"""Calls in which both types have learned what runs them."""


class Clock:
    """Reports calls of a choice, one after the other, and returns how they ran."""

    def __init__(self, choice: TypeChoice) -> None:
        self.choice, self.now_s = choice, 0.0

    def call(self, *, float32_s: float, bfloat16_s: float, difference: float = 0.01) -> Way:
        way = self.choice.next(0.05)
        seconds = bfloat16_s if way is Way.BFLOAT16 else float32_s
        if way is Way.BOTH:
            self.choice.compared(difference, eager_s=bfloat16_s)
        elif way is Way.FLOAT32:
            self.choice.ran_float32(started_s=self.now_s, seconds=seconds, settled=True)
        else:
            self.choice.ran_bfloat16(started_s=self.now_s, seconds=seconds, settled=True)
        self.now_s += seconds
        return way


def ran(choice: TypeChoice, calls: int = 200, **seconds: float) -> list[Way]:
    clock = Clock(choice)
    return [clock.call(**seconds) for _ in range(calls)]


def test_bfloat16_runs_where_it_is_faster() -> None:
    choice = TypeChoice()
    ways = ran(choice, float32_s=0.02, bfloat16_s=0.01)
    assert ways[: 1 + CHECKS] == [Way.FLOAT32, *[Way.BOTH] * CHECKS]
    assert choice.report.runs == "bfloat16"
    assert ways[-1] is Way.BFLOAT16
    assert choice.report.verdict is not None
    assert choice.report.verdict.gain == pytest.approx(2.0)
    assert choice.report.largest_difference == 0.01


def test_float32_runs_where_it_is_faster() -> None:
    choice = TypeChoice()
    ways = ran(choice, float32_s=0.01, bfloat16_s=0.02)
    assert choice.report.runs == "float32"
    assert ways[-1] is Way.FLOAT32


def test_what_is_far_slower_in_bfloat16_is_left_after_the_checks() -> None:
    choice = TypeChoice()
    assert Way.BFLOAT16 not in ran(choice, float32_s=0.01, bfloat16_s=0.05)
    assert choice.report.reason == "far slower in bfloat16"


def test_what_is_far_slower_than_a_backend_in_float32_is_tried_where_eager_pytorch_is_not_far_faster() -> None:
    choice = TypeChoice()
    choice.ran_float32(started_s=0.0, seconds=0.01, settled=True)
    for _ in range(CHECKS):
        choice.compared(0.01, eager_s=0.05, eager_float32_s=0.04)
    assert choice.next(1.0) is Way.BFLOAT16


def test_a_backend_is_compared_once_and_again_after_writes() -> None:
    choice, way = TypeChoice(), Clock(TypeChoice())
    ran(choice, float32_s=0.02, bfloat16_s=0.01)
    assert not choice.compared_way(way, 0.06)
    assert not choice.compared_ways
    assert choice.compared_way(way, 0.04)
    assert way in choice.compared_ways
    assert choice.report.runs == "bfloat16"
    assert choice.report.largest_difference == 0.04
    choice.written()
    assert not choice.compared_ways


def test_calls_in_bfloat16_are_compared_from_time_to_time_while_they_learn() -> None:
    choice, ways = TypeChoice(), []
    ran(choice, 1 + CHECKS, float32_s=0.02, bfloat16_s=0.01)
    for _ in range(RECHECK + 1):
        ways.append(choice.next(1.0))
        if ways[-1] is Way.BOTH:
            choice.compared(0.01)
        else:
            choice.ran_bfloat16(started_s=0.0, seconds=0.01, settled=False)
    assert ways.count(Way.BOTH) == 1


@pytest.mark.parametrize("difference", [0.06, math.inf, math.nan])
def test_no_result_is_returned_in_bfloat16_where_one_differs_too_much(difference: float) -> None:
    choice = TypeChoice()
    assert Way.BFLOAT16 not in ran(choice, float32_s=0.02, bfloat16_s=0.01, difference=difference)
    assert choice.report.runs == "float32"
    assert "differ by" in choice.report.reason


def test_calls_in_bfloat16_are_compared_again_after_writes_and_from_time_to_time() -> None:
    choice = TypeChoice()
    ran(choice, float32_s=0.02, bfloat16_s=0.01)
    choice.written()
    assert ran(choice, 2, float32_s=0.02, bfloat16_s=0.01) == [Way.BOTH, Way.BFLOAT16]
    assert ran(choice, RECHECK, float32_s=0.02, bfloat16_s=0.01).count(Way.BOTH) == 1
    choice.written()
    ran(choice, 1, float32_s=0.02, bfloat16_s=0.01, difference=1.0)
    assert choice.report.runs == "float32"


def test_learning_in_bfloat16_loses_little() -> None:
    choice, lost_s = TypeChoice(), 0.0
    clock = Clock(choice)
    for _ in range(1 + CHECKS):
        clock.call(float32_s=0.5, bfloat16_s=1.0)
    for number in range(100):
        if choice.next(0.05) is Way.BFLOAT16:
            choice.ran_bfloat16(started_s=0.0, seconds=1.0, settled=False)
            lost_s += 0.5
        else:
            choice.ran_float32(started_s=0.0, seconds=0.5, settled=True)
        assert lost_s <= 1.5 + 0.05 * (number + 1)


@pytest.mark.parametrize(
    ("one", "other", "difference", "words"),
    [
        (torch.tensor([1.0, -4.0]), torch.tensor([1.0, -4.2]), 0.05, ""),
        ({"a": torch.zeros(2)}, {"a": torch.zeros(2)}, 0.0, ""),
        (torch.zeros(2), torch.ones(2), math.inf, ""),
        (torch.tensor([math.inf, 1.0]), torch.tensor([math.inf, 1.0]), 0.0, ""),
        (torch.tensor([math.nan, 1.0]), torch.tensor([2.0, 1.0]), math.inf, ""),
        (torch.tensor([-1e30, 2.0]), torch.tensor([-1e30, 1.0]), 0.5, ""),
        (torch.tensor([1, 2]), torch.tensor([1, 3]), 0.0, "1 of 2"),
        (torch.ones(2), torch.ones(3), 0.0, "shape"),
        ([torch.ones(1)], (torch.ones(1),), 0.0, "nested"),
        (1, 2, 0.0, "1 in float32 and 2"),
    ],
)
def test_differences_are_shares_of_the_largest_number(one: Any, other: Any, difference: float, words: str) -> None:
    found, why = largest_difference(one, other)
    assert found == pytest.approx(difference)
    assert words in why
    assert bool(words) == bool(why)


@pytest.fixture
def fast_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU that is fast in bfloat16, and learning that may take any time."""
    monkeypatch.setattr(call_in_types, "bfloat16_speed", lambda: Bfloat16Speed(4.0, 2.0))
    monkeypatch.setenv("THREADCAST_ENGINE_TUNING_SHARE", "1")


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(8 * 36, 40),
        nn.Tanh(),
        nn.Linear(40, 5),
    ).eval()


def in_bfloat16(call: Any) -> TypeChoice:
    """The choice of the last call, made for bfloat16."""
    choice: TypeChoice = call._choice
    choice.report.runs, choice.report.reason, choice.checks = "bfloat16", "", 0
    choice._float32_settled = True
    assert call._watches()
    return choice


@pytest.mark.usefixtures("fast_cpu")
def test_all_results_are_within_the_tolerance_and_of_float32s_type() -> None:
    model, x = network(), torch.randn(4, 3, 8, 8)
    with torch.no_grad():
        wanted = model(x)
    with closing(threadcast.optimize(model, backends=False, dtypes=("float32", "bfloat16"))) as call:
        for _ in range(CALLS):
            found = call(x)
            assert found.dtype is torch.float32
            assert largest_difference(wanted, found)[0] <= 0.05
        (report,) = call.types  # type: ignore[attr-defined]
        if report.largest_difference is not None:
            assert report.largest_difference <= 0.05


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


def call_until_captured(call: Any, x: Tensor) -> None:
    for _ in range(CALLS):
        call(x)
        if isinstance(call._optimized._last, Tuning):
            return
    pytest.fail("float32 was not captured")


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


class Sharing(nn.Module):
    """Returns a tensor twice, and a view of it; with `aliased` also what is the tensor itself only in float32."""

    def __init__(self, *, aliased: bool) -> None:
        super().__init__()
        self.layer, self.aliased = nn.Linear(64, 32), aliased

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        y = self.layer(x)
        return (y, y.float()) if self.aliased else (y, y.flatten(), y, *y.chunk(2, 1))


@pytest.mark.usefixtures("fast_cpu")
def test_results_in_bfloat16_share_memory_as_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THREADCAST_ENGINE_LEAST_STEP_US", "0")
    model, x = Sharing(aliased=False).eval(), torch.randn(8, 64)
    with closing(threadcast.optimize(model, backends=False, dtypes=("float32", "bfloat16"))) as call:
        call_until_captured(call, x)
        in_bfloat16(call)
        for _ in range(4):
            y, flat, again, left, _ = call(x)
        with torch.no_grad():
            assert not torch.equal(y, model(x)[0])  # it ran in bfloat16
        assert again is y
        y.fill_(7.0)
        assert flat.eq(7).all()
        assert left.eq(7).all()


@pytest.mark.usefixtures("fast_cpu")
def test_results_that_share_memory_in_float32_only_are_float32s(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THREADCAST_ENGINE_LEAST_STEP_US", "0")
    model, x = Sharing(aliased=True).eval(), torch.randn(8, 64)
    with closing(threadcast.optimize(model, backends=False, dtypes=("float32", "bfloat16"))) as call:
        call_until_captured(call, x)
        call._choice._float32_settled = True  # type: ignore[attr-defined]
        for _ in range(4):
            y, same = call(x)
            assert same is y
        (report,) = call.types  # type: ignore[attr-defined]
        assert report.runs == "float32"
        assert "share memory" in report.reason


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
            choice._float32_settled = True
            call(x)
        assert choice.report.runs == "float32"
        assert "inference_mode" in choice.report.reason
        assert call._half is None  # type: ignore[attr-defined]


@pytest.mark.usefixtures("fast_cpu")
def test_results_that_differ_more_than_is_allowed_are_float32s() -> None:
    model, x = network(), torch.randn(4, 3, 8, 8)
    with torch.no_grad():
        wanted = model(x)
    options: dict[str, Any] = {"backends": False, "dtypes": ("float32", "bfloat16"), "tolerance": 1e-7}
    with closing(threadcast.optimize(model, **options)) as call:
        call(x)
        call._choice._float32_settled = True  # type: ignore[attr-defined]
        for _ in range(CALLS):
            torch.testing.assert_close(call(x), wanted)
        (report,) = call.types  # type: ignore[attr-defined]
        assert report.runs == "float32"
        assert report.reason


@pytest.mark.usefixtures("fast_cpu")
def test_what_writes_to_the_model_or_is_random_runs_in_float32() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)
            self.calls: Tensor
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            result: Tensor = self.layer(x)
            return result

    model, x = Counting().eval(), torch.randn(2, 4)
    with closing(threadcast.optimize(model, backends=False, dtypes=("float32", "bfloat16"))) as call:
        for _ in range(CALLS):
            torch.testing.assert_close(call(x), model.layer(x))
        assert int(model.calls) == CALLS
        model.train()
        call(x)
        assert int(model.calls) == CALLS + 1


@pytest.mark.usefixtures("fast_cpu", "planned_at_once")
def test_what_writes_to_its_images_runs_in_float32() -> None:
    class Normalising(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = network()

        def forward(self, x: Tensor) -> Tensor:
            result: Tensor = self.layers(x.sub_(0.5).div_(0.25))
            return result

    model = Normalising().eval()
    with closing(threadcast.optimize(model, backends=False, dtypes=("float32", "bfloat16"))) as call:
        for _ in range(10 * CALLS):
            x = torch.rand(4, 3, 8, 8)
            normalised = (x - 0.5) / 0.25
            call(x)
            torch.testing.assert_close(x, normalised)
            (report,) = call.types  # type: ignore[attr-defined]
            if report.runs is not None:
                break
        assert "the call writes to tensors" in report.reason


@dataclass
class Batch:
    """Has no hash, as NumPy's arrays."""

    images: Tensor


class Cache(dict[str, Tensor]):
    """Has a hash, as caches of keys and values that a caller makes for each call."""

    __hash__ = object.__hash__  # type: ignore[assignment]


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype")
@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: torch.eye(3).to_sparse(), "a sparse tensor"),
        (lambda: torch.eye(3).to_sparse_csr(), "a sparse tensor"),
        (lambda: torch.nested.nested_tensor([torch.ones(1), torch.ones(2)]), "a nested tensor"),
        (lambda: torch.nested.nested_tensor([torch.ones(1), torch.ones(2)], layout=torch.jagged), "a nested tensor"),
        (lambda: np.ones(3), "a ndarray"),
        (lambda: Batch(torch.ones(3)), "a Batch"),
        (lambda: Cache(x=torch.ones(3)), "a Cache"),
    ],
)
@pytest.mark.usefixtures("fast_cpu")
def test_arguments_that_cannot_be_captured_run_in_float32_and_are_not_kept(
    make: Callable[[], Any], reason: str
) -> None:
    x, alive = torch.ones(3), []
    with closing(threadcast.optimize(lambda x, _: x * 2, dtypes=("float32", "bfloat16"))) as call:
        for calls in range(3):
            with pytest.warns(UserWarning, match=reason) if calls == 0 else nullcontext():
                torch.testing.assert_close(call(x, argument := make()), x * 2)
            alive.append(weakref.ref(argument))
        del argument
        (report,) = call.types  # type: ignore[attr-defined]
        assert report.runs == "float32"
        assert reason in report.reason
        gc.collect()
        assert not any(reference() is not None for reference in alive)


def test_other_types_are_refused() -> None:
    refused: Any
    for refused in (("bfloat16",), ("float32", "float16"), "float32", (), 5, None, [["float32"]], (torch.float32,)):
        with pytest.raises(InvalidInput, match="dtypes="):
            threadcast.optimize(network(), dtypes=refused)
    for refused in (0.0, -1, math.nan, "x", None, True):
        with pytest.raises(InvalidInput, match="tolerance="):
            threadcast.optimize(network(), tolerance=refused)


def test_a_cpu_that_is_slower_in_bfloat16_tries_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_in_types, "bfloat16_speed", lambda: Bfloat16Speed(0.3, 0.5))
    x = torch.randn(4, 3, 8, 8)
    with closing(threadcast.optimize(network(), x, backends=False, dtypes=("float32", "bfloat16"))) as call:
        assert call._half is None  # type: ignore[attr-defined]
        (report,) = call.types  # type: ignore[attr-defined]
        assert report.runs == "float32"
        assert "slower on this CPU" in str(report)
