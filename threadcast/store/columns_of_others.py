"""Finds the columns of the long form in tables of other programs: names, units of time, wide tables, OpenMP's words.

A unit comes from `--column`, from the column's name, from a column `time_unit`, or from the cell. A time whose name
says no unit is in seconds, which the user is told, and refused where one of them would take a quarter of an hour.
"""

from __future__ import annotations

import datetime
import math
import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from threadcast.core.errors import FormatError, InvalidInput
from threadcast.store.column_names import (
    ANY_TIME,
    CELL,
    CORES,
    DATE,
    NAMED_UNIT,
    OF_COUNT,
    OF_REPEAT,
    OTHERS,
    RESULT,
    THREADS,
    THREADS_OF_EACH,
    TIME_UNIT,
    UNITS,
    form_of,
    is_measured,
    is_of_run,
    parted,
    plain_name,
    rank_of_time,
    spelled_unit,
    unit_of,
)
from threadcast.store.table_files import TableFile

ROLES = ("machine", "op", "id", "threads", "affinity", "repeat", "seconds", "ignored")
"""What `--column` can say of a column; a role's name is that of its column in the long form."""

OWN_THREADS = "own_threads"
"""Threads that a benchmark program started itself, which are none of the op's; they describe nothing."""

TOO_LONG = 1000.0
"""Times from here on are hardly seconds where nothing says their unit."""

_AT_ALL = 0.9
"""Share of the numbers of threads at which the values of what describes an op are found, on average."""
_NEEDED = {"threads", "seconds"}
_COMPACT = ({"", "compact", "close"}, {"true"}, {"primary", "master"}, {"false", "none", "disabled"})
"""Words for threads beside each other, those that say it most surely first: unbound threads are placed by the system,
and are COMPACT for lack of a better word only."""
_SPREAD = {"spread", "scatter", "balanced"}
_COMMA = re.compile(r"[-+]?\d*,\d+(e[-+]?\d+)?", re.I)
_THOUSANDS = re.compile(r"[-+]?[1-9]\d{0,2},\d{3}")
_THREADS_OF_CELL = re.compile(r"\s*(\d+)\s*(?:t|threads?|cores?)\s*", re.I)
_MOST_BARE = 1024
"""Numbers that are whole names of columns and all larger are no numbers of threads, but years or sizes."""
NO_TIME = {"", "na", "n/a", "#n/a", "nan", "null", "none", "nil", "-", "--", "?"}


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
    if not choices and any(name.startswith("json.") for name in table.columns) and set(table.columns) >= _NEEDED:
        return table  # which threadcast wrote
    return _Finding(replace(table, rows=iter(rows := list(table.rows))), rows, choices, note).found()


class _Finding:
    """One table whose columns are looked for."""

    def __init__(
        self, table: TableFile, rows: Sequence[tuple[int, Any]], choices: Sequence[Choice], note: Callable[[str], None]
    ) -> None:
        self.table, self.rows, self.note = table, rows, note
        self.names = [plain_name(name) for name in table.columns]
        self.at: dict[str, int] = {}
        self.chosen: dict[str, Choice] = {}
        self.wide: dict[int, int] = {}
        """Number of threads, or of the repetition, by the position of its column."""
        self.dropped: set[int] = set()
        for choice in choices:
            self._choose(choice)
        self._write_points()

    def _write_points(self) -> None:
        """Write decimal points for decimal commas: in times and results where one comma there cannot be that of
        thousands and none has a point, and then in other columns whose values are all numbers that stay apart."""
        if not any("," in cell for _, cells in self.rows if isinstance(cells, list) for cell in map(str, cells)):
            return
        columns = {i: {_number_of(cell) for cell in self._cells(i)} - NO_TIME for i in range(len(self.names))}
        chosen = {*self.wide, self.at.get("seconds")}
        measured = {i for i, name in enumerate(self.names) if i in chosen or is_measured(name)} - self.dropped
        found = {text for i in measured for text in columns[i] if re.match(r"[-+]?,?\d", text)}
        commas = {text for text in found if "," in text}
        if (
            all(map(_THOUSANDS.fullmatch, commas))
            or not all(map(_COMMA.fullmatch, commas))
            or any("." in text and _bare_number(text) is not None for text in found)
        ):
            return
        for i, texts in columns.items():
            own = {text for text in texts if "," in text}
            values = [_bare_number(text.replace(",", ".")) for text in texts]
            apart = None not in values and len(set(values)) == len(values)
            doubtful = all(map(_THOUSANDS.fullmatch, own)) and own != texts  # 1,250 beside 900
            if own and not doubtful and (i in measured or apart):
                self.note(f"{self.table.path}: {self.table.columns[i]!r} has decimal commas")
                for _, cells in self.rows:
                    if isinstance(cells, list) and _COMMA.fullmatch(_number_of(cells[i])):
                        cells[i] = cells[i].replace(",", ".")

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

    def found(self) -> TableFile:
        weakly = self._find_threads()
        for role, pattern in OTHERS.items():
            self._find_other(role, pattern)
        self._find_time(range(4 if "threads" in self.at and not weakly else 1))
        if not self.wide and "seconds" not in self.at:
            self._find_wide(weakly)
        elif self.wide and weakly:
            self._tell_threads_from_cores(self.wide)
        self._find_time(range(ANY_TIME + 1))
        if "repeat" in self.table.columns:
            self.at.setdefault("repeat", self.table.columns.index("repeat"))
        missing = [role for role in ("threads", "seconds") if role not in self.at]
        if not self.wide and missing:
            remedy = {
                "threads": "--column threads=NAME (or the number of all rows)",
                "seconds": "--column seconds=NAME:ms (or s, us, ns)",
            }
            raise FormatError(
                f"{self.table.path}: missing column {', '.join(map(repr, missing))}; it has "
                f"{', '.join(self.table.columns)}. Say which it is: {' '.join(remedy[role] for role in missing)}; a "
                "table needs threads and seconds, and op or columns that describe ops"
            )
        return self._converted()

    def _find_threads(self) -> bool:
        """Find the column of threads; whether its name may also be that of the machine's cores."""
        if "threads" in self.at:
            return False
        for pattern in (THREADS, CORES):
            alike = [i for i, name in enumerate(self.names) if pattern.fullmatch(name) and i not in self.dropped]
            parts = [i for i, name in enumerate(self.names) if pattern is CORES and THREADS_OF_EACH.fullmatch(name)]
            if alike and parts:
                raise self._doubt("threads", [*alike, *parts])
            self._take("threads", alike)
            if alike:
                return pattern is CORES
        return False

    def _find_other(self, role: str, pattern: re.Pattern[str]) -> None:
        alike = [i for i, name in enumerate(self.names) if pattern.fullmatch(name) and i not in self.at.values()]
        exact = [i for i in alike if self.table.columns[i] == role]
        words = [i for i in exact or alike if exact or role == "id" or not all(map(_is_number, self._cells(i)))]
        if role not in self.at and (exact or len(words) == 1):
            self.at[role] = words[0]
        if role == "id" and role in self.at and len(set(map(str, self._cells(self.at[role])))) == len(self.rows) > 1:
            self.dropped.add(self.at.pop(role))  # which numbers rows

    def _find_time(self, ranks: Iterable[int]) -> None:
        if self.wide or "seconds" in self.at:
            return
        if "seconds" in self.table.columns:
            self.at["seconds"] = self.table.columns.index("seconds")
            return
        ranked: dict[int, list[int]] = {}
        for i, name in enumerate(self.names):
            rank = rank_of_time(name)
            if rank is not None and i not in self.at.values() and i not in self.dropped:
                ranked.setdefault(rank, []).append(i)
        best = min(ranked.keys() & set(ranks), default=ANY_TIME)
        alike = ranked.get(best, []) if best in ranks else []
        if best < ANY_TIME or len(alike) > 1 or any(is_of_run(self.names[i]) for i in alike):
            self._take("seconds", alike)

    def _take(self, role: str, alike: Sequence[int]) -> None:
        """Give the role to the one column among those alike; refused where they differ in any row."""
        alike = [i for i in alike if i not in self.dropped]
        if role == "seconds":
            timed = [
                i for i in alike if any(isinstance(self._seconds(0, i, cell, "s"), float) for cell in self._cells(i))
            ]
            self.dropped.update(set(alike) - set(timed) if timed else ())  # as the time of day
            alike = sorted(timed or alike, key=lambda i: unit_of(self.names[i]) is None)
            alike = alike[:1] if self._agree(alike) else alike
        if len(alike) > 1 and len({tuple(map(str, self._cells(i))) for i in alike}) > 1:
            raise self._doubt(role, alike)
        if alike:
            self.at[role] = alike[0]
            self.dropped.update(alike[1:])

    def _doubt(self, role: str, alike: Sequence[int]) -> FormatError:
        called = {i: self._with_unit(i) if role == "seconds" else self.table.columns[i] for i in alike}
        named = " or ".join(repr(self.table.columns[i]) for i in alike)
        remedy = " or ".join(f"--column '{role}={name}'" for name in called.values())
        return FormatError(f"{self.table.path}: {role} may be {named}; say which it is: {remedy}")

    def _with_unit(self, at: int, form: str = "") -> str:
        """What `--column seconds=` needs for a column, or for the columns of a form."""
        return f"{form or self.table.columns[at]}:{unit_of(self.names[at]) or 'ms'}"

    def _agree(self, alike: Sequence[int]) -> bool:
        """Whether all columns say the same times, each in its own unit."""
        units = [unit_of(self.names[i]) for i in alike]
        if not all(units):
            return False
        rows = zip(
            *([self._seconds(0, i, cell, str(unit)) for cell in self._cells(i)] for i, unit in zip(alike, units))
        )
        return all(
            isinstance(first, float)
            and all(isinstance(t, float) and math.isclose(t, first, rel_tol=0.01) for t in rest)
            for first, *rest in rows
        )

    def _find_wide(self, weakly: bool) -> None:
        """Find columns of times whose names have numbers: of threads, or of repetitions beside a column of threads."""
        patterns = (OF_REPEAT,) if "threads" in self.at and not weakly else (OF_COUNT, OF_REPEAT)[: 1 + weakly]
        for pattern in patterns:
            alike: dict[str, dict[int, int]] = {}
            for i, name in enumerate(self.names):
                found = pattern.fullmatch(parted(name)[0])
                if found and i not in self.at.values() and i not in self.dropped:
                    alike.setdefault(form_of(name), {})[i] = int(found["n"])
            if any(len(columns) > 1 for columns in alike.values()):
                break
        else:
            return
        forms = {self._form(columns): columns for columns in alike.values()}
        if "*" in forms and self._begins_with_data(list(forms["*"].values())):
            raise FormatError(
                f"{self.table.path}: line 1 must have the names of columns, such as m,threads,seconds, got "
                f"{', '.join(self.table.columns)}; if these are numbers of threads: --column 'seconds=*:s'"
            )
        if "*" in forms and min(forms["*"].values()) > _MOST_BARE:
            numbers = ", ".join(repr(str(number)) for number in forms["*"].values())
            raise FormatError(
                f"{self.table.path}: the columns {numbers} are hardly numbers of threads; if they are: "
                "--column 'seconds=*:ms'"
            )
        if len(forms) > 1:
            named = " or ".join(map(repr, forms))
            remedy = " or ".join(f"--column 'seconds={self._with_unit(max(forms[form]), form)}'" for form in forms)
            raise FormatError(f"{self.table.path}: the times may be in {named}; say where, and their unit: {remedy}")
        [(form, columns)] = forms.items()
        self._tell_threads_from_cores(columns)
        if "threads" in self.at and not self._are_repetitions(columns):
            times = f"--column 'seconds={self._with_unit(max(columns), form)}'"
            raise FormatError(
                f"{self.table.path}: the numbers in {form!r} may be sizes or threads; repetitions are 1, 2, 3 and so "
                f"on. If they are sizes: {times}; if they are threads, also: --column "
                f"'ignored={self.table.columns[self.at['threads']]}'"
            )
        self.wide = columns
        what = "repetition" if "threads" in self.at else "number of threads"
        self.note(f"{self.table.path}: each of the {len(columns)} columns {form!r} has the times of one {what}")

    def _form(self, columns: Iterable[int]) -> str:
        return re.sub(r"\d+", "*", self.table.columns[max(columns)], count=1)

    def _are_repetitions(self, columns: Mapping[int, int]) -> bool:
        """Whether names have words of repetitions, and number these without gaps."""
        numbers = sorted(columns.values())
        without_gaps = numbers[0] in (0, 1) and numbers == list(range(numbers[0], numbers[0] + len(numbers)))
        return without_gaps and all(OF_REPEAT.fullmatch(parted(self.names[i])[0]) for i in columns)

    def _tell_threads_from_cores(self, columns: Mapping[int, int]) -> None:
        """Leave a column that may be the machine's cores to describe ops, where names of other columns say threads."""
        at = self.at.get("threads")
        if at is None or "threads" in self.chosen or not CORES.fullmatch(self.names[at]):
            return
        of_counts = all(OF_COUNT.fullmatch(parted(self.names[i])[0]) for i in columns)
        if of_counts and not self._are_repetitions(columns):
            del self.at["threads"]
        elif of_counts or not self._are_repetitions(columns):
            name, form = self.table.columns[at], self._form(columns)
            raise FormatError(
                f"{self.table.path}: threads may be {name!r} or the numbers in {form!r}; say which: --column "
                f"'threads={name}' or --column 'ignored={name}', with --column "
                f"'seconds={self._with_unit(max(columns), form)}'"
            )

    def _begins_with_data(self, counts: Sequence[int]) -> bool:
        """Whether what stands for names of columns, some of which are numbers, may be the first row of the table."""
        first = next((cells for _, cells in self.rows if not isinstance(cells, FormatError)), ())
        return (
            counts != sorted(counts)
            or any(map(str.__eq__, self.table.columns, map(str, first)))
            or all(map(_is_number, self.table.columns))
            or any(not name.isdigit() and _bare_number(name) is not None for name in self.table.columns)
        )

    def _cells(self, at: int) -> list[Any]:
        return [cells[at] for _, cells in self.rows if not isinstance(cells, FormatError)]

    def _converted(self) -> TableFile:
        times = sorted(self.wide) or [self.at["seconds"]]
        unit, unit_at = self._unit(times)
        threads = list(map(str, self._cells(self.at["threads"]))) if "threads" in self.at else []
        same = {
            i for i, name in enumerate(self.names)
            if name == OWN_THREADS or (CORES.fullmatch(name) and list(map(str, self._cells(i))) == threads)
        }  # fmt: skip
        role_of = {i: role for role, i in self.at.items()}
        hidden = ({*self.dropped, *self.wide, *same} | ({unit_at} - {None})) - role_of.keys()
        kept = [
            i for i, name in enumerate(self.table.columns)
            if i in role_of or (i not in hidden and name not in (*self.at, "seconds"))
        ]  # fmt: skip
        for role, i in self.at.items():
            if (name := self.table.columns[i]) != role:
                self.note(f"{self.table.path}: {role} is {name!r}{f', in {unit}' if role == 'seconds' else ''}")
        roles = {"op", "id", "machine"}
        others = [i for i in kept if role_of.get(i) in roles or (i not in role_of and not self._may_be_result(i))]
        if results := [i for i in kept if self._may_be_result(i) and i not in role_of and self._varies(i, others)]:
            named = ", ".join(repr(self.table.columns[i]) for i in results)
            self.note(f"{self.table.path}: results and dates describe no op, and are left out: {named}")
            kept = [i for i in kept if i not in results]
        affinity_at, threads_at = self.at.get("affinity"), self.at.get("threads")
        words = {} if affinity_at is None else self._words(affinity_at)
        numbers = self._size_of(times) if "threads" in self.at else "threads"
        added = ("seconds",) if numbers is None else (numbers, "seconds")

        def rows() -> Iterable[tuple[int, Any]]:
            for number, cells in self.rows:
                if isinstance(cells, FormatError):
                    yield number, cells
                    continue
                changed = dict(enumerate(cells))
                if affinity_at is not None:
                    changed[affinity_at] = words.get(str(cells[affinity_at] or ""), cells[affinity_at])
                    if changed[affinity_at] is None:
                        continue
                if threads_at is not None and (said := _THREADS_OF_CELL.fullmatch(str(cells[threads_at]))):
                    changed[threads_at] = said[1]
                per_s = unit if unit_at is None else cells[unit_at]
                for i in times:
                    changed[i] = self._seconds(number, i, cells[i], per_s)
                    further = ([changed[i]] if numbers is None else [self.wide[i], changed[i]]) if self.wide else ()
                    yield number, [*(changed[at] for at in kept), *further]

        columns = (*(role_of.get(i, self.table.columns[i]) for i in kept), *(added if self.wide else ()))
        called = {role: self.table.columns[i] for role, i in self.at.items()}
        return replace(self.table, columns=columns, rows=iter(rows()), called=called)

    def _size_of(self, times: Sequence[int]) -> str | None:
        """What the numbers in the names of columns of times beside a column of threads are: None for repetitions."""
        if not self.wide or self._are_repetitions(self.wide):
            return None
        name = self.names[times[0]]
        return "size" if OF_REPEAT.fullmatch(parted(name)[0]) else re.sub(r"\d+", "", name).strip("_") or "size"

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

    def _may_be_result(self, at: int) -> bool:
        """Whether a column has what was measured, or when, by its name."""
        name = self.names[at]
        if self.table.columns[at].startswith(("feature.", "counter.", "json.")):
            return False
        alike = [other for other in self.names if form_of(other) == form_of(name) != name]
        numbers, counts = {int(n) for other in alike for n in re.findall(r"\d+", other)[:1]}, set(self.wide.values())
        if len(alike) > 1 and numbers in (counts, counts - {1}):  # speed-ups s2, s4 beside times t1, t2, t4
            values = [
                _bare_number(cell) for i, other in enumerate(self.names) if other in alike for cell in self._cells(i)
            ]
            if any(value and not value.is_integer() for value in values):
                return all(map(_is_number, self._cells(at)))
        return DATE.fullmatch(name) is not None or (
            RESULT.fullmatch(name) is not None and all(map(_is_number, self._cells(at)))
        )

    def _words(self, at: int) -> dict[str, str | None]:
        """What the words of a column are called here; None where their rows are left out, beside surer ones."""
        found: dict[str, str | None] = {}
        ranks: dict[str, int] = {}
        cells = ["" if cell is None else str(cell) for cell in self._cells(at)]
        for cell in dict.fromkeys(cells):
            said = re.split(r"[,\s]+", cell.strip().lower())
            first = next((word for word in said if word in _SPREAD or any(word in words for words in _COMPACT)), None)
            if first in _SPREAD:
                found[cell] = "spread"
            elif first is not None:
                found[cell] = "compact"
                ranks[cell] = next(i for i, words in enumerate(_COMPACT) if first in words)
        for cell, rank in ranks.items():
            if rank > min(ranks.values()):
                found[cell] = None
                self.note(
                    f"{self.table.path}: {cells.count(cell):,} rows with {self.table.columns[at]}={cell} are left out: "
                    "other rows say more surely that threads are beside each other"
                )
        return found

    def _unit(self, times: Sequence[int]) -> tuple[str, int | None]:
        """The unit of the times, and the column that says it row by row, if there is one."""
        chosen = self.chosen.get("seconds")
        named = {unit_of(self.names[i]) for i in times}
        if chosen and chosen.unit:
            return chosen.unit, None
        if len(named) == 1 and (unit := named.pop()):
            return unit, None
        by_row = [i for i, name in enumerate(self.names) if TIME_UNIT.fullmatch(name) and i not in self.dropped]
        if by_row:
            return "the unit of each row", by_row[0]
        bare = [cell for i in times for cell in map(_bare_number, self._cells(i)) if cell is not None]
        form = self.table.columns[times[-1]]
        form = re.sub(r"\d+", "*", form, count=1) if self.wide else form
        if bare and max(bare) >= TOO_LONG:
            raise FormatError(
                f"{self.table.path}: nothing says in which unit {form!r} is, and {max(bare):g} is hardly in seconds; "
                f"say it: --column 'seconds={form}:us' (or s, ms, ns)"
            )
        if bare:
            self.note(
                f"{self.table.path}: {form!r} says no unit and is taken to be in seconds; if it is not: --column "
                f"'seconds={form}:ms' (or us, ns)"
            )
        return "s", None

    def _seconds(self, number: int, at: int, cell: Any, unit: str) -> Any:
        """The seconds in a cell, None where it has no time; what is wrong with it, to be raised where it is read."""
        if isinstance(cell, datetime.timedelta):
            return cell.total_seconds()
        text = unicodedata.normalize("NFKC", str(cell if cell is not None else "")).strip()
        if text.lower() in NO_TIME:
            return None
        if found := CELL.fullmatch(text):
            text, unit = found["number"], spelled_unit(found)
        elif unit not in UNITS:
            spelled = NAMED_UNIT.fullmatch(plain_name(str(unit)))
            if spelled is None or spelled["stem"]:
                name, units = self.table.columns[at], ", ".join(UNITS)
                return self.table.error(number, name, f"is in the unit {unit!r}; it must be {units}, got {cell!r}")
            unit = spelled_unit(spelled)
        value = _bare_number(text)
        if value is None:
            comma = "; write it without a comma, which may be of decimals or of thousands" if "," in text else ""
            return self.table.error(number, self.table.columns[at], f"must be a number, got {cell!r}{comma}")
        return value / UNITS[unit]


def _number_of(cell: Any) -> str:
    """A cell in small letters, without its unit of time."""
    text = unicodedata.normalize("NFKC", str(cell if cell is not None else "")).strip().lower()
    return found["number"] if (found := CELL.fullmatch(text)) else text


def _bare_number(cell: Any) -> float | None:
    """The number in a cell; None where it has none, or is not a number."""
    try:
        value = float(cell) if "_" not in str(cell) else math.nan
    except (TypeError, ValueError, OverflowError):
        return None
    return None if math.isnan(value) else value


def _is_number(cell: Any) -> bool:
    text = str(cell if cell is not None else "").strip().lower().rstrip("% ")
    return text in NO_TIME or _bare_number(text) is not None
