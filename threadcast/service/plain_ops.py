"""Reads ops whose tensors are all contiguous float32, and which say their cost: what clients send by the thousand."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import chain, compress, islice, repeat
from math import prod
from types import MappingProxyType
from typing import Any, Final

import orjson

from threadcast.core.op import KEY_VERSION, Op
from threadcast.core.tensor import MAX_ELEMENTS, TensorSpec

MOST_SIDES = 64
"""Most sides of a tensor; documents with more are read the long way."""

_MEMBERS = frozenset({"kind", "inputs", "outputs", "flops", "bytes"})
_NUMBERS = frozenset({int, float})
_NO_ATTRIBUTES: Final = MappingProxyType[str, Any]({})
_OP: Any = Op
_SPEC: Any = TensorSpec
_NONE: Final[list[Any]] = []


def plain_ops(documents: Any, *, most_work: float) -> list[Op] | None:
    """The ops that `Op.from_json` would return for each document of a list, in less time; None where there are none, or
    where one of them is in any but the plainest form.

    That is an object with `kind`, `inputs`, `outputs` (or none), `flops` and `bytes` alone, both at most `most_work`,
    whose tensors are `[shape]`. None says nothing about whether the documents are right. What is looked at is looked at
    in all of them at once, by calls that loop in C.
    """
    if type(documents) is not list or set(map(type, documents)) != {dict}:
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
        for kind, text in zip(kinds, _texts(inputs), strict=True)
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


def _texts(inputs: Sequence[list[Any]]) -> list[str]:
    """The JSON texts of lists of `[shape]`, without spaces."""
    given = list(compress(inputs, inputs))
    # "]]],[[[" is where one list ends and the next one begins: both have a tensor
    texts = iter(orjson.dumps(given).decode()[4:-4].split("]]],[[["))
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
