"""Reads ops whose tensors are all contiguous float32, and which say their cost: what clients send by the thousand."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from math import prod
from types import MappingProxyType
from typing import Any, Final

from threadcast.core.op import KEY_VERSION, Op
from threadcast.core.tensor import MAX_ELEMENTS, TensorSpec

MOST_SIDES = 64
"""Most sides of a tensor; documents with more are read the long way."""

_MEMBERS = frozenset({"kind", "inputs", "outputs", "flops", "bytes"})
_NUMBERS = frozenset({int, float})
_NO_ATTRIBUTES: Final = MappingProxyType[str, Any]({})
_set = object.__setattr__


def plain_op(document: Any, *, most_work: float) -> Op | None:
    """The op that `Op.from_json` would return, in less time; None for a document in any but the plainest form.

    That is an object with `kind`, `inputs`, `outputs` (or none), `flops` and `bytes` alone, both at most `most_work`,
    whose tensors are `[shape]`. None says nothing about whether the document is right.
    """
    if type(document) is not dict or not document.keys() <= _MEMBERS:
        return None
    kind: Any = document.get("kind")
    flops: Any = document.get("flops")
    moved: Any = document.get("bytes")
    if type(kind) is not str or type(flops) not in _NUMBERS or type(moved) not in _NUMBERS:
        return None
    start = _start_of_key(kind)
    if not (start and 0 <= flops <= most_work and 0 <= moved <= most_work):
        return None
    listed = document.get("inputs", [])
    inputs, outputs = _specs(listed), _specs(document.get("outputs", []))
    if inputs is None or outputs is None:
        return None
    text = f"{start}{str(list(listed)).replace(' ', '')},{{}}]"
    op = object.__new__(Op)
    _set(op, "kind", kind)
    _set(op, "inputs", inputs)
    _set(op, "attributes", _NO_ATTRIBUTES)
    _set(op, "outputs", outputs)
    _set(op, "flops", float(flops))
    _set(op, "bytes_moved", float(moved))
    _set(op, "key", f"{kind}-{hashlib.sha256(text.encode()).hexdigest()[:16]}")
    return op


@lru_cache(maxsize=1_000)
def _start_of_key(kind: str) -> str:
    """The text of a key up to the inputs; empty for kinds that are written otherwise in JSON than here."""
    plain = 0 < len(kind) <= 200 and kind.isascii() and kind.isprintable() and not set(kind) & set('"\\')
    return f'[{KEY_VERSION},"{kind}",' if plain else ""


def _specs(listed: Any) -> tuple[TensorSpec, ...] | None:
    """The tensors of a list of `[shape]`; None for other lists."""
    if type(listed) is not list:
        return None
    found = []
    for entry in listed:
        if type(entry) is not list or len(entry) != 1:
            return None
        shape = entry[0]
        if type(shape) is not list or len(shape) > MOST_SIDES:
            return None
        for side in shape:
            if type(side) is not int or not 0 <= side <= MAX_ELEMENTS:
                return None
        if prod(shape) > MAX_ELEMENTS:
            return None
        spec = object.__new__(TensorSpec)
        _set(spec, "shape", tuple(shape))
        _set(spec, "dtype", "float32")
        _set(spec, "strides", None)
        found.append(spec)
    return tuple(found)
