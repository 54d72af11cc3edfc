"""Measurements as JSON: dense (one array of samples for each op and case) and long (one row for each sample)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from threadcast.core import Case, Machine, Measurement, Op, Sample
from threadcast.core.errors import FormatError
from threadcast.core.json_reading import finite, member
from threadcast.models.measured import LONGEST_S, SHORTEST_S
from threadcast.service.documents import read_case, reading, refuse_unknown

COUNTER = "counter."
_ROW_MEMBERS = frozenset({"machine", "op", "threads", "affinity", "repeat", "seconds"})
_DENSE_MEMBERS = frozenset({"machine", "op", "threads", "affinity", "seconds", "counters", "conditions"})
_SCALARS = (str, int, float, bool, type(None))


class References:
    """The ops and machines that the entries of a document may refer to.

    Ops are named by key, or by position among those `listed` in the document; machines by fingerprint. `default` is the
    machine of entries that name none.
    """

    def __init__(
        self, listed: Sequence[Op], stored: Sequence[Op], machines: Mapping[str, Machine], default: Machine | None
    ) -> None:
        self._listed = listed
        self._ops = {op.key: op for op in (*stored, *listed)}
        self._machines, self._default = machines, default

    def op(self, entry: Any, pointer: str) -> Op:
        """Return the op that `entry["op"]` names; FormatError where there is none."""
        named = entry.get("op") if isinstance(entry, dict) else None
        if isinstance(named, int) and not isinstance(named, bool):
            if not 0 <= named < len(self._listed):
                raise FormatError(f"op={named} is no position in the {len(self._listed)} ops", pointer=f"{pointer}/op")
            return self._listed[named]
        key = member(entry, "op", str, pointer=pointer)
        if key not in self._ops:
            raise FormatError(
                f"no op has the key {key[:80]!r}; list it in ops, or refer to its position there",
                pointer=f"{pointer}/op",
            )
        return self._ops[key]

    def machine(self, entry: Any, pointer: str) -> Machine:
        """Return the machine that `entry["machine"]` names, else the default; FormatError where there is none."""
        if self._default is not None and isinstance(entry, dict) and "machine" not in entry:
            return self._default
        fingerprint = member(entry, "machine", str, pointer=pointer)
        if fingerprint not in self._machines:
            raise FormatError(
                f"no machine has the fingerprint {fingerprint[:80]!r}; give it as machine or in machines",
                pointer=f"{pointer}/machine",
            )
        return self._machines[fingerprint]


def read_dense(entries: Sequence[Any], references: References, *, pointer: str = "/measurements") -> list[Measurement]:
    """The measurements in dense entries: each has an array of seconds, and for each counter an array of counts.

    The arrays have one element for each sample. FormatError, with a pointer below `pointer`, for anything wrong.
    """
    measured = []
    for i, entry in enumerate(entries):
        where = f"{pointer}/{i}"
        op, machine, case = references.op(entry, where), references.machine(entry, where), read_case(entry, where)
        refuse_unknown(entry, _DENSE_MEMBERS, where)
        seconds = _numbers(member(entry, "seconds", list, pointer=where), f"{where}/seconds")
        counters = {
            name: _counts(values, len(seconds), f"{where}/counters/{name}")
            for name, values in member(entry, "counters", dict, pointer=where, default={}).items()
        }
        conditions = member(entry, "conditions", dict, pointer=where, default={})
        for name, value in conditions.items():
            if not isinstance(value, _SCALARS):
                raise FormatError("a condition must be a JSON scalar", pointer=f"{where}/conditions/{name}")
        with reading(where):
            samples = tuple(
                Sample(s, {name: values[k] for name, values in counters.items()}) for k, s in enumerate(seconds)
            )
            measured.append(Measurement(op, machine, case, samples, conditions))
    return measured


def read_long(rows: Sequence[Any], references: References, *, pointer: str = "/rows") -> list[Measurement]:
    """The measurements in rows of one sample each; samples of one machine, op and case are sorted by `repeat`.

    FormatError, with a pointer below `pointer`, for anything wrong.
    """
    found: dict[tuple[Machine, Op, Case], dict[int, Sample]] = {}
    for i, row in enumerate(rows):
        where = f"{pointer}/{i}"
        identity = references.machine(row, where), references.op(row, where), read_case(row, where)
        counters = {name: count for name, count in row.items() if name.startswith(COUNTER)}
        refuse_unknown(row, _ROW_MEMBERS | counters.keys(), where)
        samples = found.setdefault(identity, {})
        repeat = member(row, "repeat", int, pointer=where, default=len(samples))
        if repeat < 0:
            raise FormatError(f"repeat={repeat} must be at least 0", pointer=f"{where}/repeat")
        if repeat in samples:
            raise FormatError(f"repeat {repeat} of this op and case is there already", pointer=f"{where}/repeat")
        with reading(where):
            seconds = _time(row.get("seconds"), f"{where}/seconds")
            counts = {name.removeprefix(COUNTER): _count(value, f"{where}/{name}") for name, value in counters.items()}
            samples[repeat] = Sample(seconds, counts)
    return [
        Measurement(op, machine, case, tuple(samples[repeat] for repeat in sorted(samples)))
        for (machine, op, case), samples in found.items()
    ]


def dense_documents(measured: Iterable[Measurement]) -> list[dict[str, Any]]:
    """Return the entries that `read_dense` reads as these measurements."""
    documents = []
    for m in measured:
        names = dict.fromkeys(name for sample in m.samples for name in sample.counters)
        document: dict[str, Any] = {
            "machine": m.machine.fingerprint, "op": m.op.key, "threads": m.case.threads,
            "affinity": m.case.affinity.value, "seconds": [sample.seconds for sample in m.samples],
        }  # fmt: skip
        if names:
            document["counters"] = {name: [sample.counters.get(name) for sample in m.samples] for name in names}
        if m.conditions:
            document["conditions"] = dict(m.conditions)
        documents.append(document)
    return documents


def long_rows(measured: Iterable[Measurement]) -> list[dict[str, Any]]:
    """Return one row for each sample, without conditions, which the long form does not have."""
    return [
        {
            "machine": m.machine.fingerprint, "op": m.op.key, "threads": m.case.threads,
            "affinity": m.case.affinity.value, "repeat": repeat, "seconds": sample.seconds,
            **{COUNTER + name: count for name, count in sample.counters.items()},
        }
        for m in measured
        for repeat, sample in enumerate(m.samples)
    ]  # fmt: skip


def count_samples(dense: Sequence[Any] | None, rows: Sequence[Any] | None) -> int:
    """Return the number of samples in the entries of a request, none of which has been checked yet."""
    listed = (entry.get("seconds") for entry in dense or () if isinstance(entry, dict))
    return len(rows or ()) + sum(len(seconds) for seconds in listed if isinstance(seconds, list))


def _numbers(values: Sequence[Any], pointer: str) -> list[float]:
    if not values:
        raise FormatError("at least one sample is needed", pointer=pointer)
    return [_time(value, f"{pointer}/{i}") for i, value in enumerate(values)]


def _time(value: Any, pointer: str) -> float:
    """Return the seconds of a sample; FormatError for times that no op takes, which would spoil a model's fit."""
    seconds = finite(value, pointer=pointer)
    if not SHORTEST_S <= seconds <= LONGEST_S:
        raise FormatError(f"{seconds:g} s: ops take from {SHORTEST_S:g} to {LONGEST_S:g} s", pointer=pointer)
    return seconds


def _counts(values: Any, samples: int, pointer: str) -> list[float | None]:
    if not isinstance(values, list) or len(values) != samples:
        raise FormatError(f"a counter needs an array of {samples} counts, one a sample", pointer=pointer)
    return [_count(value, f"{pointer}/{i}") for i, value in enumerate(values)]


def _count(value: Any, pointer: str) -> float | None:
    return None if value is None else finite(value, pointer=pointer, minimum=0.0)
