"""Code that sets attributes by names that it computes is refused, and leaves no fake tensor behind."""

from __future__ import annotations

from collections.abc import Callable
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


class Deleting(Meter):
    def update(self, **values: Any) -> None:
        for name in values if vars(self) else ():
            if hasattr(self, name):
                delattr(self, name)
        super().update(**values)


def updated(meter: Meter) -> Callable[[Tensor], Tensor]:
    def function(x: Tensor) -> Tensor:
        y = x * 2
        meter.update(last=y, largest=y.max())
        return y

    return function


@pytest.mark.parametrize("kind", [Meter, InTables, Deleting])
@pytest.mark.parametrize("before", [{}, {"last": torch.ones(3)}, {"largest": 2, "last": 3}])
def test_attributes_set_by_computed_names_are_refused_and_put_back(kind: type[Meter], before: dict[str, Any]) -> None:
    meter = kind(**before)
    with pytest.raises(ModuleChanged, match=r"meter\.la(st|rgest) \(a variable of function\) is set in every call"):
        capture_forward(updated(meter), torch.ones(3))
    assert list(vars(meter)) == list(before)
    assert all(vars(meter)[name] is value for name, value in before.items())
