"""How much ops slow each other down on one machine: by class, measured or forecast, and by pair, observed in steps."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

from threadcast.core.errors import FormatError, InvalidInput
from threadcast.core.json_reading import check_schema, checked, member, number, read_json
from threadcast.core.json_writing import write_json
from threadcast.core.machine import Machine
from threadcast.core.op_class import ClassLimits, OpClass
from threadcast.core.read_only import made_anew

SCHEMA = "threadcast.corun/1"

MOST_PAIRS = 1000
"""A file holds at most so many bad pairs, the worst ones; it then has about 100 kB."""

Classes = tuple[OpClass, OpClass]
"""The class of the op that is slowed down, and that of the op beside it."""
Keys = tuple[str, str]
"""The key of the op that is slowed down, and that of the op beside it."""


@dataclass(frozen=True, slots=True)
class Slowdown:
    """How many times longer an op takes beside another op than alone.

    `median`, `low` and `high` are the median and the quartiles of the factors of `pairs` pairs of ops. InvalidInput
    unless they are above 0 and in order, and for less than one pair.
    """

    median: float
    low: float
    high: float
    pairs: int

    def __post_init__(self) -> None:
        if not 0 < self.low <= self.median <= self.high < math.inf:
            raise InvalidInput(f"slow-down {self.median!r} from {self.low!r} to {self.high!r}: give ordered factors")
        if self.pairs < 1:
            raise InvalidInput(f"pairs={self.pairs}: a slow-down is measured on at least 1")


@dataclass(frozen=True, slots=True)
class SlowdownForecast:
    """How many times longer an op of a class probably takes beside one of another class than alone, by all pairs that
    were measured.

    The factor that measuring all pairs of ops of these classes would find is `low` to `high` with a probability of
    90 %, and as likely above `median` as below. InvalidInput unless they are above 0 and in order.
    """

    median: float
    low: float
    high: float

    def __post_init__(self) -> None:
        if not 0 < self.low <= self.median <= self.high < math.inf:
            raise InvalidInput(f"forecast {self.median!r} from {self.low!r} to {self.high!r}: give ordered factors")


@dataclass(frozen=True, slots=True)
class CoRunTable:
    """The known slow-downs of `machine`; its parts may be empty.

    `slowdowns` were measured with each of the two ops on `cores` cores of its own, and `forecasts` are for the same.
    Where there are both, the forecast counts: one measured pair does not make a class certain. `limits` decide the
    class of an op; None where no class was measured. `bad_pairs` are the slow-downs (factors of at least 1) of single
    pairs of ops that were observed in steps; the table keeps the `MOST_PAIRS` worst ones. InvalidInput for values that
    do not fit.
    """

    machine: Machine
    cores: int = 1
    limits: ClassLimits | None = None
    slowdowns: Mapping[Classes, Slowdown] = field(default_factory=dict)
    bad_pairs: Mapping[Keys, float] = field(default_factory=dict)
    forecasts: Mapping[Classes, SlowdownForecast] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not 1 <= self.cores <= len(self.machine):
            raise InvalidInput(f"cores={self.cores} must be from 1 to the {len(self.machine)} of {self.machine.name}")
        if (self.slowdowns or self.forecasts) and self.limits is None:
            raise InvalidInput("slow-downs of classes need the limits that say which class an op is of")
        wrong = [(pair, by) for pair, by in self.bad_pairs.items() if not 1 <= by < math.inf]
        if wrong:
            raise InvalidInput(f"bad pair {wrong[0][0]} has slow-down {wrong[0][1]!r}; it must be at least 1")
        worst = heapq.nlargest(MOST_PAIRS, self.bad_pairs.items(), key=lambda item: (item[1], item[0]))
        object.__setattr__(self, "bad_pairs", MappingProxyType(dict(worst)))
        object.__setattr__(self, "slowdowns", MappingProxyType(dict(sorted(self.slowdowns.items()))))
        object.__setattr__(self, "forecasts", MappingProxyType(dict(sorted(self.forecasts.items()))))

    __reduce__ = made_anew

    def updated(self, newer: CoRunTable) -> CoRunTable:
        """This table, overwritten with what `newer`, a table of the same machine, contains.

        Bad pairs are merged. Slow-downs of classes are merged too, but this table's are dropped where `newer` measured
        classes with another number of cores. What is known of classes that this table has measured and `newer` has not
        stays.
        """
        if newer.limits is None:
            return replace(self, bad_pairs={**self.bad_pairs, **newer.bad_pairs})
        known = self if self.cores == newer.cores else CoRunTable(self.machine)
        older = {classes: by for classes, by in known.forecasts.items() if classes not in newer.slowdowns}
        new = {
            classes: by
            for classes, by in newer.forecasts.items()
            if classes in newer.slowdowns or classes not in known.slowdowns
        }
        return replace(
            newer,
            slowdowns={**known.slowdowns, **newer.slowdowns},
            bad_pairs={**self.bad_pairs, **newer.bad_pairs},
            forecasts={**older, **new},
        )

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
            "cores": self.cores,
            "limits": self.limits.to_json() if self.limits else None,
            "classes": [{**_row(classes, by), "pairs": by.pairs} for classes, by in self.slowdowns.items()],
            "bad_pairs": [{"op": op, "beside": other, "slowdown": by} for (op, other), by in self.bad_pairs.items()],
            "forecasts": [_row(classes, by) for classes, by in self.forecasts.items()],
        }

    @classmethod
    def from_json(cls, document: Any) -> Self:
        """Read a `threadcast.corun/1` document; FormatError with a JSON pointer to whatever is wrong."""
        check_schema(document, SCHEMA)
        machine = Machine.from_json(member(document, "machine", dict), pointer="/machine")
        cores = member(document, "cores", int)
        slowdowns, bad_pairs, forecasts = {}, {}, {}
        for i, entry in enumerate(member(document, "classes", list)):
            at = f"/classes/{i}"
            slowdowns[_classes(entry, at)] = _slowdown(entry, at)
        for i, entry in enumerate(member(document, "forecasts", list, default=[])):
            at = f"/forecasts/{i}"
            forecasts[_classes(entry, at)] = _forecast(entry, at)
        for i, entry in enumerate(member(document, "bad_pairs", list)):
            at = f"/bad_pairs/{i}"
            keys = member(entry, "op", str, pointer=at), member(entry, "beside", str, pointer=at)
            bad_pairs[keys] = number(entry, "slowdown", pointer=at, minimum=1.0)
        limits = None
        if document.get("limits") is not None:
            limits = checked(lambda: ClassLimits.from_json(document["limits"], pointer="/limits"), pointer="/limits")
        return checked(lambda: cls(machine, cores, limits, slowdowns, bad_pairs, forecasts), pointer="")


def _row(classes: Classes, by: Slowdown | SlowdownForecast) -> dict[str, Any]:
    of, beside = classes
    return {"class": of, "beside": beside, "slowdown": by.median, "low": by.low, "high": by.high}


def _slowdown(entry: Any, pointer: str) -> Slowdown:
    pairs = member(entry, "pairs", int, pointer=pointer)
    return checked(lambda: Slowdown(*_factors(entry, pointer), pairs), pointer=pointer)


def _forecast(entry: Any, pointer: str) -> SlowdownForecast:
    return checked(lambda: SlowdownForecast(*_factors(entry, pointer)), pointer=pointer)


def _factors(entry: Any, pointer: str) -> tuple[float, float, float]:
    median, low, high = (number(entry, name, pointer=pointer) for name in ("slowdown", "low", "high"))
    return median, low, high


def _classes(entry: Any, pointer: str) -> Classes:
    return _class(entry, "class", pointer), _class(entry, "beside", pointer)


def _class(entry: Any, name: str, pointer: str) -> OpClass:
    text = member(entry, name, str, pointer=pointer)
    if text not in list(OpClass):
        raise FormatError(f"{name} must be one of {', '.join(OpClass)}, got {text!r}", pointer=f"{pointer}/{name}")
    return OpClass(text)


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
