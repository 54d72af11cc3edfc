"""Values that only code called by PyTorch reads, or code that looks modules up; and modes of PyTorch."""

from __future__ import annotations

import copy
import importlib
import math
import sys
import warnings
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.functional import mse_loss
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import threadcast
from threadcast.capture.guards.python_state import PythonState
from threadcast.runtime.plans.variant import MemoryFormat

pytestmark = pytest.mark.usefixtures("one_thread")

FACTORS = {"backward": 1.0, "context": 1.0, "operator": 1.0}
LOOKED_UP = 1.0


class Reversed(torch.autograd.Function):
    """Reverses gradients, times a number that changes during training."""

    alpha = 1.0

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.scale = FACTORS["context"]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return -Reversed.alpha * FACTORS["backward"] * ctx.scale * gradient


@torch.library.custom_op("threadcast_tests::doubled", mutates_args=())
def doubled(x: Tensor) -> Tensor:
    return x * 2


doubled.register_autograd(lambda ctx, gradient: gradient * 2 * FACTORS["operator"])


def is_noticed(function: Callable[..., Any], change: Callable[[], Any]) -> bool:
    state = PythonState([function])
    assert state.unwatchable is None
    assert state.changed() is None
    change()
    return state.changed() is not None


def test_what_the_backward_of_a_function_reads_is_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    def reversed_sum(x: Tensor) -> Any:
        return Reversed.apply(x).sum()  # type: ignore[no-untyped-call]

    assert is_noticed(reversed_sum, lambda: monkeypatch.setattr(Reversed, "alpha", 2.0))
    for name in ("backward", "context"):
        assert is_noticed(reversed_sum, lambda name=name: monkeypatch.setitem(FACTORS, name, 2.0))


@pytest.mark.parametrize(
    "called", [lambda x: doubled(x), lambda x: torch.ops.threadcast_tests.doubled(x)], ids=["object", "by name"]
)
def test_what_the_backward_of_an_operator_reads_is_watched(
    called: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert is_noticed(called, lambda: monkeypatch.setitem(FACTORS, "operator", 2.0))


LOOKUPS: dict[str, Callable[[Tensor], Any]] = {
    "sys.modules": lambda x: x * sys.modules["tests.runtime.watching.test_called_by_pytorch"].LOOKED_UP,
    "import_module": lambda x: x * importlib.import_module("tests.runtime.watching.test_called_by_pytorch").LOOKED_UP,
    "frame": lambda x: x * sys._getframe().f_globals["LOOKED_UP"],
}


@pytest.mark.parametrize("way", LOOKUPS)
def test_a_module_that_code_looks_up_is_watched(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert is_noticed(LOOKUPS[way], lambda: monkeypatch.setitem(globals(), "LOOKED_UP", 2.0))


class Doubling(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        return found * 2 if func is torch.tanh else found


class Unchanged(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("mode", [Doubling, Unchanged])
def test_calls_within_a_mode_run_as_pytorch_does(mode: type[Any]) -> None:
    x = torch.ones(3)
    with closing(threadcast.optimize(torch.tanh, cores=1, backends=False)) as call:
        call(x)
        with mode(), pytest.warns(UserWarning, match="is active"):
            torch.testing.assert_close(call(x), torch.tanh(x))
        torch.testing.assert_close(call(x), torch.tanh(x))


class Calling(nn.Module):
    """Calls an optimised model that is one of its own layers."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(3, 3).eval()
        self.fast: Callable[..., Tensor] | None = None

    def forward(self, x: Tensor) -> Tensor:
        return (self.fast or self.layer)(x) + 1


def _fakes_of(model: nn.Module, mode: FakeTensorMode) -> dict[str, Tensor]:
    return {name: mode.from_tensor(parameter) for name, parameter in model.named_parameters()}


def test_calls_while_fake_tensors_stand_for_the_weights_run_as_pytorch_does() -> None:
    model, x = Calling(), torch.rand(2, 3)
    wanted = model(x).detach()
    with closing(threadcast.optimize(model.layer, cores=1, backends=False)) as call:
        for _ in range(3):
            call(x)
        model.fast, known = call, call._optimized._table.tunings
        with FakeTensorMode() as mode, pytest.warns(UserWarning, match="is active"):
            found = torch.func.functional_call(model, _fakes_of(model, mode), mode.from_tensor(x))
        assert found.shape == wanted.shape
        exported = torch.export.export(model, (x,), strict=False).module()
        torch.testing.assert_close(exported(x).detach(), wanted)
        torch.testing.assert_close(call(x) + 1, wanted)
        assert call._optimized._table.tunings == known
        assert [report.reason for report in call.reports] == [""]


def test_a_mode_leaves_no_fake_parameter_behind_where_the_format_is_set_back() -> None:
    layer, x = nn.Conv2d(2, 2, 3), torch.rand(1, 2, 5, 5)
    with closing(threadcast.optimize(layer, cores=1, backends=False)) as call:
        call._optimized._format.set(MemoryFormat.CHANNELS_LAST)
        with FakeTensorMode(allow_non_fake_inputs=True) as mode, pytest.warns(UserWarning, match="is active"):
            call(mode.from_tensor(x))
        assert type(layer.weight.data) is Tensor
        call._optimized._format.set(MemoryFormat.CHANNELS_LAST)
        with torch.device("meta"):
            call(x)
        torch.testing.assert_close(call(x), layer(x).detach())


def _with_tangent(function: Callable[[Tensor], Tensor], x: Tensor) -> Any:
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(function(forward_ad.make_dual(x, x)))


TRANSFORMATIONS: dict[str, Callable[[Callable[[Tensor], Tensor], Tensor], Any]] = {
    "vmap": lambda function, x: torch.func.vmap(function)(x),
    "grad": lambda function, x: torch.func.grad(lambda x: (function(x) + x * x).sum())(x),
    "jvp": lambda function, x: torch.func.jvp(function, (x,), (x,)),
    "functionalize": lambda function, x: torch.func.functionalize(function)(x),
    "forward_ad": _with_tangent,
}


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")  # PyTorch's own, in jvp
@pytest.mark.parametrize("name", TRANSFORMATIONS)
def test_transformed_calls_run_as_pytorch_does(name: str) -> None:
    transformed, x = TRANSFORMATIONS[name], torch.rand(4, 3)
    with closing(threadcast.optimize(torch.tanh, cores=1, backends=False)) as call:
        for _ in range(3):
            call(x)
        with pytest.warns(UserWarning, match="is active"):
            torch.testing.assert_close(transformed(call, x), transformed(torch.no_grad()(torch.tanh), x))
        torch.testing.assert_close(call(x), torch.tanh(x))


def test_a_tensor_that_has_left_a_transformation_runs_as_pytorch_does() -> None:
    kept: list[Tensor] = []

    def keeps(x: Tensor) -> Tensor:
        kept.append(x)
        return x.sum()

    torch.func.grad(keeps)(torch.ones(3))
    call = threadcast.optimize(torch.tanh, cores=1, backends=False)
    with closing(call), pytest.warns(UserWarning, match="has left a transformation"):
        torch.testing.assert_close(call(kept[0]), torch.tanh(torch.ones(3)))


def test_the_cpu_as_default_device_changes_nothing() -> None:
    with closing(threadcast.optimize(torch.tanh, cores=1, backends=False)) as call, torch.device("cpu"):
        torch.testing.assert_close(call(torch.ones(3)), torch.tanh(torch.ones(3)))
        assert [report.reason for report in call.reports] == [""]


def branches(x: Tensor) -> Tensor:
    return x * 2 if torch.is_inference_mode_enabled() else x * 3


def test_code_that_asks_for_inference_mode_is_followed() -> None:
    x = torch.ones(3)
    with closing(threadcast.optimize(branches, cores=1, backends=False)) as call:
        for number in range(12):
            with torch.inference_mode(number % 4 >= 2):
                assert torch.equal(call(x), branches(x))
        assert [report.reason for report in call.reports] == ["", ""]


@pytest.mark.parametrize("off", [torch.no_grad, torch.inference_mode])
def test_a_step_without_gradients_raises_as_pytorch_does(off: Callable[[], Any]) -> None:
    model = nn.Linear(2, 2)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    x, y = torch.ones(3, 2), torch.zeros(3, 2)
    step = threadcast.optimize_training(model, mse_loss, torch.optim.SGD(model.parameters(), lr=0.1), cores=1)
    with closing(step):
        with off(), pytest.warns(UserWarning, match="gradients are switched off"), pytest.raises(RuntimeError):
            step(x, y)
        for found, wanted in zip(model.parameters(), before, strict=True):
            assert torch.equal(found, wanted)
        step(x, y)
        assert [report.reason for report in step.reports] == [""]


class Rooted(nn.Module):
    """Gives numbers of which the gradient is no number where its weight is 0."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))

    def forward(self, x: Tensor) -> Tensor:
        return torch.sqrt(self.weight * x.abs()) * 0


@pytest.mark.filterwarnings("ignore:Anomaly Detection", "ignore:Error detected in")
def test_anomalies_are_found_as_pytorch_finds_them() -> None:
    model = Rooted()
    step = threadcast.optimize_training(model, mse_loss, torch.optim.SGD(model.parameters(), lr=0.0), cores=1)
    good, bad, target = torch.ones(3, 2), torch.zeros(3, 2), torch.zeros(3, 2)
    with closing(step):
        for _ in range(3):
            step(good, target)
        assert [report.reason for report in step.reports] == [""]
        with torch.autograd.detect_anomaly():
            with pytest.warns(UserWarning, match="detect_anomaly.. is on"):
                assert math.isfinite(step(good, target))
            with pytest.raises(RuntimeError, match="returned nan values"):
                step(bad, target)
        step(bad, target)
        assert [report.reason for report in step.reports] == [""]


class Halves:
    """Hooks that save tensors in half precision, and count them."""

    def __init__(self) -> None:
        self.packed = self.unpacked = 0

    def pack(self, x: Tensor) -> Tensor:
        self.packed += 1
        return x.half() if x.is_floating_point() else x

    def unpack(self, x: Tensor) -> Tensor:
        self.unpacked += 1
        return x.float() if x.is_floating_point() else x


@pytest.mark.parametrize("hooked_first", [True, False])
def test_hooks_on_saved_tensors_are_called_in_the_steps_around_which_they_are(hooked_first: bool) -> None:
    torch.manual_seed(0)
    mine = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    eager = copy.deepcopy(mine)
    my_optimizer, optimizer = (torch.optim.SGD(model.parameters(), lr=0.1) for model in (mine, eager))
    x, y, my_hooks, hooks = torch.rand(5, 3), torch.rand(5, 2), Halves(), Halves()

    def eager_step() -> Tensor:
        optimizer.zero_grad()
        loss = mse_loss(eager(x), y)
        torch.autograd.backward(loss)
        optimizer.step()
        return loss.detach()

    with closing(threadcast.optimize_training(mine, mse_loss, my_optimizer, cores=1)) as step:
        for number in range(8):
            if (number < 4) is hooked_first:
                with saved_tensors_hooks(hooks.pack, hooks.unpack):
                    wanted = eager_step()
                with saved_tensors_hooks(my_hooks.pack, my_hooks.unpack), warnings.catch_warnings():
                    warnings.filterwarnings("ignore", "threadcast runs this as PyTorch does: .*saved_tensors_hooks")
                    torch.testing.assert_close(step(x, y), wanted)
            else:
                torch.testing.assert_close(step(x, y), eager_step())
            torch.testing.assert_close(mine.state_dict(), eager.state_dict(), rtol=1e-6, atol=1e-6)
            assert (my_hooks.packed, my_hooks.unpacked) == (hooks.packed, hooks.unpacked)
        assert ["saved_tensors_hooks" in report.reason for report in step.reports] == [False, True][: 2 - hooked_first]


def test_a_failure_of_the_callers_code_is_no_fault_of_control_flow() -> None:
    def failing(x: Tensor) -> Tensor:
        raise ValueError("three")

    expected = pytest.warns(UserWarning, match=r"cannot capture: ValueError: three$"), pytest.raises(ValueError)
    with closing(threadcast.optimize(failing, cores=1, backends=False)) as call, expected[0], expected[1]:
        call(torch.ones(3))
