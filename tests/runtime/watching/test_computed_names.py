"""Names that code computes count for classes, modules and global variables too."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.runtime.watching.test_unnoticed_changes import follows
from threadcast.capture.python_state import PythonState

pytestmark = pytest.mark.usefixtures("one_thread")

GAMMA, UNREAD = 1.0, 1.0
SETTINGS = {"name": "second"}


@dataclass
class Choice:
    """Which function a model takes."""

    kind: str


CHOICE = Choice("focal")


def first_scaled(x: Tensor) -> Tensor:
    return x * 2


def second_scaled(x: Tensor) -> Tensor:
    return x * GAMMA


def focal(x: Tensor) -> Tensor:
    return x * GAMMA


class Tempered(nn.Module):
    """Has an attribute of its class, and a method, for each kind."""

    temperature_a = 1.0

    def __init__(self) -> None:
        super().__init__()
        self.kind = "a"

    def forward(self, x: Tensor) -> Any:
        return x * getattr(self, "temperature_" + self.kind) * getattr(self, f"factor_{self.kind}")()

    def factor_a(self) -> float:
        return GAMMA


LOSSES = ModuleType("losses")
exec(
    "GAMMA = 1.0\ndef focal_loss(x): return x * GAMMA\ndef focal(x): return x * GAMMA * 2",
    vars(LOSSES),
)
WAYS: dict[str, Callable[[Tensor], Any]] = {
    "f-string": lambda x: getattr(LOSSES, f"{CHOICE.kind}_loss")(x),
    "sum": lambda x: getattr(LOSSES, CHOICE.kind + "_loss")(x),
    "percent": lambda x: getattr(LOSSES, "%s_loss" % CHOICE.kind)(x),  # noqa: UP031
    "format": lambda x: getattr(LOSSES, "{}_loss".format(CHOICE.kind))(x),  # noqa: UP032
    "name": lambda x: getattr(LOSSES, CHOICE.kind)(x),
    "dictionary": lambda x: vars(LOSSES)[f"{CHOICE.kind}_loss"](x),
}


@pytest.mark.parametrize("way", WAYS)
def test_what_a_function_reads_whose_name_is_computed_is_watched(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    follows(WAYS[way], lambda: monkeypatch.setattr(LOSSES, "GAMMA", 3.0), torch.ones(3))


def test_attributes_and_methods_of_a_class_whose_names_are_computed_are_watched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    follows(Tempered(), lambda: monkeypatch.setattr(Tempered, "temperature_a", 3.0), torch.ones(3))
    follows(Tempered(), lambda: monkeypatch.setitem(globals(), "GAMMA", 3.0), torch.ones(3))


def test_an_attribute_of_a_class_that_only_a_call_names_is_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    state = PythonState([Tempered(), lambda model, name: getattr(model, name)])
    monkeypatch.setattr(Tempered, "temperature_a", 3.0)
    assert state.changed() is not None


GLOBALS: dict[str, Callable[[Tensor], Any]] = {
    "globals": lambda x: globals()[SETTINGS["name"] + "_scaled"](x),
    "eval": lambda x: eval(f"{SETTINGS['name']}_scaled")(x),
    "module": lambda x: getattr(sys.modules[__name__], f"{SETTINGS['name']}_scaled")(x),
}


@pytest.mark.parametrize("way", GLOBALS)
def test_global_variables_whose_names_are_computed_are_watched(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    read = GLOBALS[way]
    follows(read, lambda: monkeypatch.setitem(globals(), "GAMMA", 3.0), torch.ones(3))
    follows(read, lambda: monkeypatch.setitem(globals(), "second_scaled", first_scaled), torch.ones(3))


def test_global_variables_that_no_text_names_may_change_in_each_call(monkeypatch: pytest.MonkeyPatch) -> None:
    state = PythonState([GLOBALS["globals"], GLOBALS["module"], Tempered()])
    monkeypatch.setitem(globals(), "UNREAD", 3.0)
    assert state.changed() is None
