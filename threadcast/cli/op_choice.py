"""Ops as users speak of them: by the name and the sizes that their own table has, or by kind."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from threadcast.core import Op
from threadcast.core.errors import InvalidInput, NotFound

if TYPE_CHECKING:
    from threadcast.store import Store

NEAR = 5
"""Most ops, names or values that a message lists."""

PART_OF_KEY = re.compile(r"(.+)-([0-9a-f]{4,16})")
"""A key, or as many of its digits as tell it from others."""


def name_of(op: Op) -> str:
    """The op's own label, or its kind and what it works on."""
    from threadcast.store.summaries import subject

    label = str(op.attributes.get("label") or "")
    return label if label and (op.kind == "op" or op.kind in label) else f"{op.kind} {label or subject(op)}".strip()


def names_of(ops: Sequence[Op]) -> list[str]:
    """The names of the ops, with the first digits of their keys where they have the same name."""
    names = [name_of(op) for op in ops]
    count = Counter(name for name, _ in {(name, op.key) for name, op in zip(names, ops, strict=True)})
    return [name if count[name] == 1 else f"{name} {op.key[-16:-10]}" for name, op in zip(names, ops, strict=True)]


def op_by_key(store: Store, part: str) -> Op:
    """The one op of the store whose key begins so; NotFound where there is none or several."""
    found = [op for op in store.ops(kinds=[part.rpartition("-")[0]]) if op.key.startswith(part)]
    if len(found) > 1:
        raise NotFound(
            f"{len(found)} ops of {store.name} have keys that begin with {part}: {_few(o.key for o in found)}"
        )
    if not found:
        raise NotFound(f"no op {part} in {store.name}; `threadcast db ops` lists those there are")
    return found[0]


def op_by_name(store: Store, name: str, words: Sequence[str]) -> tuple[Op, Sequence[Op]]:
    """The op that is called `name`, or is of that kind, with the sizes in `words` (`m=300`); and measured ops of its
    kind, itself alone if it is one. Sizes that were not measured make a new op, which a model forecasts.

    NotFound for a name or sizes that no op, or more than one, has; InvalidInput for a word that is no size.
    """
    every = store.ops()
    named = [op for op in every if name in (op.kind, op.key, str(op.attributes.get("label")))]
    if not named:
        known = _few(dict.fromkeys(name_of(op) if op.kind == "op" else op.kind for op in every)) or "none"
        raise NotFound(f"no op of {store.name} is called {name!r}; there are {known} (`threadcast db ops`)")
    sizes = dict.fromkeys(size for op in named for size in _sizes(op))
    given: dict[str, Any] = {}
    for word in words:
        size, equals, value = word.partition("=")
        if not (equals and size):
            raise InvalidInput(f"{word!r} must be NAME=VALUE, such as m=300")
        if size not in sizes:
            raise NotFound(f"ops of {name!r} have no {size!r}: they are described by {', '.join(sizes) or 'shapes'}")
        if size in given:
            raise InvalidInput(f"{size} is given twice, as {given[size]} and {value}: an op has one {size}; ask twice")
        given[size] = _value(value)
    fitting = [op for op in named if given.items() <= _sizes(op).items()]
    if len(fitting) == 1:
        return fitting[0], fitting
    like = max(named, key=lambda op: len(_sizes(op).keys() & given.keys()))
    lacking = [size for size in _sizes(like) if size not in given]
    if fitting or lacking or not given:
        more = f"say {', '.join(lacking)} too" if lacking else "name one's key, which `threadcast db ops --json` shows"
        what = " ".join([name, *words])
        raise NotFound(f"{len(fitting)} ops are {what}: {more}, or take one of {_few(names_of(fitting or named))}")
    for size, value in given.items():
        if isinstance(value, str) and not isinstance(there := _sizes(like)[size], str):
            raise InvalidInput(f"{size}={value}: {size} must be a number with a decimal point, such as {there}")
    ordered = {size: given[size] for size in _sizes(like)}
    label = " ".join([like.kind, *(f"{size}={value}" for size, value in ordered.items())])
    return Op(like.kind, attributes={**ordered, "label": label}), [op for op in named if op.kind == like.kind]


def machine_of(store: Store, ops: Sequence[Op], here: str) -> str | None:
    """The fingerprint of the machine that one of the ops was measured on, the first such op: this one (`here`) if it
    was, else the one with most samples of it; None where none was measured."""
    for op in ops:
        if lines := store.browse.lines_of(op.key):
            return here if here in lines else max(lines, key=lambda fingerprint: lines[fingerprint].samples)
    return None


def _sizes(op: Op) -> dict[str, Any]:
    return {k: v for k, v in op.attributes.items() if k != "label" and isinstance(v, int | float | str)}


def _value(text: str) -> int | float | str:
    for kind in (int, float):
        try:
            value = kind(text) if "_" not in text else math.nan
            if math.isfinite(value):
                return value
        except ValueError:
            continue
    return text


def _few(names: Iterable[str]) -> str:
    listed = list(names)
    return ", ".join(listed[:NEAR]) + (f" and {len(listed) - NEAR} more" if len(listed) > NEAR else "")
