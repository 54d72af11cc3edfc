"""Ops as users speak of them: by the name and the sizes that their own table has, or by kind and shapes."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from threadcast.core import Op
from threadcast.core.arguments import nearest
from threadcast.core.errors import InvalidInput, NotFound

if TYPE_CHECKING:
    from threadcast.store import Store

NEAR = 5
"""Most ops, names or values that a message lists."""

PART_OF_KEY = re.compile(r"(.+)-([0-9a-f]{4,16})")
"""A key, or as many of its digits as tell it from others."""

_SHAPE = re.compile(r"\d+(x\d+)*")


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
    """The op that is called `name`, or is of that kind, with the sizes in `words` (`m=300`, `64x128`); and measured ops
    of its kind, itself first if it is one. Sizes that were not measured make a new op, which a model forecasts.

    NotFound, listing what is near, for a name or a size that nothing has; InvalidInput for a word that is no size.
    """
    every = store.ops()
    named = [
        op
        for op in every
        if name in (op.kind, label := str(op.attributes.get("label")), op.key) or name in label.split()[:1]
    ]
    named = named or [op for op in every if name in map(str, _sizes(op).values())]
    if not named:
        known = dict.fromkeys(text for op in every for text in (op.kind, name_of(op)))
        near = nearest(name, known, most=NEAR) or list(known)
        raise NotFound(
            f"no op of {store.name} is called {name!r}; there are {_few(near) or 'none'} (`threadcast db ops`)"
        )
    shapes = [word for word in words if _SHAPE.fullmatch(word)]
    given: dict[str, Any] = {}
    known = dict.fromkeys(size for op in named for size in _sizes(op))
    for word in words:
        size, equals, value = word.partition("=")
        if word in shapes:
            continue
        if not (equals and size):
            raise InvalidInput(f"{word!r} must be NAME=VALUE, such as m=300, or the shape of an input, such as 64x128")
        meant = [size] if size in known else [other for other in known if other.lower() == size.lower()]
        if not meant:
            near = nearest(size, known)
            raise NotFound(
                f"ops of {name!r} have no {size!r}: they are described by {', '.join(known) or 'shapes'}"
                + (f"; is {near[0]!r} meant?" if near else "")
            )
        given[meant[0]] = _value(value)
        there = [own[meant[0]] for own in map(_sizes, named) if meant[0] in own]
        if isinstance(given[meant[0]], str) and not any(isinstance(one, str) for one in there):
            raise InvalidInput(f"{word!r}: {meant[0]} must be a number with a decimal point, such as {there[0]}")
    fitting = [op for op in named if _fits(op, given, shapes)]
    if len(fitting) == 1:
        return fitting[0], fitting
    if fitting:
        more = [size for size in known if size not in given]
        raise NotFound(
            f"{len(fitting)} ops are {' '.join([name, *words])}: {_few(names_of(fitting))}; say "
            + (f"{', '.join(more)} too" if more and not shapes else "one's key, which `threadcast db ops --json` shows")
        )
    if shapes or not given:
        raise NotFound(f"no op of {name!r} has the shapes {' '.join(shapes)}; there are {_few(names_of(named))}")
    like = max(named, key=lambda op: len(_sizes(op).keys() & given.keys()))
    lacking = [size for size in _sizes(like) if size not in given]
    if lacking:
        near_ones = sorted(named, key=lambda op: _distance(op, given))
        raise NotFound(f"no op of {name!r} has {' '.join(words)}; say {', '.join(lacking)} too, or take one of "
                       f"{_few(names_of(near_ones))}")  # fmt: skip
    ordered = {size: given[size] for size in _sizes(like)}
    label = " ".join([like.kind, *(f"{size}={value}" for size, value in ordered.items())])
    new = Op(like.kind, attributes={**ordered, "label": label})
    return new, sorted((op for op in named if op.kind == like.kind), key=lambda op: _distance(op, given))


def machine_of(store: Store, ops: Sequence[Op], here: str) -> str | None:
    """The fingerprint of the machine that one of the ops was measured on, the first such op: this one (`here`) if it
    was, else the one with most samples of it; None where none was measured."""
    for op in ops:
        if lines := store.browse.lines_of(op.key):
            return here if here in lines else max(lines, key=lambda fingerprint: lines[fingerprint].samples)
    return None


def _sizes(op: Op) -> dict[str, Any]:
    return {k: v for k, v in op.attributes.items() if k != "label" and isinstance(v, int | float | str)}


def _fits(op: Op, given: dict[str, Any], shapes: Collection[str]) -> bool:
    own = _sizes(op)
    inputs = ["x".join(map(str, spec.shape)) for spec in op.inputs]
    return all(own.get(size) == value for size, value in given.items()) and (not shapes or inputs == list(shapes))


def _distance(op: Op, given: dict[str, Any]) -> float:
    own, apart = _sizes(op), 0.0
    for size, value in given.items():
        there = own.get(size)
        if isinstance(there, int | float) and isinstance(value, int | float):
            apart += abs(there - value) / (abs(value) + abs(there) or 1)
        else:
            apart += float(there != value)
    return apart


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
