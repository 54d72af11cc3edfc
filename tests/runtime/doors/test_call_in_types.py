"""Calls by the choice between float32 and bfloat16 return what is allowed, and run in float32 what has to."""

from __future__ import annotations

import gc
import math
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
from tests.runtime.two_types import CALLS, call_until_captured, in_bfloat16, network
from tests.waiting import attempts
from threadcast.core.errors import InvalidInput
from threadcast.runtime.doors import call_in_types
from threadcast.runtime.doors.bfloat16_speed import Bfloat16Speed
from threadcast.runtime.doors.type_choice import largest_difference


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
def test_results_that_differ_more_than_is_allowed_are_float32s() -> None:
    model, x = network(), torch.randn(4, 3, 8, 8)
    with torch.no_grad():
        wanted = model(x)
    options: dict[str, Any] = {"backends": False, "dtypes": ("float32", "bfloat16"), "tolerance": 1e-7}
    with closing(threadcast.optimize(model, **options)) as call:
        call(x)
        call._choice.offer()  # type: ignore[attr-defined]
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
        for _ in attempts():
            x = torch.rand(4, 3, 8, 8)
            normalised = (x - 0.5) / 0.25
            call(x)
            torch.testing.assert_close(x, normalised)
            (report,) = call.types  # type: ignore[attr-defined]
            if report.runs is not None:
                break
        assert "the call writes to tensors" in report.reason


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
        call._choice.offer()  # type: ignore[attr-defined]
        for _ in range(4):
            y, same = call(x)
            assert same is y
        (report,) = call.types  # type: ignore[attr-defined]
        assert report.runs == "float32"
        assert "share memory" in report.reason


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
