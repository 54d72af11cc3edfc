"""Containers of users' classes, private slots, and packages called as a module of the standard library are watched."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from tests.runtime.watching.test_called_by_pytorch import is_noticed
from tests.runtime.watching.test_unnoticed_changes import follows
from threadcast.capture.guards.libraries import is_library
from threadcast.capture.guards.python_state import PythonState

pytestmark = pytest.mark.usefixtures("one_thread")

GAIN = 1.0


class Schedule(dict[str, float]):
    """A dictionary with an attribute and a method that reads a global variable."""

    gain = 1.0

    def scaled(self, x: Any) -> Any:
        return x * self["rate"] * self.gain * GAIN


class Window(list[float]):
    """As `Schedule`, a list."""

    gain = 1.0

    def scaled(self, x: Any) -> Any:
        return x * self.gain * GAIN


class Weights(NamedTuple):
    """As `Schedule`, a tuple with names."""

    rate: float = 1.0
    gain: float = 1.0

    def scaled(self, x: Any) -> Any:
        return x * self.rate * self.gain * GAIN


class Marks(np.ndarray[Any, Any]):
    """As `Schedule`, an array."""

    gain = 1.0

    def scaled(self, x: Any) -> Any:
        return x * self.gain * GAIN


@pytest.mark.parametrize(
    "owner",
    [Schedule(rate=1.0), Window([1.0]), Weights(), np.ones(2).view(Marks)],
    ids=lambda owner: type(owner).__name__,
)
def test_attributes_and_methods_of_containers_are_read(owner: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    follows(lambda x: owner.scaled(x), lambda: monkeypatch.setitem(globals(), "GAIN", 3.0), torch.ones(3))
    if not isinstance(owner, tuple):
        follows(lambda x: owner.scaled(x), lambda: setattr(owner, "gain", 3.0), torch.ones(3))
    follows(
        lambda x: owner.scaled(x),
        lambda: monkeypatch.setattr(type(owner), "scaled", lambda self, x: x * 5),
        torch.ones(3),
    )


class Items(dict[str, float]):
    """Makes the dictionary of its attributes anew each time, as `munch.Munch` does."""

    @property
    def __dict__(self) -> dict[str, float]:  # type: ignore[override]
        return dict(self)

    def __getattr__(self, name: str) -> float:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


class Remade:
    """As `Items`, no dictionary itself."""

    @property
    def __dict__(self) -> dict[str, float]:  # type: ignore[override]
        return {"gain": 1.0}


def test_attributes_that_are_made_anew_each_time_are_watched_as_items_or_refused() -> None:
    owner, remade = Items(gain=1.0), Remade()
    follows(lambda x: x * owner.gain, lambda: owner.update(gain=3.0), torch.ones(3))
    assert is_noticed(lambda x: x * owner.gain, lambda: owner.update(gain=1.0))
    assert PythonState([lambda x: x * vars(remade)["gain"]]).unwatchable is not None


class Config:
    """Its attributes are the items of a dictionary; others raise KeyError."""

    def __init__(self, **items: float) -> None:
        self._items = items

    def __getattr__(self, name: str) -> float:
        return self._items[name]


class Slotted:
    """As `Config`, with slots of which one has no value at first, and a call."""

    __slots__ = ("_items", "gain")

    def __init__(self, **items: float) -> None:
        self._items = items

    def __getattr__(self, name: str) -> float:
        return self._items[name]

    def __call__(self, x: Any) -> Any:
        return x * self.gain


class Configured(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.config = Config(gain=1.0)

    def forward(self, x: Any) -> Any:
        return x * self.config.gain


def test_attributes_that_raise_other_errors_where_they_are_missing_are_watched() -> None:
    model, slotted = Configured(), Slotted(gain=1.0)
    follows(model, lambda: model.config._items.update(gain=3.0), torch.ones(3))
    follows(lambda x: x * slotted.gain, lambda: slotted._items.update(gain=3.0), torch.ones(3))
    follows(slotted, lambda: setattr(slotted, "gain", 5.0), torch.ones(3))


class Hidden:
    """Its only attribute is private, in a slot."""

    __slots__ = ("__gain",)

    def __init__(self) -> None:
        self.set(1.0)

    def set(self, gain: float) -> None:
        self.__gain = gain

    def scaled(self, x: Any) -> Any:
        return x * self.__gain


def test_private_slots_are_read() -> None:
    owner = Hidden()
    follows(lambda x: owner.scaled(x), lambda: owner.set(3.0), torch.ones(3))


@pytest.mark.parametrize("package", [True, False], ids=["package", "folder without __init__"])
def test_a_package_of_the_user_with_a_name_of_the_standard_library_is_read(
    package: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "code").mkdir()
    if package:
        (tmp_path / "code" / "__init__.py").touch()
    (tmp_path / "code" / "model.py").write_text("GAIN = 1.0\ndef scaled(x):\n    return x * GAIN\n")
    before = {name: sys.modules.pop(name, None) for name in ("code", "code.model")}
    try:
        monkeypatch.syspath_prepend(tmp_path)
        if not package:  # the standard library's module would come first
            sys.modules["code"] = ModuleType("code")
            sys.modules["code"].__path__ = [str(tmp_path / "code")]
        model = importlib.import_module("code.model")
        follows(lambda x: model.scaled(x), lambda: setattr(model, "GAIN", 3.0), torch.ones(3))
    finally:
        for name, module in before.items():
            sys.modules.pop(name, None)
            if module is not None:
                sys.modules[name] = module


def test_modules_of_the_standard_library_are_told_wherever_they_lie() -> None:
    assert all(
        map(is_library, ("json", "json.decoder", "math", "sys", "os", "_ctypes", "builtins", "torch.nn", "numpy"))
    )
    assert not any(map(is_library, ("__main__", __name__, "transformers", None)))
