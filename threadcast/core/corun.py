"""Which ops slow each other down on one machine, by pair, as it was observed in steps."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

from threadcast.core.errors import FormatError, InvalidInput
from threadcast.core.json_reading import check_schema, checked, member, number, read_json
from threadcast.core.json_writing import write_json
from threadcast.core.machine import Machine
from threadcast.core.read_only import made_anew

SCHEMA = "threadcast.corun/1"

MOST_PAIRS = 1000
"""A file holds at most so many bad pairs, the worst ones; it then has about 100 kB."""

Keys = tuple[str, str]
"""The key of the op that is slowed down, and that of the op beside it."""


@dataclass(frozen=True, slots=True)
class CoRunTable:
    """The known slow-downs of `machine`.

    `bad_pairs` are the slow-downs (factors of at least 1) of single pairs of ops that were observed in steps; the table
    keeps the `MOST_PAIRS` worst ones. InvalidInput for smaller factors.
    """

    machine: Machine
    bad_pairs: Mapping[Keys, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        wrong = [(pair, by) for pair, by in self.bad_pairs.items() if not 1 <= by < math.inf]
        if wrong:
            raise InvalidInput(f"bad pair {wrong[0][0]} has slow-down {wrong[0][1]!r}; it must be at least 1")
        worst = heapq.nlargest(MOST_PAIRS, self.bad_pairs.items(), key=lambda item: (item[1], item[0]))
        object.__setattr__(self, "bad_pairs", MappingProxyType(dict(worst)))

    __reduce__ = made_anew

    def holds_for(self, machine: Machine) -> bool:
        """Whether `machine` is the machine that this table was measured on, or a part of its cores."""
        known = {core.id: core.cpus for core in self.machine.cores}
        return machine.name == self.machine.name and all(known.get(core.id) == core.cpus for core in machine.cores)

    def to_json(self) -> dict[str, Any]:
        """The document of schema `threadcast.corun/1`."""
        return {
            "schema": SCHEMA,
            "fingerprint": self.machine.fingerprint,
            "machine": self.machine.to_json(),
            "bad_pairs": [{"op": op, "beside": other, "slowdown": by} for (op, other), by in self.bad_pairs.items()],
        }

    @classmethod
    def from_json(cls, document: Any) -> Self:
        """Read a `threadcast.corun/1` document; FormatError with a JSON pointer to whatever is wrong.

        Other members, such as the slow-downs of classes of ops that earlier versions measured, are left.
        """
        check_schema(document, SCHEMA)
        machine = Machine.from_json(member(document, "machine", dict), pointer="/machine")
        bad_pairs = {}
        for i, entry in enumerate(member(document, "bad_pairs", list)):
            at = f"/bad_pairs/{i}"
            keys = member(entry, "op", str, pointer=at), member(entry, "beside", str, pointer=at)
            bad_pairs[keys] = number(entry, "slowdown", pointer=at, minimum=1.0)
        return checked(lambda: cls(machine, bad_pairs), pointer="")


def read_table(
    directory: Path, machine: Machine, *, on_damaged: Callable[[Exception], None] = lambda error: None
) -> CoRunTable | None:
    """The table in `directory` for this machine, or for one of which it is a part; None where there is no table.

    FormatError where the machine's own file is not a table, OSError where it cannot be read. Those of other machines
    are then passed over; `on_damaged` is called with the error.
    """
    own = _path(directory, machine)
    if own.exists():
        return read_json(own, CoRunTable.from_json)
    for path in sorted(directory.glob("*.json")):
        try:
            table = read_json(path, CoRunTable.from_json)
        except (FormatError, OSError) as error:
            on_damaged(error)
            continue
        if table.holds_for(machine):
            return table
    return None


def write_table(directory: Path, table: CoRunTable) -> Path:
    """Write `table` to the file of its machine in `directory`, which is created where needed.

    Return the file's path.
    """
    directory.mkdir(parents=True, exist_ok=True)
    path = _path(directory, table.machine)
    write_json(path, table.to_json())
    return path


def _path(directory: Path, machine: Machine) -> Path:
    return directory / f"{machine.fingerprint}.json"
