"""Backends answer as the module does, or do not take part."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import threadcast
from tests.runtime.compiler import needs_compiler
from tests.runtime.small_training import run_until_settled
from threadcast.core.errors import CaptureError
from threadcast.runtime.backends.contenders import BACKENDS, contenders
from threadcast.runtime.backends.frozen import FlatModule


class Two(nn.Module):
    """Nested arguments, an argument that is no tensor, nested results."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(8, 8)
        self.norm = nn.BatchNorm1d(8)

    def forward(self, pair: dict[str, Tensor], power: int = 1) -> dict[str, Any]:
        y = self.norm(self.mix(pair["a"]) + pair["b"])
        return {"y": y**power, "parts": [y.relu(), y.sum(1)]}


@pytest.fixture
def module() -> Two:
    torch.manual_seed(0)
    return Two().eval()


ARGUMENTS: tuple[tuple[Any, ...], dict[str, Any]] = (
    ({"a": torch.linspace(-1, 1, 32).reshape(4, 8), "b": torch.ones(4, 8)},), {"power": 2}
)  # fmt: skip


@needs_compiler  # as torch.compile does
@pytest.mark.parametrize("backend", BACKENDS)
def test_every_installed_backend_answers_as_the_module(module: Two, backend: str) -> None:
    args, kwargs = ARGUMENTS
    changed = ({"a": args[0]["a"] * 3, "b": args[0]["b"] - 2},)
    (contender,) = contenders(module, ARGUMENTS, 1, among=[backend])
    assert contender.name.partition(",")[0] == backend
    with torch.no_grad():
        found, wanted = contender.run(changed, kwargs), module(*changed, **kwargs)
    torch.testing.assert_close(found["y"], wanted["y"], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found["parts"], wanted["parts"], rtol=1e-4, atol=1e-5)
    assert contender.holds()
    with torch.no_grad():
        module.mix.bias.add_(1)
    assert not contender.holds()


@needs_compiler
def test_only_the_fastest_backends_come_into_the_process_and_others_are_compared_elsewhere(module: Two) -> None:
    code = """
import sys, torch
from tests.runtime.backends.test_backends import ARGUMENTS, Two
from threadcast.runtime.backends.contenders import BACKENDS, contenders
torch.manual_seed(0)
names = [contender.name.partition(",")[0] for contender in contenders(Two().eval(), ARGUMENTS, 1)]
assert names, names
assert ("onnxruntime" in names) == ("onnxruntime" in sys.modules), names
assert ("openvino" in names) == ("openvino" in sys.modules), names
assert "onnxscript" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[3])


@needs_compiler
def test_a_module_that_cannot_be_exported_is_left_to_torch_compile(caplog: pytest.LogCaptureFixture) -> None:
    class Branching(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * 2 if x.sum() > 0 else x * 3

    caplog.set_level("INFO", "threadcast")
    (contender,) = contenders(Branching().eval(), ((torch.ones(2),), {}), 1)
    assert contender.name == "torch.compile"
    assert "onnxruntime does not run this model: cannot be exported" in caplog.text
    for x in (torch.ones(2), -torch.ones(2)):
        assert contender.run((x,), {}).tolist() == (x * (2 if x.sum() > 0 else 3)).tolist()


def test_backends_run_a_class_of_a_script(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("""
import torch
from threadcast.runtime.backends.contenders import BACKENDS, contenders
class Double(torch.nn.Module):
    def forward(self, x):
        return x * 2
print([c.run((torch.ones(2),), {}).tolist() for c in contenders(Double().eval(), ((torch.ones(2),), {}), 1,
                                                                 among=["onnxruntime"])])
""")
    done = subprocess.run(
        [sys.executable, script], check=True, capture_output=True, text=True, cwd=Path(__file__).parents[3],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
    )  # fmt: skip
    assert done.stdout.strip() == "[[2.0, 2.0]]"


def test_backends_that_take_too_long_are_left_out_with_a_message(
    module: Two, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("THREADCAST_ENGINE_COMPILE_TIMEOUT_S", "1")
    assert not list(contenders(module, ARGUMENTS, 1))
    assert "not made within 1 s" in caplog.text


def test_a_module_in_training_mode_has_no_backends(module: Two) -> None:
    assert not list(contenders(module.train(), ARGUMENTS, 1))


def test_a_module_that_returns_more_than_tensors_has_no_backends() -> None:
    class Counts(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, int]:
            return x, 3

    assert not list(contenders(Counts().eval(), ((torch.ones(2),), {}), 1))


def test_a_module_that_writes_to_its_buffers_or_arguments_has_no_backends() -> None:
    class Counting(nn.Module):
        calls: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("calls", torch.zeros(1))

        def forward(self, x: Tensor) -> Tensor:
            self.calls.add_(1)
            return x * 2

    class Caching(nn.Module):
        def forward(self, x: Tensor, cache: Tensor) -> Tensor:
            return cache.copy_(x) * 2

    counting, cache = Counting().eval(), torch.zeros(2)
    assert not list(contenders(counting, ((torch.ones(2),), {}), 1))
    assert counting.calls.item() == 0
    assert not list(contenders(Caching().eval(), ((torch.ones(2), cache), {}), 1))
    assert cache.tolist() == [0, 0]


@pytest.mark.parametrize("change", [Tensor.double, lambda x: x[None]], ids=["type", "shape"])
def test_answers_of_another_type_or_shape_are_refused(module: Two, change: Callable[[Tensor], Tensor]) -> None:
    flat = FlatModule(module, ARGUMENTS)
    with torch.no_grad(), pytest.raises(CaptureError, match="an answer is"):
        flat.check(lambda tensors: [change(found) for found in flat(*tensors)])


def test_other_answers_than_the_modules_are_refused(module: Two) -> None:
    flat = FlatModule(module, ARGUMENTS)

    def wrong(tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        return [found + 0.01 for found in flat(*tensors)]

    with torch.no_grad():
        flat.check(lambda tensors: flat(*tensors))
        with pytest.raises(CaptureError, match="differ"):
            flat.check(wrong)


@pytest.mark.usefixtures("planned_at_once")
def test_an_optimised_call_follows_its_parameters_whatever_runs_it(module: Two) -> None:
    args, kwargs = ARGUMENTS
    with closing(threadcast.optimize(module, cores=1)) as call, torch.no_grad():

        def check(_: int) -> None:
            torch.testing.assert_close(call(*args, **kwargs)["y"], module(*args, **kwargs)["y"], rtol=1e-4, atol=1e-5)

        run_until_settled(call, check)
        module.mix.weight.mul_(2)
        for number in range(3):
            check(number)
