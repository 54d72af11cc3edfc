"""A value that has changed is called by the name by which a user reaches it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, NoReturn

import pytest
from torch import nn

from threadcast.capture.guards.python_state import PythonState

TABLE: dict[Any, Any] = {"deep": [{"n": 1}]}


class Strange(list[Any]):
    """Cannot be shown."""

    def __repr__(self) -> NoReturn:
        raise RuntimeError("not now")

    __hash__ = object.__hash__  # type: ignore[assignment]


KEY = Strange()


class Holder:
    shared: ClassVar[list[int]] = []

    def __init__(self) -> None:
        self.options: dict[Any, Any] = {"rates": deque([[0.1]]), 3: [], KEY: [2]}
        self.strange = Strange([[1]])

    def loss(self) -> Any:
        return self.options, self.shared, self.strange, TABLE


class Model(nn.Module):
    def __init__(self, holder: Holder) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.ReLU(), nn.Linear(2, 2))
        self.holder = holder

    def forward(self) -> Any:
        return self.layers, self.holder.options


def variable(seen: Any) -> Any:
    return lambda: seen


HOLDER = Holder()
MODEL: Any = Model(HOLDER)
SEEN: list[int] = []


@pytest.mark.parametrize(
    ("root", "change", "name"),
    [
        (MODEL, lambda: setattr(MODEL.layers[1], "in_features", 7), "Model.layers.1.in_features"),
        (HOLDER.loss, lambda: HOLDER.options["rates"][0].append(0.2), "Holder.options['rates'][0]"),
        (MODEL, lambda: HOLDER.options.update(rates=deque([[0.2]])), "Model.holder.options['rates']"),
        (HOLDER.loss, lambda: HOLDER.strange[0].append(2), "Holder.strange[0]"),
        (HOLDER.loss, lambda: HOLDER.shared.append(1), "Holder.shared"),
        (HOLDER.loss, lambda: TABLE["deep"][0].update(n=2), f"{__name__}.TABLE['deep'][0]['n']"),
        (HOLDER.loss, lambda: globals().update(TABLE={}), f"{__name__}.TABLE"),
        (HOLDER.loss, lambda: HOLDER.options[KEY].append(3), "Holder.options[<Strange instance at "),
        (partial(variable(SEEN)), lambda: SEEN.append(1), "seen (a variable of <lambda>)"),
    ],
)
def test_a_value_has_the_name_by_which_a_user_reaches_it(root: Any, change: Callable[[], Any], name: str) -> None:
    state = PythonState([root])
    assert state.changed() is None
    change()
    assert (state.changed() or "").startswith(name)


def test_tensors_and_layers_that_a_module_holds_have_names() -> None:
    state = PythonState([MODEL])
    assert state.name_of(MODEL.layers[1], "bias") == "Model.layers.1.bias"
    assert state.name_of(MODEL.layers, "0") == "Model.layers.0"
    assert state.name_of(nn.ReLU(), "bias") is None


def test_a_function_that_layers_call_may_be_exchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    state = PythonState([MODEL])
    monkeypatch.setattr(nn.functional, "relu", nn.functional.tanh)
    assert state.changed() == "torch.nn.functional.relu"
    monkeypatch.undo()
    assert state.changed() is None
