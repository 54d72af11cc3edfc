"""Finds the columns of the long form in tables of other programs: by usual names, or as the user says.

What a name does not surely say is refused, with the `--column` that says it. A time has its unit in its name, or the
user says it.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from threadcast.core.errors import FormatError, InvalidInput
from threadcast.store.table_files import TableFile

ROLES = ("machine", "op", "threads", "affinity", "repeat", "seconds", "feature", "ignored")
"""What `--column` can say of a column; a role's name is that of its column in the long form. Columns that are each a
`feature` describe ops; only this role and `ignored` can be said of several."""

UNITS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
"""Units of time by how many are one second."""

NO_TIME = {"", "na", "n/a", "nan", "null", "none", "-"}
"""What cells have in place of a time, in small letters."""

_USUAL = {
    "machine": {"machine", "host", "hostname"},
    "op": {"op", "operation", "operator", "kernel", "name"},
    "threads": {
        "threads", "nthreads", "n_threads", "num_threads", "number_of_threads", "thread_count", "omp_num_threads",
    },
    "affinity": {"affinity"},
    "repeat": {"repeat"},
}  # fmt: skip
"""Plain names of columns by their roles, but for times."""

_REPETITIONS = {"trial", "run", "run_id", "rep", "iteration", "repetition", "sample", "pass", "seed"}
"""Plain names of columns that number the repetitions of a measurement, and describe no op."""

_SPELLED = {
    "s": "s|secs?|seconds?", "ms": "ms|msecs?|milliseconds?", "us": "us|usecs?|microseconds?|\u03bcs",
    "ns": "ns|nsecs?|nanoseconds?",
}  # fmt: skip
_TIME = re.compile(
    r"(?:(?P<stem>(?:median_|mean_)?(?:time|wall|wall_time|elapsed|duration|real_time|runtime|latency)|median|mean)_)?"
    r"(?:in_)?(?:" + "|".join(f"(?P<{unit}>{words})" for unit, words in _SPELLED.items()) + ")"
)
"""Plain names of times of a run with their units."""


def plain_name(name: str) -> str:
    """The name in small letters, its words joined by "_": "numThreads", "Num Threads" and "num-threads" are one."""
    parted = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", unicodedata.normalize("NFKC", name))
    return re.sub(r"[^a-z0-9\u03bc]+", "_", parted.lower()).strip("_")


@dataclass(frozen=True, slots=True)
class Choice:
    """A column that `--column ROLE=NAME:UNIT` names; `unit` None where it says none."""

    role: str
    name: str
    unit: str | None = None

    @classmethod
    def read(cls, text: str) -> Choice:
        """The choice in the text after `--column`; InvalidInput where it is none. `*` stands for a number of
        threads."""
        role, _, name = (part.strip() for part in text.partition("="))
        if role not in ROLES or not name:
            raise InvalidInput(f"{text!r} must be ROLE=NAME, where ROLE is {', '.join(ROLES)}: threads=num_threads")
        if role != "seconds":
            return cls(role, name)
        name, colon, unit = name.rpartition(":")
        if not colon or unit not in UNITS:
            raise InvalidInput(f"{text!r} must end in its unit, which is {', '.join(UNITS)}: seconds={name or unit}:ms")
        return cls(role, name, unit)


def in_long_form(table: TableFile, choices: Sequence[Choice], note: Callable[[str], None]) -> TableFile:
    """The table with the columns of the long form under their names there, times in seconds, one case in a row.

    `note` is called with a sentence on each column that has another name. FormatError where two columns may be meant,
    or none has a time with its unit; InvalidInput for a choice of a column that the table lacks.
    """
    twice = {name for name in table.columns if name and table.columns.count(name) > 1}
    for name in table.columns:
        if name in twice:
            raise FormatError(f"{table.path}: the column {name!r} is there twice")
    if not choices and any(name.startswith("json.") for name in table.columns) and "seconds" in table.columns:
        return table  # which threadcast wrote
    once = [choice.role for choice in choices if choice.role not in ("feature", "ignored")]
    for role in once:
        if once.count(role) > 1:
            raise InvalidInput(f"{table.path}: --column says {role} twice; say it of one column")
    found = _Columns(table)
    for choice in choices:
        found.choose(choice)
    found.find()
    return found.converted(note)


class _Columns:
    """The columns of one table, of which those of the long form are looked for."""

    def __init__(self, table: TableFile) -> None:
        self._table, self._names = table, [plain_name(name) for name in table.columns]
        self._at: dict[str, int] = {}
        """Position of the column of each role."""
        self._unit = "s"
        self._all_threads: int | None = None
        """The number of threads of all rows, where the user says it."""
        self._counts: dict[int, int] = {}
        """Number of threads by the position of its column of times, where there is one a number."""
        self._dropped: set[int] = set()
        self._said: dict[int, str] = {}
        """Role that the user gives to the column at a position."""

    def choose(self, choice: Choice) -> None:
        """Take a column for what the user says that it is; InvalidInput where that has been said."""
        pattern = re.compile(re.escape(choice.name).replace(r"\*", r"(\d+)"), re.IGNORECASE)
        alike = {i: matched for i, name in enumerate(self._table.columns) if (matched := pattern.fullmatch(name))}
        if choice.role == "threads" and not alike and choice.name.isdigit():
            self._all_threads = int(choice.name)
            self._dropped.update(i for i, name in enumerate(self._names) if name in _USUAL["threads"])
            return
        exact = [i for i in alike if self._table.columns[i] == choice.name] or list(alike)
        wide = choice.role == "seconds" and pattern.groups == 1
        if not exact or (len(exact) > 1 and not wide):
            raise InvalidInput(
                f"{self._table.path} has no column {choice.name!r}, which --column says is {choice.role}; it has "
                f"{', '.join(self._table.columns)}"
            )
        if twice := [self._table.columns[i] for i in exact if i in self._said]:
            raise InvalidInput(f"{self._table.path}: --column says two things of the column {twice[0]!r}; say one")
        self._said.update(dict.fromkeys(exact, choice.role))
        self._unit = choice.unit or self._unit
        if choice.role == "ignored":
            self._dropped.update(exact)
        elif wide:
            self._counts = {i: int(alike[i][1]) for i in exact}
        elif choice.role != "feature":
            self._at[choice.role] = exact[0]

    def find(self) -> None:
        """Find the columns that the user has not named; FormatError where that is not sure."""
        for role, names in _USUAL.items():
            if role not in self._at:
                self._take(role, [i for i in self._free() if self._names[i] in names])
        if not self._counts and "seconds" not in self._at:
            timed = {i: found for i in self._free() if (found := _unit_of(self._names[i]))}
            if self._take("seconds", list(timed)):
                self._unit = timed[self._at["seconds"]]
        said_otherwise = "threads" in self._at or self._all_threads is not None
        if self._counts and said_otherwise:
            raise FormatError(
                f"{self._table.path}: threads are said by names of columns, and otherwise; give --column ignored=NAME"
            )
        given = {*self._at, *(["threads"] * said_otherwise), *(["threads", "seconds"] * bool(self._counts))}
        if missing := [role for role in ("threads", "seconds") if role not in given]:
            raise FormatError(
                f"{self._table.path}: missing column {', '.join(map(repr, missing))}; it has "
                f"{', '.join(self._table.columns)}. Line 1 must name the columns. Say which it is: --column "
                "threads=NAME (or the number of all rows), --column seconds=NAME:ms (or s, us, ns; * is the number of "
                "threads in names: seconds=t*:ms)"
            )

    def _free(self) -> list[int]:
        taken = self._dropped | self._counts.keys() | self._said.keys() | set(self._at.values())
        return [i for i in range(len(self._names)) if i not in taken]

    def _take(self, role: str, alike: Sequence[int]) -> bool:
        """Give the role to the one column among those alike; whether there is one."""
        exact = [i for i in alike if self._table.columns[i] == role] or list(alike)
        if len(exact) > 1:
            named = [self._table.columns[i] for i in exact]
            unit = ":ms" if role == "seconds" else ""
            raise FormatError(
                f"{self._table.path}: {role} may be {' or '.join(map(repr, named))}; say which it is: "
                + " or ".join(f"--column '{role}={name}{unit}'" for name in named)
            )
        if exact:
            self._at[role] = exact[0]
        return bool(exact)

    def converted(self, note: Callable[[str], None]) -> TableFile:
        """The table with its columns under their names in the long form; what describes ops keeps its name."""
        path, columns = self._table.path, self._table.columns
        role_of = {i: role for role, i in self._at.items()}
        for i in self._free():
            if self._names[i] in _REPETITIONS and "repeat" not in self._at:
                note(f"{path}: the column {columns[i]!r} numbers repetitions, and does not describe ops")
                self._dropped.add(i)
        others = [i for i in self._free() if self._names[i] in _USUAL["threads"] or _unit_of(self._names[i])]
        if others:
            named = ", ".join(repr(columns[i]) for i in others)
            note(f"{path}: other columns have the threads and the times, and these are left out: {named}")
            self._dropped.update(others)
        features = [i for i, role in self._said.items() if role == "feature"]
        kept = [*sorted(role_of), *sorted([*self._free(), *features])]
        for role, i in self._at.items():
            if columns[i] != role:
                note(f"{path}: {role} is {columns[i]!r}" + (f", in {self._unit}" if role == "seconds" else ""))
        names = [role_of.get(i, columns[i]) for i in kept]
        names += ["threads"] if self._all_threads is not None else ["threads", "seconds"] if self._counts else []
        if clash := [name for name in names if names.count(name) > 1]:
            raise FormatError(f"{path}: another column is {clash[0]}; give --column ignored={clash[0]}")
        called = {role: columns[i] for role, i in self._at.items()}
        described = frozenset(columns[i] for i in features)
        return replace(self._table, columns=tuple(names), rows=self._rows(kept), called=called, features=described)

    def _rows(self, kept: Sequence[int]) -> Iterator[tuple[int, Any]]:
        seconds_at = self._at.get("seconds")
        for number, cells in self._table.rows:
            if isinstance(cells, FormatError):
                yield number, cells
                continue
            row = [self._seconds(number, i, cells[i]) if i == seconds_at else cells[i] for i in kept]
            if self._all_threads is not None:
                row.append(self._all_threads)
            if not self._counts:
                yield number, row
            for i, threads in self._counts.items():
                yield number, [*row, threads, self._seconds(number, i, cells[i])]

    def _seconds(self, number: int, at: int, cell: Any) -> Any:
        """The seconds in a cell, None where it has no time; what is wrong with it, to be raised where it is read."""
        text = str("" if cell is None else cell).strip()
        if text.lower() in NO_TIME:
            return None
        try:
            value = math.nan if "_" in text else float(text)
        except ValueError:
            value = math.nan
        if math.isnan(value):
            comma = "; write it without a comma, which may be of decimals or of thousands" if "," in text else ""
            return self._table.error(number, self._table.columns[at], f"must be a number, got {cell!r}{comma}")
        return value / UNITS[self._unit]


def _unit_of(plain: str) -> str | None:
    """The unit of a plain name that is surely that of the time of a run; "s" alone may be anything."""
    found = _TIME.fullmatch(plain)
    if not found or (found["s"] == "s" and not found["stem"]):
        return None
    return next(unit for unit in UNITS if found[unit])
