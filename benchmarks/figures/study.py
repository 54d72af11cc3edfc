"""A study: a table of data/studies whose rows name their run, and the section of docs/figures that shows it."""

from __future__ import annotations

import csv
import io
import math
import shlex
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import geometric_mean, median
from typing import Self

ROOT = Path(__file__).parents[2]
Row = dict[str, str]
"""One line of a table: column -> text, as it is stored; empty where there is no value."""


@dataclass(frozen=True, slots=True)
class Study:
    """What one benchmark measures. `columns` are those of its table, all but `run`, which each row has besides."""

    name: str
    """Of the table, data/studies/NAME.csv, and of the section's markers."""
    page: str
    """docs/figures/PAGE.md."""
    columns: tuple[str, ...]
    show: Callable[[list[Row]], str] = field(repr=False)
    """The section's Markdown, from the table's rows."""
    beside: Self | None = field(default=None, repr=False)
    """The study of the same runs whose section, earlier on the page, names them."""

    @property
    def table(self) -> Path:
        """The file of the stored rows."""
        return ROOT / "data" / "studies" / f"{self.name}.csv"

    @property
    def document(self) -> Path:
        """The page that has the section."""
        return ROOT / "docs" / "figures" / f"{self.page}.md"

    @property
    def writes(self) -> str:
        """What a benchmark's help says of `--write`."""
        return f"store data/studies/{self.table.name} and show it in docs/figures/{self.document.name}"

    def rows(self) -> list[Row]:
        """The stored rows; none where there is no table yet. Raises ValueError where its columns are others."""
        if not self.table.exists():
            return []
        with self.table.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            if tuple(reader.fieldnames or ()) != (*self.columns, "run"):
                raise ValueError(f"{self.table.name} has the columns {reader.fieldnames}, not {self.columns} and run")
            return list(reader)

    def store(self, rows: Iterable[Mapping[str, object]], run: object, *, replaces: tuple[str, ...] = ()) -> None:
        """Put `rows` of `run` into the table, in place of all, and write the section.

        With columns that it `replaces`, rows stay whose values in these columns no new row has. A row's own `run`
        stands before `run`. Raises ValueError where a row has other columns than the table.
        """
        rows = list(rows)
        new = {tuple(stored(row[column]) for column in replaces) for row in rows}
        found = [row for row in self.rows() if replaces and tuple(row[column] for column in replaces) not in new]
        for row in rows:
            values = {"run": of_run(run), **row}
            if values.keys() != {*self.columns, "run"}:
                raise ValueError(f"{self.name}: a row has {sorted(row)}, not {sorted(self.columns)}")
            found.append({column: stored(values[column]) for column in (*self.columns, "run")})
        text = io.StringIO()
        writer = csv.DictWriter(text, (*self.columns, "run"), lineterminator="\n")
        writer.writeheader()
        writer.writerows(found)
        self.table.write_text(text.getvalue(), encoding="utf-8")
        self.write()

    def printed(self, rows: Iterable[Mapping[str, object]]) -> str:
        """All columns of rows that need not be stored, as a Markdown table."""
        return table(self.columns, ([stored(row[column]) for column in self.columns] for row in rows))

    def section(self) -> str:
        """The section as the stored table gives it: the runs, what is shown of it, and where all of it is."""
        rows = self.rows()
        runs = Counter(row["run"] for row in rows)
        if self.beside and runs.keys() <= {row["run"] for row in self.beside.rows()}:
            said = "Runs as above"
        else:
            said = f"Run: {_said(runs)}"
        link = f"[All rows](../../data/studies/{self.table.name})"
        return f"{self.show(rows).strip()}\n\n{said}. {link}."

    def write(self) -> None:
        """Put the section between its markers in the page."""
        self.document.write_text(with_section(self.document.read_text(), self.name, self.section()), encoding="utf-8")


def _said(runs: Mapping[str, int]) -> str:
    """The runs and their numbers of rows, with what all end with, as the machine, once."""
    if len(runs) < 2:
        return "".join(runs)
    parts = [run.split(", ") for run in runs]
    alike = 0
    while all(part[-alike - 1 :] == parts[0][-alike - 1 :] for part in parts) and alike < min(map(len, parts)) - 1:
        alike += 1
    own = (", ".join(part[: len(part) - alike]) for part in parts)
    said = "; ".join(f"{run} ({count} rows)" for run, count in zip(own, runs.values(), strict=True))
    return f"{said}; each: {', '.join(parts[0][len(parts[0]) - alike :])}" if alike else said


def with_section(page: str, name: str, section: str) -> str:
    """`page` with `section` between the markers of `name`. Raises ValueError where they are not there once."""
    begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
    if page.count(begin) != 1 or page.count(end) != 1:
        raise ValueError(f"the page needs one {begin} and one {end}")
    before, _, rest = page.partition(begin)
    return f"{before}{begin}\n{section}\n{end}{rest.partition(end)[2]}"


def of_run(facts: object) -> str:
    """What a row says of its run: the command of this process and the facts; text stays as it is."""
    if isinstance(facts, str):
        return facts
    command = shlex.join(["python", "benchmarks/" + Path(sys.argv[0]).name, *sys.argv[1:]])
    return f"`{command}`, {facts}"


def stored(value: object) -> str:
    """A value as its table holds it: numbers with four digits, yes or no, nothing for None and nan."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def spread(column: str, values: Sequence[float], shape: str = ".2f") -> dict[str, str]:
    """The median of values as `column`, the least and the most beside it."""
    ends = {column: median(values), f"{column}_low": min(values), f"{column}_high": max(values)}
    return {name: format(value, shape) for name, value in ends.items()}


def table(titles: Iterable[object], lines: Iterable[Iterable[object]], *, empty: str = "-") -> str:
    """A Markdown table; `empty` stands for what is empty."""
    head, *body = ([str(cell) or empty for cell in line] for line in (titles, *lines))
    return "\n".join([_line(head), "|---" * len(head) + "|", *map(_line, body)])


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def numbers(rows: Iterable[Row], column: str) -> list[float]:
    """The numbers of a column, without rows that have none."""
    return [float(row[column]) for row in rows if row[column]]


def by(rows: Iterable[Row], *columns: str) -> dict[tuple[str, ...], list[Row]]:
    """The rows of each combination of values of these columns, in the order in which these come."""
    found: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        found.setdefault(tuple(row[column] for column in columns), []).append(row)
    return found


def mean(rows: Iterable[Row], column: str) -> str:
    """The geometric mean of a column of ratios, as it is shown; empty of nothing."""
    values = numbers(rows, column)
    return f"{geometric_mean(values):.2f}" if values else ""


def counted(names: Iterable[str]) -> str:
    """Each name with its number, the most frequent first."""
    return ", ".join(f"{name} {count}" for name, count in Counter(names).most_common())


def least_to_most(rows: Iterable[Row], column: str) -> str:
    """The range of a column, as stored; one number where all are equal."""
    found = sorted((row[column] for row in rows if row[column]), key=float)
    return "" if not found else found[0] if found[0] == found[-1] else f"{found[0]} to {found[-1]}"


def span(row: Row, column: str) -> str:
    """A value and the range that stands beside it in `column_low` and `column_high`."""
    if not row[column]:
        return ""
    return f"{row[column]} ({row[f'{column}_low']} to {row[f'{column}_high']})"
