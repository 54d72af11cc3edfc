"""Backends answer as the module does, or do not take part."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import threadcast
from tests.scheduler.runtime.compiler import needs_compiler
from threadcast.core.errors import CaptureError
from threadcast.scheduler.runtime.backends.contenders import contenders
from threadcast.scheduler.runtime.backends.frozen import FlatModule


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
def test_every_installed_backend_answers_as_the_module(module: Two) -> None:
    args, kwargs = ARGUMENTS
    changed = ({"a": args[0]["a"] * 3, "b": args[0]["b"] - 2},)
    names = []
    for contender in contenders(module, ARGUMENTS, 1):
        names.append(contender.name.partition(",")[0])
        with torch.no_grad():
            found, wanted = contender.run(changed, kwargs), module(*changed, **kwargs)
        torch.testing.assert_close(found["y"], wanted["y"], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(found["parts"], wanted["parts"], rtol=1e-4, atol=1e-5)
        assert contender.holds()
    assert names == ["onnxruntime", "openvino", "torch.compile"]


def test_a_backend_no_longer_holds_once_a_parameter_has_changed(module: Two) -> None:
    contender = next(contenders(module, ARGUMENTS, 1))
    with torch.no_grad():
        module.mix.bias.add_(1)
    assert not contender.holds()


def test_a_module_in_training_mode_has_no_backends(module: Two) -> None:
    assert not list(contenders(module.train(), ARGUMENTS, 1))


def test_a_module_that_returns_more_than_tensors_has_no_backends() -> None:
    class Counts(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, int]:
            return x, 3

    assert not list(contenders(Counts().eval(), ((torch.ones(2),), {}), 1))


def test_other_answers_than_the_modules_are_refused(module: Two) -> None:
    flat = FlatModule(module, ARGUMENTS)

    def wrong(tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        return [found + 0.01 for found in flat(*tensors)]

    with torch.no_grad():
        flat.call(lambda tensors: flat(*tensors))
        with pytest.raises(CaptureError, match="differ"):
            flat.call(wrong)


def test_an_optimised_call_follows_its_parameters_whatever_runs_it(module: Two) -> None:
    args, kwargs = ARGUMENTS
    with closing(threadcast.optimize(module, cores=1)) as call, torch.no_grad():
        call(*args, **kwargs)
        while any(report.runs == "measuring" for report in call.reports):
            torch.testing.assert_close(call(*args, **kwargs)["y"], module(*args, **kwargs)["y"], rtol=1e-4, atol=1e-5)
        module.mix.weight.mul_(2)
        for _ in range(3):
            torch.testing.assert_close(call(*args, **kwargs)["y"], module(*args, **kwargs)["y"], rtol=1e-4, atol=1e-5)
