"""A value has the name by which a user reaches it."""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import Any, ClassVar, NoReturn

import pytest
from torch import nn

from threadcast.capture.guards.value_names import name_of

TABLE: dict[Any, Any] = {"deep": [{"n": 1}]}


class Strange(list[Any]):
    """Cannot be walked through, or shown."""

    def __iter__(self) -> NoReturn:
        raise RuntimeError("not now")

    def __repr__(self) -> NoReturn:
        raise RuntimeError("nor this")

    __hash__ = object.__hash__  # type: ignore[assignment]


class Holder:
    shared: ClassVar[list[int]] = []

    def __init__(self) -> None:
        self.options: dict[Any, Any] = {"rates": deque([[0.1]]), 3: [], Strange(): [2]}
        self.strange = Strange([[1]])

    def loss(self) -> Any:
        return self.options, self.shared, TABLE


class Model(nn.Module):
    def __init__(self, holder: Holder) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.ReLU(), nn.Linear(2, 2))
        self.holder = holder


def variable() -> Any:
    seen: list[int] = []
    return (lambda: seen), seen


HOLDER = Holder()
MODEL = Model(HOLDER)
FUNCTION, SEEN = variable()


@pytest.mark.parametrize(
    ("root", "holder", "key", "name"),
    [
        (MODEL, vars(MODEL.layers[1]), "in_features", "Model.layers.1.in_features"),
        (MODEL, MODEL.layers[1]._parameters, "bias", "Model.layers.1.bias"),
        (MODEL, MODEL.layers._modules, "0", "Model.layers.0"),
        (MODEL, HOLDER.options, "rates", "Model.holder.options['rates']"),
        (HOLDER.loss, HOLDER.options["rates"][0], None, "Holder.options['rates'][0]"),
        (HOLDER.loss, HOLDER.strange[0], None, "Holder.strange[0]"),
        (HOLDER.loss, HOLDER.shared, None, "Holder.shared"),
        (HOLDER.loss, TABLE["deep"][0], "n", f"{__name__}.TABLE['deep'][0]['n']"),
        (HOLDER.loss, globals(), "TABLE", f"{__name__}.TABLE"),
        (partial(FUNCTION), SEEN, None, "seen (a variable of <lambda>)"),
        (FUNCTION, [], None, None),
    ],
)
def test_a_value_has_the_name_by_which_a_user_reaches_it(root: Any, holder: Any, key: Any, name: str | None) -> None:
    assert name_of((root,), holder, key) == name


def test_what_cannot_be_shown_has_a_short_name() -> None:
    found = name_of((HOLDER.loss,), next(value for key, value in HOLDER.options.items() if isinstance(key, Strange)))
    assert found is not None
    assert found.startswith("Holder.options[<Strange instance at ")
