"""`torch.compile(model, backend="threadcast")` runs inference by plans, with eager PyTorch's results."""

from __future__ import annotations

import tomllib
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.runtime.compiled.running import run_until_settled, runners
from tests.runtime.small_training import batch, net
from threadcast.runtime.doors.compile_backend import backend

pytestmark = [
    pytest.mark.usefixtures("one_thread", "plans_win"),
    pytest.mark.filterwarnings("ignore:The .grad attribute"),  # of Dynamo's own look at inputs
]


def close(found: Any, wanted: Any) -> None:
    torch.testing.assert_close(found, wanted, rtol=1e-8, atol=1e-10)


def test_the_package_declares_its_backend_where_pytorch_looks_for_it():
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    module, name = project["entry-points"]["torch_dynamo_backends"]["threadcast"].split(":")
    assert getattr(import_module(module), name) is backend


def test_convolutions_in_branches_run_by_a_plan_with_eager_results():
    model = net().eval()
    compiled = torch.compile(model, backend="threadcast")
    with torch.no_grad():
        run_until_settled(lambda seed: close(compiled(batch(seed)[0]), model(batch(seed)[0])))
    assert runners() == {"inference": ["plan"]}


def test_weights_are_inputs_of_every_call():
    model = nn.Linear(4, 2).eval()
    compiled = torch.compile(model, backend="threadcast")
    x = torch.randn(3, 4)
    with torch.no_grad():
        run_until_settled(lambda _: torch.testing.assert_close(compiled(x), model(x)))
        model.weight.mul_(2)
        torch.testing.assert_close(compiled(x), model(x))
        model.weight.data = torch.ones(2, 4)
        torch.testing.assert_close(compiled(x), model(x))
        model.weight = nn.Parameter(torch.zeros(2, 4))
        assert torch.equal(compiled(x), model.bias.expand(3, 2))


def test_results_of_one_call_stay_when_the_next_one_runs():
    compiled = torch.compile(lambda x: (x * 2, (x + 1).view(2, 8)), backend="threadcast")
    kept = []
    run_until_settled(lambda i: kept.append(compiled(torch.full((16,), float(i)))))
    for i, (double, more) in enumerate(kept):
        assert torch.equal(double, torch.full((16,), 2.0 * i))
        assert torch.equal(more, torch.full((2, 8), i + 1.0))
    assert runners() == {"inference": ["plan"]}
