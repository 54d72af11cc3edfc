"""Measurements as JSON: dense (one array of samples for each op and case) and long (one row for each sample)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, get_type_hints

from threadcast.core import Case, Machine, Measurement, Op, Sample
from threadcast.core.errors import FormatError, InvalidInput, NotFound
from threadcast.core.json_reading import finite
from threadcast.core.measurement_documents import measurement_of
from threadcast.core.measurement_time import require_times
from threadcast.models.measured import MOST_WORK
from threadcast.service.documents import machine_called, read_case, reading
from threadcast.service.formats import COUNTER, NAME, MeasurementRow
from threadcast.service.formats import Measurement as DenseEntry

Entry = DenseEntry | MeasurementRow

_COUNTER_MEMBER = re.compile(re.escape(COUNTER) + NAME)
_ROW_MEMBERS = frozenset(get_type_hints(MeasurementRow))


class References:
    """The ops and machines that the entries of a document may refer to.

    Ops are named by key, or by position among those `listed` in the document; machines by name. `default` is the
    machine of entries that name none.
    """

    def __init__(
        self, listed: Sequence[Op], stored: Sequence[Op], machines: Mapping[str, Machine], default: Machine | None
    ) -> None:
        self._listed = listed
        self._ops = {op.key: op for op in (*stored, *listed)}
        self._machines, self._default = dict(machines), default

    def op(self, entry: Entry, pointer: str) -> Op:
        """Return the op that `entry["op"]` names; FormatError where there is none."""
        named = entry["op"]
        if isinstance(named, int):
            if named >= len(self._listed):
                raise FormatError(f"op={named} is no position in the {len(self._listed)} ops", pointer=f"{pointer}/op")
            return self._listed[named]
        if named not in self._ops:
            raise FormatError(
                f"no op has the key {named[:80]!r}; list it in ops, or refer to its position there",
                pointer=f"{pointer}/op",
            )
        return self._ops[named]

    def machine(self, entry: Entry, pointer: str) -> Machine:
        """Return the machine that `entry["machine"]` names, else the default; FormatError where there is none."""
        named = entry.get("machine")
        if named is None:
            if self._default is None:
                raise FormatError(
                    "say which machine, here or as the machine of the request", pointer=f"{pointer}/machine"
                )
            return self._default
        if named not in self._machines:
            try:
                self._machines[named] = machine_called(named, self._machines)
            except (NotFound, InvalidInput) as error:
                raise FormatError(f"{error}, or a document in machines", pointer=f"{pointer}/machine") from error
        return self._machines[named]


def read_dense(
    entries: Sequence[DenseEntry], references: References, *, now_s: float, pointer: str = "/measurements"
) -> list[Measurement]:
    """The measurements in dense entries: each has an array of seconds, and for each counter an array of counts.

    The arrays have one element for each sample. FormatError, with a pointer below `pointer`, for anything wrong.
    `now_s` is the present time in seconds since 1970.
    """
    measured = []
    for i, entry in enumerate(entries):
        where = f"{pointer}/{i}"
        machine, op, case = _identity(entry, references, where)
        seconds, counters = entry["seconds"], entry.get("counters", {})
        for name, counts in counters.items():
            if len(counts) != len(seconds):
                raise FormatError(
                    f"a counter needs an array of {len(seconds)} counts, one a sample",
                    pointer=f"{where}/counters/{name}",
                )
        with reading(f"{where}/conditions/time"):
            require_times(entry.get("conditions", {}), now_s=now_s)
        with reading(where):
            measured.append(measurement_of({**entry, "affinity": case.affinity}, op, machine))
    return measured


def read_long(rows: Sequence[MeasurementRow], references: References, *, pointer: str = "/rows") -> list[Measurement]:
    """The measurements in rows of one sample each; samples of one machine, op and case are sorted by `repeat`.

    FormatError, with a pointer below `pointer`, for anything wrong.
    """
    found: dict[tuple[Machine, Op, Case], dict[int, Sample]] = {}
    for i, row in enumerate(rows):
        where = f"{pointer}/{i}"
        identity = _identity(row, references, where)
        counts = {
            name.removeprefix(COUNTER): _count(name, count, f"{where}/{name}")
            for name, count in row.items()
            if name not in _ROW_MEMBERS
        }
        samples = found.setdefault(identity, {})
        repeat = row.get("repeat", len(samples))
        if repeat in samples:
            raise FormatError(f"repeat {repeat} of this op and case is there already", pointer=f"{where}/repeat")
        with reading(where):
            samples[repeat] = Sample(row["seconds"], counts)
    return [
        Measurement(op, machine, case, tuple(samples[repeat] for repeat in sorted(samples)))
        for (machine, op, case), samples in found.items()
    ]


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


def _identity(entry: Entry, references: References, pointer: str) -> tuple[Machine, Op, Case]:
    """What an entry measured; FormatError at its threads where the machine lacks the case."""
    op, machine, case = references.op(entry, pointer), references.machine(entry, pointer), read_case(entry)
    with reading(f"{pointer}/threads"):
        machine.require(case)
    return machine, op, case


def _count(name: str, value: Any, pointer: str) -> float | None:
    """Return a member of a row that must be a count; FormatError for a member of another name or value.

    The description names such members by a pattern, which the models have no words for.
    """
    if not _COUNTER_MEMBER.fullmatch(name):
        raise FormatError(
            f"unknown member {name[:40]!r}; counts are called {COUNTER}NAME, without control characters",
            pointer=pointer,
        )
    count = None if value is None else finite(value, pointer=pointer, minimum=0.0)
    if count is not None and count > MOST_WORK:
        raise FormatError(f"must be at most {MOST_WORK:g}, got {count:g}", pointer=pointer)
    return count
