"""A program with an `assert` as Python runs it: in tests themselves pytest writes them anew, with texts of its own."""

from __future__ import annotations

from typing import Any

from torch import Tensor


def asserting(module: Any, x: Tensor) -> Tensor:
    assert x.sum() > -1, "the rows are below 0"
    result: Tensor = module.layer(x)
    return result
