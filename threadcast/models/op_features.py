"""Ops that are described by named numbers and texts, and not by tensors, as ops that models can learn from.

Tables of third parties have such ops: a column for each number that the work depends on (`feature.m`, `feature.k`), and
often neither FLOPs nor bytes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from threadcast.core import Op
from threadcast.core.curve import Floats
from threadcast.core.errors import ArtefactError
from threadcast.core.json_reading import finite, member
from threadcast.models.known_kinds import CATEGORIES, KnownKinds, is_bare, scalars
from threadcast.models.measured import MeasuredOp

NOMINAL_FLOPS_PER_S = 1e10
"""Flops that an op without a cost is given for each second that it was measured to take."""

_RIDGE = 1e-3
_LEAST_LOG, _MOST_LOG = -20.0, 20.0


@dataclass(frozen=True, slots=True)
class OpFeatures:
    """How the attributes of ops without tensors become numbers.

    `logs`: for each numeric attribute, whether its logarithm is used (all its values were above 0), else its inverse
    hyperbolic sine, which is close to the logarithm for large values of either sign. `categories`: for each text, the
    values that are told apart. `exponents`: for each kind of op, how the logarithm of its mean time depends on the
    numbers: a constant, then a factor for each attribute of `logs` in order. It stands in for the work of ops whose
    FLOPs and bytes are not known: `m`, `k` and `n` of a matrix product get exponents near 1. `kinds`: what the ops that
    were learned were described by.
    """

    logs: Mapping[str, bool] = field(default_factory=dict)
    categories: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    exponents: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    kinds: KnownKinds = field(default_factory=KnownKinds)

    @classmethod
    def learned(cls, entries: Sequence[MeasuredOp]) -> OpFeatures:
        """The features of all ops without tensors; no `names` where all ops have tensors."""
        bare = [entry for entry in entries if is_bare(entry.op)]
        numbers: dict[str, list[float]] = {}
        texts: dict[str, dict[str, int]] = {}
        for op in {entry.op.key: entry.op for entry in bare}.values():
            for name, value in scalars(op):
                if isinstance(value, str):
                    counts = texts.setdefault(name, {})
                    counts[value] = counts.get(value, 0) + 1
                else:
                    numbers.setdefault(name, []).append(value)
        logs = {name: min(values) > 0 for name, values in sorted(numbers.items())}
        categories = {name: _most_frequent(counts) for name, counts in sorted(texts.items())}
        known = cls(logs, categories)
        by_kind: dict[str, list[MeasuredOp]] = {}
        for entry in bare:
            by_kind.setdefault(entry.op.kind, []).append(entry)
        exponents = {kind: known._exponents(of_kind) for kind, of_kind in by_kind.items()}
        return replace(known, exponents=exponents, kinds=KnownKinds.learned(entries))

    @property
    def names(self) -> tuple[str, ...]:
        """The attributes that translated ops have, each a number: `describe` and others take them as further inputs."""
        texts = (f"{name}={value}" for name, values in self.categories.items() for value in values)
        surface = ("surface of all",) if len(self.logs) > 1 else ()
        return (*self.logs, *surface, *texts)

    def translated(self, ops: Sequence[Op]) -> list[Op]:
        """`ops`, those without tensors exchanged for ops whose attributes are the numbers `names`, and with a cost."""
        return [self._translated(op) if self.logs or self.categories else op for op in ops] if self.names else list(ops)

    def of_entries(self, entries: Iterable[MeasuredOp]) -> tuple[MeasuredOp, ...]:
        """The entries with translated ops."""
        if not self.names:
            return tuple(entries)
        return tuple(replace(entry, op=self._translated(entry.op)) for entry in entries)

    def _translated(self, op: Op) -> Op:
        if not is_bare(op):
            return op
        given = dict(scalars(op))
        numbers = {name: self._number(name, given.get(name)) for name in self.logs}
        attributes: dict[str, float] = {name: value for name, value in numbers.items() if value is not None}
        known = [value for value in attributes.values() if value > 0]
        if len(self.logs) > 1 and known:
            # the logarithm of the sum of products of two: bytes, where the numbers are sides of matrices
            pairs = [a + b for i, a in enumerate(known) for b in known[:i]] or known
            attributes["surface of all"] = float(np.logaddexp.reduce(pairs))
        for name, values in self.categories.items():
            attributes |= {f"{name}={value}": float(str(given.get(name)) == value) for value in values}
        cost = (op.flops, op.bytes_moved)
        if not any(cost) and op.kind in self.exponents:
            first, *rest = self.exponents[op.kind]
            level = first + sum(factor * (numbers[name] or 0.0) for name, factor in zip(self.logs, rest, strict=True))
            cost = (NOMINAL_FLOPS_PER_S * math.exp(min(max(level, _LEAST_LOG), _MOST_LOG)), 0.0)
        return Op(op.kind, attributes=attributes, cost=cost)

    def _number(self, name: str, value: Any) -> float | None:
        if value is None or isinstance(value, str):
            return None
        return (math.log(value) if value > 0 else None) if self.logs[name] else math.asinh(value)

    def _exponents(self, entries: Sequence[MeasuredOp]) -> tuple[float, ...]:
        """The regression of one kind's log times (ridge, so that constant and redundant numbers get 0)."""
        rows = []
        for entry in entries:
            given = dict(scalars(entry.op))
            rows.append([self._number(name, given.get(name)) or 0.0 for name in self.logs])
        levels = _levels(entries)
        inputs = np.array(rows, dtype=np.float64).reshape(len(rows), len(self.logs))
        middle, off = inputs.mean(axis=0), float(levels.mean())
        centred = inputs - middle
        squares = centred.T @ centred + _RIDGE * max(len(rows), 1) * np.eye(inputs.shape[1])
        factors = np.linalg.solve(squares, centred.T @ (levels - off)) if inputs.shape[1] else np.empty(0)
        return (off - float(middle @ factors), *factors.tolist())

    def to_json(self) -> dict[str, Any]:
        """The features as a JSON object."""
        return {
            "logs": dict(self.logs), "categories": {name: list(values) for name, values in self.categories.items()},
            "exponents": {kind: list(values) for kind, values in self.exponents.items()},
            "kinds": self.kinds.to_json(),
        }  # fmt: skip

    @classmethod
    def from_json(cls, document: Any) -> OpFeatures:
        """Read what `to_json` returned; ArtefactError on anything else."""
        logs = member(document, "logs", dict)
        categories = {str(n): tuple(map(str, v)) for n, v in member(document, "categories", dict).items()}
        exponents = {
            str(kind): tuple(finite(value, pointer="/exponents") for value in values)
            for kind, values in member(document, "exponents", dict).items()
        }
        if any(not isinstance(logged, bool) for logged in logs.values()) or any(
            len(values) != len(logs) + 1 for values in exponents.values()
        ):
            raise ArtefactError("features of ops that do not fit each other")
        kinds = KnownKinds.from_json(document["kinds"])
        return cls({str(name): logged for name, logged in logs.items()}, categories, exponents, kinds)


def numbers_of(ops: Sequence[Op], names: Sequence[str], *, missing: float) -> Floats:
    """(n_ops, n_names) the attributes of these names of translated ops; `missing` where an op has none."""
    found = np.full((len(ops), len(names)), float(missing))
    for row, op in zip(found, ops, strict=True):
        if is_bare(op):
            row[:] = [op.attributes.get(name, missing) for name in names]
    return found


def _most_frequent(counts: Mapping[str, int]) -> tuple[str, ...]:
    return tuple(sorted(counts, key=lambda value: (-counts[value], value))[:CATEGORIES])


def _levels(entries: Sequence[MeasuredOp]) -> Floats:
    """(n_ops,) each op's mean log seconds, relative to the mean of each of its cases."""
    of_case: dict[Any, list[float]] = {}
    logs = [{case: math.log(m.seconds) for case, m in entry.by_case.items()} for entry in entries]
    for one in logs:
        for case, value in one.items():
            of_case.setdefault(case, []).append(value)
    means = {case: float(np.mean(values)) for case, values in of_case.items()}
    middle = float(np.mean(list(means.values())))
    return np.array([middle + float(np.mean([value - means[case] for case, value in one.items()])) for one in logs])
