"""Operator arguments as JSON are read as what was written."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch

from threadcast.capture.graph.values import decode, encode


@pytest.mark.parametrize(
    "value",
    [1j, 2 - 3.5j, complex(0.0, -0.0), math.inf, [1, None, "sum"], torch.float16, torch.device("cpu")],
    ids=repr,
)
def test_an_argument_is_read_as_it_was_written(value: Any) -> None:
    found = decode(json.loads(json.dumps(encode(value, {}))), [])
    assert (type(found), repr(found)) == (type(value), repr(value))
