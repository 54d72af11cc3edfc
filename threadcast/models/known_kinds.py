"""By what a model has learned ops: their kinds, and for ops without tensors the names and ranges of what describes
them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from threadcast.core import Op, Source
from threadcast.core.arguments import nearest
from threadcast.core.errors import ArtefactError, FeatureError
from threadcast.core.json_reading import finite, member
from threadcast.models.base import LEAST_CALL_S
from threadcast.models.measured import LABEL, MeasuredOp
from threadcast.models.nominal_roofline import CALL_S

CATEGORIES = 16
"""Most values of a text that are told apart, the most frequent ones."""

Value = float | str


@dataclass(frozen=True, slots=True)
class KnownKind:
    """What described the learned ops of a kind, by name: the least and the largest number, and the texts (None where
    there were more than `CATEGORIES`); `every` are the names that all of them had."""

    every: frozenset[str]
    ranges: Mapping[str, tuple[float, float]]
    texts: Mapping[str, frozenset[str] | None]

    @classmethod
    def of(cls, ops: Sequence[Op]) -> Self:
        """What describes these ops."""
        given = [dict(described(op)) for op in ops]
        numbers: dict[str, list[float]] = {}
        texts: dict[str, set[str]] = {}
        for name, value in (item for one in given for item in one.items()):
            if isinstance(value, str):
                texts.setdefault(name, set()).add(value)
            else:
                numbers.setdefault(name, []).append(value)
        return cls(
            frozenset(given[0]).intersection(*given),
            {name: (min(values), max(values)) for name, values in numbers.items()},
            {name: frozenset(values) if len(values) <= CATEGORIES else None for name, values in texts.items()},
        )

    def knows(self, op: Op) -> Source:
        """As `KnownKinds.knows`, of an op of this kind."""
        given = dict(described(op))
        names = self.ranges.keys() | self.texts.keys()
        others = given.keys() - names
        near = {name: next(iter(nearest(name, others, cutoff=0.6)), None) for name in sorted(names - given.keys())}
        if lacking := [name for name, other in near.items() if other or name in self.every]:
            said = ", ".join(f"{name!r}" + (f" (it has {near[name]!r})" if near[name] else "") for name in lacking)
            raise FeatureError(
                f"{op.key}: ops of kind {op.kind!r} were learned by {', '.join(sorted(names))}; this one lacks {said}. "
                "Give it these by name, or measure it"
            )
        for name in given.keys() & self.ranges.keys():
            value, low = given[name], self.ranges[name][0]
            wrong = name not in self.texts if isinstance(value, str) else low > 0 and value <= 0
            if wrong:
                what = "a number above 0" if low > 0 else "a number"
                raise FeatureError(f"{op.key}: {name}={value!r} must be {what}, as in all ops that were learned")
        within = not others and all(self._has(name, value) for name, value in given.items())
        return Source.LEARNED if within else Source.EXTRAPOLATED

    def beyond(self, op: Op) -> float:
        """As `KnownKinds.beyond`, of an op of this kind."""
        found = 0.0
        for name, value in described(op):
            if not isinstance(value, str) and name in self.ranges:
                low, high = self.ranges[name]
                scaled = math.log if min(low, value) > 0 else math.asinh
                found += max(scaled(low) - scaled(value), scaled(value) - scaled(high), 0.0)
        return found

    def _has(self, name: str, value: Value) -> bool:
        """Whether a value is among those learned."""
        if isinstance(value, str):
            texts = self.texts.get(name, frozenset())
            return texts is None or value in texts
        low, high = self.ranges.get(name, (math.inf, -math.inf))
        return low <= value <= high


@dataclass(frozen=True, slots=True)
class KnownKinds:
    """The kinds that were learned: of ops with `tensors`, and of ops `without`, which columns of tables describe.

    `tensors` is None in models that have learned nothing yet. `least_s`: seconds of a
    call, or the shortest that were learned; no forecast is shorter.
    """

    tensors: frozenset[str] | None = None
    without: Mapping[str, KnownKind] = field(default_factory=dict)
    least_s: float = LEAST_CALL_S

    @classmethod
    def learned(cls, entries: Sequence[MeasuredOp]) -> Self:
        """The kinds of these ops."""
        by_kind: dict[str, list[Op]] = {}
        for op in {entry.op.key: entry.op for entry in entries if is_bare(entry.op)}.values():
            by_kind.setdefault(op.kind, []).append(op)
        return cls(
            frozenset(entry.op.kind for entry in entries if not is_bare(entry.op)),
            {kind: KnownKind.of(ops) for kind, ops in by_kind.items()},
            min([CALL_S, *(measured.seconds for entry in entries for measured in entry.by_case.values())]),
        )

    def knows(self, op: Op) -> Source | None:
        """See `PerformanceModel.knows`."""
        if self.tensors is None:
            return Source.LEARNED
        if not is_bare(op):
            return Source.LEARNED if op.kind in self.tensors else None
        known = self.without.get(op.kind)
        return known.knows(op) if known else None

    def beyond(self, op: Op) -> float:
        """How far the numbers of an op without tensors are outside of those learned of its kind: the sum of the
        distances of their logarithms, or of their inverse hyperbolic sines where some are not above 0. Of a kind
        that was not learned, it is how far they are from 0."""
        if known := self.without.get(op.kind):
            return known.beyond(op)
        return sum(math.asinh(abs(value)) for _, value in described(op) if not isinstance(value, str))

    def to_json(self) -> dict[str, Any]:
        """The kinds as a JSON object."""
        return {
            "tensors": None if self.tensors is None else sorted(self.tensors), "least_s": self.least_s,
            "without": {
                kind: {
                    "every": sorted(known.every), "ranges": {name: list(ends) for name, ends in known.ranges.items()},
                    "texts": {name: None if texts is None else sorted(texts) for name, texts in known.texts.items()},
                }
                for kind, known in self.without.items()
            },
        }  # fmt: skip

    @classmethod
    def from_json(cls, document: Any) -> Self:
        """Read what `to_json` returned; ArtefactError on anything else."""
        without = {}
        for kind, known in member(document, "without", dict).items():
            ranges = {
                str(name): tuple(finite(end, pointer=f"/without/{kind}/ranges/{name}") for end in ends)
                for name, ends in member(known, "ranges", dict).items()
            }
            texts = {
                str(name): None if texts is None else frozenset(map(str, texts))
                for name, texts in member(known, "texts", dict).items()
            }
            every = frozenset(map(str, member(known, "every", list)))
            if any(len(ends) != 2 for ends in ranges.values()) or not every <= ranges.keys() | texts.keys():
                raise ArtefactError(f"what described ops of kind {kind!r} does not fit together")
            without[str(kind)] = KnownKind(every, {name: (ends[0], ends[1]) for name, ends in ranges.items()}, texts)
        least_s = finite(document["least_s"], pointer="/least_s", minimum=0.0)
        tensors = document["tensors"]
        return cls(None if tensors is None else frozenset(map(str, tensors)), without, least_s)


def is_bare(op: Op) -> bool:
    """Whether an op is described by its attributes alone, without tensors."""
    return not op.inputs and not op.outputs


def scalars(op: Op) -> Iterator[tuple[str, Value]]:
    """The op's finite numbers and its texts, by name."""
    for name, value in op.attributes.items():
        if name == LABEL:
            continue
        if isinstance(value, bool | str):
            yield name, str(value)
        elif isinstance(value, int | float) and math.isfinite(value):
            yield name, float(value)


def described(op: Op) -> Iterator[tuple[str, Value]]:
    """`scalars`, and the op's cost where it has one."""
    yield from scalars(op)
    for name, value in (("flops", op.flops), ("bytes", op.bytes_moved)):
        if value:
            yield name, value
