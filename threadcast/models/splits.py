"""Divides measured ops into those that a model learns from and those that it is judged by."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from threadcast.core.errors import InvalidInput, ModelError
from threadcast.models.measured import MeasuredOp, by_content


@dataclass(frozen=True, slots=True)
class Fold:
    """Positions in a sequence of measured ops. No op is in both parts on the same machine."""

    name: str
    train: tuple[int, ...]
    test: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.train or not self.test:
            raise InvalidInput(
                f"fold {self.name!r} has {len(self.train)} ops to learn and {len(self.test)} to judge by"
            )
        if set(self.train) & set(self.test):
            raise InvalidInput(f"fold {self.name!r} judges by ops that it learns from")


Split = Callable[[Sequence[MeasuredOp]], tuple[Fold, ...]]
"""A function that divides measured ops into folds; ModelError where the ops do not allow any."""


def new_network(networks_of: Mapping[str, Collection[str]]) -> Split:
    """A split that leaves out one network at a time: it is forecast by a model that has learned from none of its ops.

    `networks_of[op.key]` are the networks that an op occurs in. Ops that the left-out network shares with others are
    left out too. Ops of no known network are always learned from.
    """

    def split(entries: Sequence[MeasuredOp]) -> tuple[Fold, ...]:
        listed = [frozenset(networks_of.get(entry.op.key, ())) for entry in entries]
        return _folds(
            {name: [name in own for own in listed] for name in sorted(frozenset().union(*listed))}, "networks"
        )

    return split


def new_kind(*, known: int = 0, seed: int = 0, folds: int = 10) -> Split:
    """A split that leaves out one kind of op at a time, except `known` of its ops, drawn at random.

    Where there are more kinds than `folds`, several are left out together, in random groups.
    """
    if folds < 2:
        raise InvalidInput(f"folds={folds!r}: there must be at least 2")

    def split(entries: Sequence[MeasuredOp]) -> tuple[Fold, ...]:
        kinds = sorted({entry.op.kind for entry in entries})
        out = {kind: [entry.op.kind == kind for entry in entries] for kind in kinds}
        left = _with_known(out, known, seed)
        return _folds(left if len(left) <= folds else _together(left, folds, seed), "op kinds")

    return split


def new_machine(*, known: int = 0, seed: int = 0) -> Split:
    """A split that leaves out one machine at a time, except `known` of its ops, drawn at random."""

    def split(entries: Sequence[MeasuredOp]) -> tuple[Fold, ...]:
        machines = sorted({entry.machine.fingerprint for entry in entries})
        out = {name: [entry.machine.fingerprint == name for entry in entries] for name in machines}
        return _folds(_with_known(out, known, seed), "machines")

    return split


def _with_known(out: Mapping[str, Sequence[bool]], known: int, seed: int) -> dict[str, list[bool]]:
    """`out` without `known` entries of each part, drawn at random; parts that have no more are left out whole."""
    if known < 0:
        raise InvalidInput(f"known={known!r}: there must be at least 0")
    left: dict[str, list[bool]] = {}
    for name, marks in out.items():
        places = np.flatnonzero(marks)
        if len(places) <= known:
            continue
        learned = set(np.random.default_rng(seed).permutation(places)[:known].tolist())
        left[name] = [mark and i not in learned for i, mark in enumerate(marks)]
    return left


def _together(left: Mapping[str, Sequence[bool]], folds: int, seed: int) -> dict[str, list[bool]]:
    """`left` in `folds` groups, each named after its members."""
    dealt = np.random.default_rng(seed).permutation(list(left)).tolist()
    parts = (sorted(dealt[i::folds]) for i in range(folds))
    return {", ".join(names): [any(marks) for marks in zip(*(left[name] for name in names))] for names in parts}


def new_shape(*, folds: int = 5, seed: int = 0) -> Split:
    """A split of the ops into `folds` random parts, each of which is left out once; an op's measurements on all
    machines are in one part."""
    if folds < 2:
        raise InvalidInput(f"folds={folds!r}: there must be at least 2")

    def split(entries: Sequence[MeasuredOp]) -> tuple[Fold, ...]:
        keys = by_content(entries)
        parts = np.random.default_rng(seed).permutation(len(keys)) % folds
        part_of = dict(zip(keys, parts.tolist()))
        return _folds(
            {f"part {i + 1}": [part_of[entry.op.key] == i for entry in entries] for i in range(min(folds, len(keys)))},
            "ops",
        )

    return split


def _folds(left_out: Mapping[str, Sequence[bool]], what: str) -> tuple[Fold, ...]:
    found = []
    for name, marks in left_out.items():
        test = tuple(i for i, out in enumerate(marks) if out)
        train = tuple(i for i, out in enumerate(marks) if not out)
        if train and test:
            found.append(Fold(name, train, test))
    if not found:
        known = ", ".join(left_out) or "none"
        raise ModelError(f"leaving some out takes measurements of at least two {what}; there are: {known}")
    return tuple(found)
