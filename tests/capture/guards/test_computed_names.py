"""Code that sets attributes by names that it computes is refused, and leaves no fake tensor behind."""

from __future__ import annotations

from collections.abc import Callable
from operator import is_
from typing import Any

import pytest
import torch
from torch import Tensor

from threadcast.capture.graph.capture import capture_forward
from threadcast.capture.guards.module_values import ModuleChanged


class Meter:
    """Keeps values by names."""

    def __init__(self, **values: Any) -> None:
        self.update(**values)

    def update(self, **values: Any) -> None:
        for name, value in values.items():
            setattr(self, name, value)


class InTables(Meter):
    def update(self, **values: Any) -> None:
        vars(self).update(values)


class Taking(Meter):
    def drop(self, names: str) -> None:
        for name in names.split():
            delattr(self, name)


def updated(meter: Meter) -> Callable[[Tensor], Tensor]:
    def function(x: Tensor) -> Tensor:
        y = x * 2
        meter.update(last=y, largest=y.max())
        return y

    return function


def without(meter: Taking) -> Callable[[Tensor], Tensor]:
    def function(x: Tensor) -> Tensor:
        meter.drop("first")
        return x * 2

    return function


@pytest.mark.parametrize("kind", [Meter, InTables])
@pytest.mark.parametrize("before", [{}, {"last": torch.ones(3)}, {"largest": 2, "last": 3}])
def test_attributes_set_by_computed_names_are_refused_and_put_back(kind: type[Meter], before: dict[str, Any]) -> None:
    meter = kind(**before)
    with pytest.raises(ModuleChanged, match=r"meter\.la(st|rgest) \(a variable of function\) is set in every call"):
        capture_forward(updated(meter), torch.ones(3))
    assert list(vars(meter)) == list(before)
    assert all(vars(meter)[name] is value for name, value in before.items())


def test_an_attribute_deleted_by_a_computed_name_is_put_back() -> None:
    first, second = torch.ones(3), torch.zeros(3)
    meter = Taking(first=first, second=second)
    with pytest.raises(ModuleChanged, match=r"meter\.first \(a variable of function\) is set"):
        capture_forward(without(meter), torch.ones(3))
    assert list(vars(meter)) == ["first", "second"]
    assert all(map(is_, vars(meter).values(), (first, second)))


def test_attributes_that_no_code_names_do_not_matter_where_they_stay() -> None:
    class Held:
        def __init__(self) -> None:
            self.factor, self.other = 3.0, [torch.ones(2)]

    held = Held()
    captured = capture_forward(lambda x: x * held.factor, torch.ones(3))
    assert captured.run(torch.full((3,), 2.0)).tolist() == [6.0] * 3
