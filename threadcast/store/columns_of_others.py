"""Finds the columns of the long form in tables of other programs: usual names, units of time, a column a thread count.

What a name does not surely say is refused, with the `--column` that says it. A time whose name has no unit is in
seconds, which the user is told, and refused where one of them would take a quarter of an hour.
"""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from threadcast.core.errors import FormatError, InvalidInput
from threadcast.store.column_names import (
    CORES,
    DATE,
    OF_COUNT,
    OTHERS,
    REPETITION,
    THREADS,
    THREADS_OF_EACH,
    TIME_UNIT,
    UNITS,
    form_of,
    is_result,
    parted,
    plain_name,
    rank_of_time,
    unit_of,
)
from threadcast.store.table_files import TableFile

ROLES = ("machine", "op", "id", "threads", "affinity", "repeat", "seconds", "ignored")
"""What `--column` can say of a column; a role's name is that of its column in the long form."""

TOO_LONG = 1000.0
"""Times from here on are hardly seconds where nothing says their unit."""

NO_TIME = {"", "na", "n/a", "#n/a", "nan", "null", "none", "nil", "-", "--", "?"}

_AT_ALL = 0.9
"""Share of the numbers of threads at which the values of what describes an op are found, on average."""
_WORDS = {
    "compact": {"", "compact", "close", "true", "primary", "master", "false", "none", "disabled"},
    "spread": {"spread", "scatter", "balanced"},
}
"""OpenMP's words for affinities; threads that it does not bind are placed by the system, and are compact for lack of a
better word."""


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
        role, _, name = text.partition("=")
        name, colon, unit = name.strip().rpartition(":") if role.strip() == "seconds" else (name.strip(), "", "")
        if not colon and unit:
            name, unit = unit, ""
        if role.strip() not in ROLES or not name:
            raise InvalidInput(f"{text!r} must be ROLE=NAME, where ROLE is {', '.join(ROLES)}: threads=num_threads")
        if colon and unit not in UNITS:
            raise InvalidInput(f"{text!r}: {unit!r} is no unit; it must be {', '.join(UNITS)}: {role}={name}:ms")
        return cls(role.strip(), name, unit or None)


def in_long_form(table: TableFile, choices: Sequence[Choice], note: Callable[[str], None]) -> TableFile:
    """The table with the columns of the long form under their names there, times in seconds, one case in a row.

    `note` is called with a sentence on each column that has another name. FormatError where two columns may be meant,
    or a time has no unit that fits; InvalidInput for a choice of a column that the table lacks.
    """
    twice = {name for name in table.columns if name and table.columns.count(name) > 1}
    for name in table.columns:
        if name in twice:
            raise FormatError(f"{table.path}: the column {name!r} is there twice")
    if not choices and any(name.startswith("json.") for name in table.columns) and "seconds" in table.columns:
        return table  # which threadcast wrote
    return _Finding(table, choices, note).found()


class _Finding:
    """One table whose columns are looked for."""

    def __init__(self, table: TableFile, choices: Sequence[Choice], note: Callable[[str], None]) -> None:
        self.table, self.rows, self.note = table, list(table.rows), note
        self.names = [plain_name(name) for name in table.columns]
        self.at: dict[str, int] = {}
        """Position of the column of each role."""
        self.chosen: dict[str, Choice] = {}
        self.wide: dict[int, int] = {}
        """Number of threads by the position of its column of times."""
        self.dropped: set[int] = set()
        for choice in choices:
            self._choose(choice)

    def found(self) -> TableFile:
        for role, pattern in OTHERS.items():
            self._find_other(role, pattern)
        if not self.wide and "threads" not in self.at:
            self._find_threads()
        if not self.wide and "seconds" not in self.at:
            self._find_time()
        if not self.wide and "threads" not in self.at:
            self._find_wide()
        if "repeat" in self.table.columns:
            self.at.setdefault("repeat", self.table.columns.index("repeat"))
        if self.wide and "threads" in self.at:
            named = self.table.columns[self.at["threads"]]
            raise FormatError(
                f"{self.table.path}: threads are said by the column {named!r} and by the numbers in "
                f"{self._form(self.wide)!r}; leave out one: --column 'ignored={named}', or give a row for each time"
            )
        if not self.wide and (missing := [role for role in ("threads", "seconds") if role not in self.at]):
            raise self._missing(missing)
        return self._converted()

    def _choose(self, choice: Choice) -> None:
        numbered, same = "*" in choice.name, form_of if "*" in choice.name else str.lower
        alike = [i for i, name in enumerate(self.table.columns) if same(name) == same(choice.name)]
        exact = [i for i in alike if self.table.columns[i] == choice.name] or alike
        if choice.role == "threads" and not exact and choice.name.isdigit():  # the number of all rows
            self.dropped.update(i for i, name in enumerate(self.names) if name == "threads")
            exact = [len(self.names)]
            self.names.append("threads")
            self.table = replace(self.table, columns=(*self.table.columns, "threads"))
            self.rows = [
                (at, cells if isinstance(cells, FormatError) else [*cells, int(choice.name)]) for at, cells in self.rows
            ]
        if not exact or (len(exact) > 1 and not numbered):
            raise InvalidInput(
                f"{self.table.path} has no column {choice.name!r}, which --column says is {choice.role}; it has "
                f"{', '.join(self.table.columns)}"
            )
        self.chosen[choice.role] = choice
        if choice.role == "ignored":
            self.dropped.update(exact)
        elif choice.role == "seconds" and numbered:
            self.wide = {i: int("".join(re.findall(r"\d+", self.table.columns[i])[:1]) or 0) for i in exact}
        else:
            self.at[choice.role] = exact[0]

    def _named(self, pattern: re.Pattern[str]) -> list[int]:
        """The columns of which nothing else is known whose plain names are of this pattern."""
        free = self.dropped | set(self.at.values())
        return [i for i, name in enumerate(self.names) if pattern.fullmatch(name) and i not in free]

    def _find_other(self, role: str, pattern: re.Pattern[str]) -> None:
        alike = self._named(pattern)
        exact = [i for i in alike if self.table.columns[i] == role]
        words = [i for i in exact or alike if exact or role == "id" or not all(map(_is_number, self._cells(i)))]
        if role not in self.at and (exact or len(words) == 1):
            self.at[role] = words[0]
        if role == "id" and role in self.at and len(set(map(str, self._cells(self.at[role])))) == len(self.rows) > 1:
            self.dropped.add(self.at.pop(role))  # which numbers rows

    def _find_threads(self) -> None:
        if threads := self._named(THREADS):
            self._take("threads", threads)
        elif cores := self._named(CORES):
            counts = [columns for form, columns in self._counts().items() if form != "*"]
            if parts := self._named(THREADS_OF_EACH):
                raise self._doubt("threads", [*cores, *parts])
            if counts:
                raise FormatError(
                    f"{self.table.path}: threads may be {self.table.columns[cores[0]]!r} or the numbers in "
                    f"{self._form(counts[0])!r}; say which: --column 'threads={self.table.columns[cores[0]]}' or "
                    f"--column 'ignored={self.table.columns[cores[0]]}'"
                )
            self._take("threads", cores)

    def _find_time(self) -> None:
        if "seconds" in self.table.columns:
            self.at["seconds"] = self.table.columns.index("seconds")
            return
        ranked: dict[int, list[int]] = {}
        for i, name in enumerate(self.names):
            rank = rank_of_time(name)
            if rank is not None and i not in self.at.values() and i not in self.dropped:
                ranked.setdefault(rank, []).append(i)
        if ranked:
            self._take("seconds", ranked[min(ranked)])

    def _take(self, role: str, alike: Sequence[int]) -> None:
        """Give the role to the one column among those alike; refused where they differ in any row."""
        if len(alike) > 1 and len({tuple(map(str, self._cells(i))) for i in alike}) > 1:
            raise self._doubt(role, alike)
        self.at[role] = alike[0]
        self.dropped.update(alike[1:])

    def _doubt(self, role: str, alike: Sequence[int]) -> FormatError:
        named = " or ".join(repr(self.table.columns[i]) for i in alike)
        return FormatError(f"{self.table.path}: {role} may be {named}; say which it is: {self._remedy(role, alike)}")

    def _remedy(self, role: str, alike: Sequence[int]) -> str:
        units = [f":{unit_of(self.names[i]) or 'ms'}" if role == "seconds" else "" for i in alike]
        return " or ".join(
            f"--column '{role}={self.table.columns[i]}{unit}'" for i, unit in zip(alike, units, strict=True)
        )

    def _missing(self, roles: Sequence[str]) -> FormatError:
        remedy = {
            "threads": "--column threads=NAME (or the number of all rows)",
            "seconds": "--column seconds=NAME:ms (or s, us, ns)",
        }
        perhaps = [i for i, name in enumerate(self.names) if unit_of(name) and i not in self.dropped]
        if "seconds" in roles and perhaps:
            remedy["seconds"] = self._remedy("seconds", perhaps)
        if bare := self._counts().get("*"):
            named = ", ".join(repr(self.table.columns[i]) for i in bare)
            remedy["seconds"] += f"; where {named} are numbers of threads: --column 'seconds=*:s'"
        return FormatError(
            f"{self.table.path}: missing column {', '.join(map(repr, roles))}; it has {', '.join(self.table.columns)}. "
            f"Line 1 must name the columns. Say which it is: {' '.join(remedy[role] for role in roles)}; a table needs "
            "threads and seconds, and op or columns that describe ops"
        )

    def _counts(self) -> dict[str, dict[int, int]]:
        """The columns of times at numbers of threads, by the form of their names, where several are alike."""
        alike: dict[str, dict[int, int]] = {}
        for i, name in enumerate(self.names):
            found = OF_COUNT.fullmatch(parted(name)[0])
            if found and i not in self.at.values() and i not in self.dropped:
                alike.setdefault(form_of(self.table.columns[i]), {})[i] = int(found["n"])
        return {form: columns for form, columns in alike.items() if len(columns) > 1}

    def _find_wide(self) -> None:
        found = [columns for form, columns in self._counts().items() if form != "*"]
        if len(found) > 1:
            forms = [(self._form(columns), unit_of(self.names[max(columns)]) or "ms") for columns in found]
            named = " or ".join(repr(form) for form, _ in forms)
            remedy = " or ".join(f"--column 'seconds={form}:{unit}'" for form, unit in forms)
            raise FormatError(f"{self.table.path}: the times may be in {named}; say where, and their unit: {remedy}")
        for columns in found:
            self.wide = columns
            self.at.pop("seconds", None)
            said = f"each of the {len(columns)} columns {self._form(columns)!r} has the times of one number of threads"
            self.note(f"{self.table.path}: {said}")

    def _form(self, columns: Iterable[int]) -> str:
        return re.sub(r"\d+", "*", self.table.columns[max(columns)], count=1)

    def _cells(self, at: int) -> list[Any]:
        return [cells[at] for _, cells in self.rows if not isinstance(cells, FormatError)]

    def _converted(self) -> TableFile:
        times = sorted(self.wide) or [self.at["seconds"]]
        unit = self._unit(times)
        role_of = {i: role for role, i in self.at.items()}
        kept = [
            i for i, name in enumerate(self.table.columns)
            if i in role_of or (i not in self.dropped and i not in self.wide and name not in (*self.at, "seconds"))
        ]  # fmt: skip
        for role, i in self.at.items():
            if (name := self.table.columns[i]) != role:
                self.note(f"{self.table.path}: {role} is {name!r}{f', in {unit}' if role == 'seconds' else ''}")
        roles = {"op", "id", "machine"}
        others = [i for i in kept if role_of.get(i) in roles or (i not in role_of and not self._may_be_result(i))]
        if results := [i for i in kept if i not in role_of and self._may_be_result(i) and self._varies(i, others)]:
            named = ", ".join(repr(self.table.columns[i]) for i in results)
            self.note(f"{self.table.path}: results and dates describe no op, and are left out: {named}")
            kept = [i for i in kept if i not in results]
        for i in (i for i in others if i not in role_of and i in kept and self._may_number_repetitions(i, others)):
            self.note(
                f"{self.table.path}: {(name := self.table.columns[i])!r} is taken to describe ops, and has the same "
                f"numbers for all of them; if it numbers repetitions: --column 'repeat={name}'"
            )
        affinity_at = self.at.get("affinity")
        words = {} if affinity_at is None else self._affinities(affinity_at)

        def rows() -> Iterable[tuple[int, Any]]:
            for number, cells in self.rows:
                if isinstance(cells, FormatError):
                    yield number, cells
                    continue
                changed = dict(enumerate(cells))
                if affinity_at is not None:
                    changed[affinity_at] = words.get(str(cells[affinity_at] or ""), cells[affinity_at])
                for i in times:
                    changed[i] = self._seconds(number, i, cells[i], unit)
                    further = (self.wide[i], changed[i]) if self.wide else ()
                    yield number, [*(changed[at] for at in kept), *further]

        columns = (
            *(role_of.get(i, self.table.columns[i]) for i in kept), *(("threads", "seconds") if self.wide else ())
        )  # fmt: skip
        called = {role: self.table.columns[i] for role, i in self.at.items()}
        return replace(self.table, columns=columns, rows=iter(rows()), called=called)

    def _may_be_result(self, at: int) -> bool:
        """Whether a column has what was measured, or when, by its name."""
        name = self.names[at]
        if self.table.columns[at].startswith(("feature.", "counter.", "json.")):
            return False
        return DATE.fullmatch(name) is not None or (is_result(name) and all(map(_is_number, self._cells(at))))

    def _varies(self, at: int, others: Sequence[int]) -> bool:
        """Whether values of a column belong to single numbers of threads, among rows that agree in the `others`, as
        what was measured does; what describes ops has its values at all of them."""
        threads_at = self.at.get("threads")
        groups: dict[tuple[str, ...], dict[str, set[str]]] = {}
        for _, cells in self.rows:
            if not isinstance(cells, FormatError):
                values = groups.setdefault(tuple(str(cells[i]) for i in others), {})
                values.setdefault(str(cells[at]), set()).add("" if threads_at is None else str(cells[threads_at]))
        if threads_at is None or len(set(map(str, self._cells(at)))) == 1:
            return all(len(values) == 1 for values in groups.values())
        parts = [
            len(some) / len(every)
            for values in groups.values()
            for every in [set().union(*values.values())]
            for some in values.values()
            if len(every) > 1
        ]
        return not parts or sum(parts) < _AT_ALL * len(parts)

    def _may_number_repetitions(self, at: int, others: Sequence[int]) -> bool:
        """Whether a column has the numbers 0 or 1 to n for whatever the `others` say, as a grid of sizes may have, and
        nothing tells repetitions."""
        if "repeat" in self.at or REPETITION.fullmatch(self.table.columns[at].removeprefix("feature.")):
            return False
        values: dict[tuple[str, ...], set[float | None]] = {}
        for _, cells in self.rows:
            if not isinstance(cells, FormatError):
                values.setdefault(tuple(str(cells[i]) for i in others if i != at), set()).add(_bare_number(cells[at]))
        first = next(iter(values.values()), set())
        counted = [set(map(float, range(start, start + len(first)))) for start in (0, 1)]
        return len(values) > 1 < len(first) and first in counted and all(found == first for found in values.values())

    def _affinities(self, at: int) -> dict[str, str]:
        """What the words of a column are called here; FormatError where two of them are of one affinity."""
        found: dict[str, str] = {}
        for cell in dict.fromkeys("" if cell is None else str(cell) for cell in self._cells(at)):
            said = re.split(r"[,\s]+", cell.strip().lower())
            known = [name for word in said for name, words in _WORDS.items() if word in words]
            if not known:
                continue
            same = next((other for other, name in found.items() if name == known[0] and _differ(other, cell)), "")
            if same:
                column = self.table.columns[at]
                raise FormatError(
                    f"{self.table.path}: {cell!r} and {same!r} in {column!r} are both {known[0]}, so their times would "
                    f"count as of one case; give the rows of one of them, or --column 'ignored={column}'"
                )
            found[cell] = known[0]
        return found

    def _unit(self, times: Sequence[int]) -> str:
        """The unit of the times."""
        chosen = self.chosen.get("seconds")
        unit = chosen.unit if chosen and chosen.unit else unit_of(self.names[times[0]])
        if unit:
            return unit
        form = self._form(times) if self.wide else self.table.columns[times[0]]
        bare = [cell for i in times for cell in map(_bare_number, self._cells(i)) if cell is not None]
        by_row = [self.table.columns[i] for i in self._named(TIME_UNIT)]
        if by_row or (bare and max(bare) >= TOO_LONG):
            why = f"{by_row[0]!r} may say it row by row" if by_row else f"{max(bare):g} is hardly in seconds"
            raise FormatError(
                f"{self.table.path}: nothing says in which unit {form!r} is, and {why}; say it: --column "
                f"'seconds={form}:us' (or s, ms, ns)"
            )
        if bare:
            self.note(
                f"{self.table.path}: {form!r} says no unit and is taken to be in seconds; if it is not: --column "
                f"'seconds={form}:ms' (or us, ns)"
            )
        return "s"

    def _seconds(self, number: int, at: int, cell: Any, unit: str) -> Any:
        """The seconds in a cell, None where it has no time; what is wrong with it, to be raised where it is read."""
        if isinstance(cell, datetime.timedelta):
            return cell.total_seconds()
        if str("" if cell is None else cell).strip().lower() in NO_TIME:
            return None
        value = _bare_number(cell)
        if value is None:
            comma = "; write it without a comma, which may be of decimals or of thousands" if "," in str(cell) else ""
            return self.table.error(number, self.table.columns[at], f"must be a number, got {cell!r}{comma}")
        return value / UNITS[unit]


def _differ(word: str, other: str) -> bool:
    """Whether two words for affinities are given, and are not the same."""
    said = {word.strip().lower(), other.strip().lower()} - {""}
    return len(said) > 1


def _bare_number(cell: Any) -> float | None:
    """The number in a cell; None where it has none, or is not a number."""
    try:
        value = float(cell) if "_" not in str(cell) else math.nan
    except (TypeError, ValueError, OverflowError):
        return None
    return None if math.isnan(value) else value


def _is_number(cell: Any) -> bool:
    text = str("" if cell is None else cell).strip().lower().rstrip("% ")
    return text in NO_TIME or _bare_number(text) is not None
