"""Programs are found in a file of tests as PyTorch's are, and what differs from eager PyTorch is seen."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.programs.judge import WAYS, Judge, Way, _ByRandomPlans
from tests.programs.pytorch_tests import Program, Source, programs
from tests.runtime.random_engines import random_engines

TESTS = """
import torch
from torch.testing._internal.common_utils import TestCase
from torch.testing import no_such_decorator


class Small:
    def test_checked(self):
        x = torch.arange(6.0).view(2, 3)
        self.common(lambda x, y: (x.sin() + 1).relu() * y, (x.t(), x[0, :2]))

    @no_such_decorator
    def test_compiled(self):
        def function(x, y):
            x.mul_(2)
            return x + y, x.t()

        x = torch.ones(3, 3)
        found = torch.compile(function)(x, torch.ones(3))
        self.assertEqual(found[0], x + 1)

    def test_module_with_gradients(self):
        layers = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.ReLU())
        self.common(layers, (torch.randn(5, 3, requires_grad=True),), check_gradient=True)

    def test_of_an_error(self):
        torch.compile(lambda x: x.view(7))(torch.zeros(3))
"""
SOURCE = Source("test/small_programs.py", "Small", "common")
NAMES = ("test_checked 0", "test_compiled 0", "test_module_with_gradients 0", "test_of_an_error 0")


@pytest.fixture
def found(tmp_path: Path) -> Iterator[dict[str, Program]]:
    (tmp_path / "test").mkdir()
    (tmp_path / SOURCE.path).write_text(TESTS)
    yield {program.name.removeprefix("small_programs "): program for program in programs(tmp_path, SOURCE)}
    sys.modules.pop("small_programs", None)


@pytest.fixture(scope="module")
def judge() -> Iterator[Judge]:
    with random_engines(2) as engines:
        yield Judge(engines)


def test_what_tests_check_and_compile_is_noted(found: dict[str, Program]) -> None:
    assert tuple(found) == NAMES


def test_arguments_are_made_anew_with_their_strides_and_shared_memory(found: dict[str, Program]) -> None:
    first, second = found["test_checked 0"].make(), found["test_checked 0"].make()
    x, row = first.given
    assert x.stride() == (1, 3)
    x.fill_(7.0)
    assert row.eq(7.0).all()
    assert second.given[1].tolist() == [0.0, 1.0]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", NAMES)
def test_programs_are_judged(name: str, way: Way, found: dict[str, Program], judge: Judge) -> None:
    outcome = judge(found[name], way)
    if name == "test_of_an_error 0":
        assert outcome.status == "eager cannot"
    elif way == "graphs" or (way in ("gradients", "short way") and name == "test_module_with_gradients 0"):
        assert outcome.status == "right", outcome
    else:
        assert outcome.status in ("right", "refused", "eager cannot"), outcome


def test_wrong_results_are_different(found: dict[str, Program], judge: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    run = _ByRandomPlans.__call__

    def wrong(self: _ByRandomPlans, *arguments: object) -> object:
        return [value + 1 if isinstance(value, torch.Tensor) else value for value in run(self, *arguments)]

    monkeypatch.setattr(_ByRandomPlans, "__call__", wrong)
    for name in NAMES[:3]:
        assert judge(found[name], "graphs").status == "different"
