"""Reads ops whose tensors are all contiguous float32, and which say their cost: what clients send by the thousand."""

from __future__ import annotations

import hashlib
import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import chain, compress, islice, repeat
from math import prod
from types import MappingProxyType
from typing import Any, Final

from threadcast.core.op import KEY_VERSION, Op
from threadcast.core.tensor import MAX_ELEMENTS, TensorSpec

MOST_SIDES = 64
"""Most sides of a tensor; documents with more are read the long way."""

MANY = 16
"""Ops from which on reading them together takes less time than one by one."""

_MEMBERS = frozenset({"kind", "inputs", "outputs", "flops", "bytes"})
_NUMBERS = frozenset({int, float})
_NO_ATTRIBUTES: Final = MappingProxyType[str, Any]({})
_set = object.__setattr__
_OP: Any = Op
_SPEC: Any = TensorSpec
_NONE: Final[list[Any]] = []
_COMPACT = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode


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


def plain_ops(documents: Any, *, most_work: float, compact: Callable[[Any], str | bytes] = _COMPACT) -> list[Op] | None:
    """The ops that `plain_op` would return for each document of a list, in less than half of the time; None where there
    are fewer than `MANY`, or where one of them is not of the plainest form.

    What is looked at is looked at in all documents at once, by calls that loop in C. `compact` returns the JSON text,
    without spaces, of lists of numbers.
    """
    if type(documents) is not list or len(documents) < MANY or set(map(type, documents)) != {dict}:
        return None
    try:
        kinds = [document["kind"] for document in documents]
        flops = [document["flops"] for document in documents]
        moved = [document["bytes"] for document in documents]
    except KeyError:
        return None
    inputs = [document.get("inputs", _NONE) for document in documents]
    outputs = [document.get("outputs", _NONE) for document in documents]
    if not set(chain.from_iterable(documents)) <= _MEMBERS or set(map(type, kinds)) != {str}:
        return None
    starts = {kind: _start_of_key(kind) for kind in set(kinds)}
    costs = _numbers_up_to(most_work, flops), _numbers_up_to(most_work, moved)
    tensors = _all_specs(inputs, outputs)
    if not all(starts.values()) or costs[0] is None or costs[1] is None or tensors is None:
        return None
    keys = [
        f"{kind}-{hashlib.sha256(f'{starts[kind]}{text},{{}}]'.encode()).hexdigest()[:16]}"
        for kind, text in zip(kinds, _texts(inputs, compact), strict=True)
    ]
    specs = iter(tensors)
    return _made(_OP, len(documents), {
        "kind": kinds, "inputs": _grouped(specs, inputs), "attributes": repeat(_NO_ATTRIBUTES),
        "outputs": _grouped(specs, outputs), "flops": costs[0], "bytes_moved": costs[1], "key": keys,
    })  # fmt: skip


def _made(kind: Any, count: int, members: dict[str, Iterable[Any]]) -> list[Any]:
    """So many objects of a frozen class with slots, without its checks."""
    made = list(map(object.__new__, repeat(kind, count)))
    for name, values in members.items():
        deque(map(getattr(kind, name).__set__, made, values), maxlen=0)
    return made


def _grouped(specs: Iterator[TensorSpec], like: Sequence[list[Any]]) -> list[tuple[TensorSpec, ...]]:
    """The next tensors, as many in each group as in each of the lists."""
    counts = list(map(len, like))
    if set(counts) == {counts[0]} != {0}:
        return list(islice(zip(*[specs] * counts[0], strict=False), len(counts)))
    return [tuple(islice(specs, count)) for count in counts]


def _numbers_up_to(most: float, given: list[Any]) -> list[float] | None:
    """The numbers as floats; None where one is no number from 0 to `most`."""
    if not set(map(type, given)) <= _NUMBERS or not all(0 <= number <= most for number in given):
        return None
    return list(map(float, given))


def _all_specs(*lists: list[Any]) -> list[TensorSpec] | None:
    """The tensors of lists of lists of `[shape]`, one after the other; None for other lists."""
    for listed in lists:
        if set(map(type, listed)) != {list}:
            return None
    entries = list(chain.from_iterable(chain(*lists)))
    if not set(map(type, entries)) <= {list} or not set(map(len, entries)) <= {1}:
        return None
    shapes = list(chain.from_iterable(entries))
    longest = max(map(len, shapes), default=0) if set(map(type, shapes)) <= {list} else MOST_SIDES + 1
    if longest > MOST_SIDES:
        return None
    sides = list(chain.from_iterable(shapes))
    if not set(map(type, sides)) <= {int} or min(sides, default=0) < 0:
        return None
    largest = max(sides, default=0)
    if largest > MAX_ELEMENTS or (largest**longest > MAX_ELEMENTS and max(map(prod, shapes)) > MAX_ELEMENTS):
        return None
    return _made(_SPEC, len(shapes), {
        "shape": map(tuple, shapes), "dtype": repeat("float32"), "strides": repeat(None)
    })  # fmt: skip


def _texts(inputs: Sequence[list[Any]], compact: Callable[[Any], str | bytes]) -> list[str]:
    """The JSON texts of lists of `[shape]`, without spaces."""
    given = list(compress(inputs, inputs))
    text = compact(given)
    # "]]],[[[" is where one list ends and the next one begins: both have a tensor
    texts = iter((text if isinstance(text, str) else text.decode())[4:-4].split("]]],[[["))
    return [f"[[[{next(texts)}]]]" if listed else "[]" for listed in inputs]


@lru_cache(maxsize=1_000)
def _start_of_key(kind: str) -> str:
    """The text of a key up to the inputs; empty for kinds that are written otherwise in JSON than here."""
    plain = (
        0 < len(kind) <= 200
        and kind == kind.strip()
        and kind.isascii()
        and kind.isprintable()
        and not set(kind) & set('"\\')
    )
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
