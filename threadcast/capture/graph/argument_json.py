"""Operator arguments as JSON, so that an op's identity holds all that its work depends on, and can be run from it.

{"t": i} is the op's input number i, a tensor; {"number": i} is the number that this input holds as its one element.
Scalars, strings, None and lists are themselves. A torch dtype, device, layout or memory format is {"dtype": "float32"}
and so on. A float that JSON lacks is {"float": "inf"}, a complex number {"complex": "1j"}.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from threadcast.capture.graph.sizes import Size
from threadcast.capture.graph.values import AsNumber, Ref
from threadcast.core.errors import CaptureError, FormatError

_NAMED = {"dtype": torch.dtype, "layout": torch.layout, "memory_format": torch.memory_format}


def encode(value: Any, positions: dict[Any, int]) -> Any:
    """An argument as a JSON value; CaptureError for a type that cannot be recorded.

    `positions` maps the object that represents a tensor to its number among the op's inputs.
    """
    if isinstance(value, Size):
        return int(value)
    if isinstance(value, bool | int | str) or value is None:
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"float": str(value)}
    if isinstance(value, complex):
        return {"complex": repr(value)}
    if isinstance(value, AsNumber):
        return {"number": positions[value.ref]}
    if value.__hash__ is not None and value in positions:
        return {"t": positions[value]}
    if isinstance(value, list | tuple):
        return [encode(part, positions) for part in value]
    if isinstance(value, torch.device):
        return {"device": str(value)}
    for name, kind in _NAMED.items():
        if isinstance(value, kind):
            return {name: str(value).removeprefix("torch.")}
    raise CaptureError(f"an operator argument of type {type(value).__name__} cannot be recorded: {value!r}")


def decode(document: Any, tensors: list[Any]) -> Any:
    """Read what `encode` wrote, with `tensors[i]` for {"t": i}; FormatError on anything else."""
    if isinstance(document, list):
        return [decode(part, tensors) for part in document]
    if not isinstance(document, dict):
        return document
    name, value = next(iter(document.items())) if len(document) == 1 else ("", None)
    if name == "t" and isinstance(value, int) and 0 <= value < len(tensors):
        return tensors[value]
    if name == "number" and isinstance(value, int) and 0 <= value < len(tensors):
        given = tensors[value]
        return AsNumber(given) if isinstance(given, Ref) else given.item()
    if name == "float" and isinstance(value, str):
        return float(value)
    if name == "complex" and isinstance(value, str):
        return complex(value)
    if name == "device" and isinstance(value, str):
        return torch.device(value)
    if name in _NAMED and isinstance(found := getattr(torch, str(value), None), _NAMED[name]):
        return found
    raise FormatError(f"{document!r} is no operator argument")
