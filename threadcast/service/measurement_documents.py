"""Measurements as JSON: an entry for each measurement of an op in a case, with an array of samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from threadcast.core import Case, Machine, Measurement, Op
from threadcast.core.errors import FormatError, InvalidInput, NotFound
from threadcast.core.measurement_documents import measurement_of
from threadcast.core.measurement_time import require_times
from threadcast.service.documents import machine_called, read_case, reading
from threadcast.service.formats import Measurement as Entry


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


def read_entries(
    entries: Sequence[Entry], references: References, *, now_s: float, pointer: str = "/measurements"
) -> list[Measurement]:
    """The measurements in entries: each has an array of seconds, and for each counter an array of counts.

    The arrays have one element for each sample. FormatError, with a pointer below `pointer`, for anything wrong.
    `now_s` is the present time in seconds since 1970.
    """
    measured = []
    for i, entry in enumerate(entries):
        where = f"{pointer}/{i}"
        machine, op, case = _identity(entry, references, where)
        with reading(f"{where}/conditions/time"):
            require_times(entry.get("conditions", {}), now_s=now_s)
        with reading(where):
            measured.append(measurement_of({**entry, "affinity": case.affinity}, op, machine, pointer=where))
    return measured


def _identity(entry: Entry, references: References, pointer: str) -> tuple[Machine, Op, Case]:
    """What an entry measured; FormatError at its threads where the machine lacks the case."""
    op, machine, case = references.op(entry, pointer), references.machine(entry, pointer), read_case(entry)
    with reading(f"{pointer}/threads"):
        machine.require(case)
    return machine, op, case
