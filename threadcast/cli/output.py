"""The output of every command: its result on stdout, everything else on stderr.

With `--json` stdout is exactly one JSON document: the result, or, when the command failed, `{"error": {"type",
"message", "pointer"?}}`; the message is on stderr in both cases. Usage errors (exit code 2) are text on stderr only, as
the options may not have been understood.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import click
import numpy as np
from rich import box
from rich.console import Console, RenderableType
from rich.table import Table

from threadcast.core.figures import duration, significant
from threadcast.core.printable import printable
from threadcast.core.progress import ProgressBar

PIPED_COLUMNS = 80
"""Width of tables, in characters, on a stdout that is no terminal."""


@dataclass(frozen=True, slots=True)
class Output:
    """Writes a command's result, notes and warnings; `cli.options.common` passes it to the command."""

    as_json: bool = False

    def result(self, document: Any, *shown: RenderableType) -> None:
        """Write the command's one result: `document` under --json, otherwise `shown` (text, tables) in order.

        `document` is JSON; numpy scalars and arrays in it are converted. Not a number becomes null.
        """
        if self.as_json:
            click.echo(json.dumps(_plain(document), indent=2, allow_nan=False))
            return
        console = _console(sys.stdout)
        for renderable in shown:
            console.print(renderable, soft_wrap=isinstance(renderable, str), crop=False)

    def note(self, message: str) -> None:
        """Write a message to the user on stderr, which is not part of the result."""
        click.echo(message, err=True)

    def warn(self, message: str) -> None:
        """Warn the user on stderr of something that limits the result."""
        click.echo(f"threadcast: warning: {printable(message)}", err=True)

    def progress(self, doing: str, *, total: int | None = None) -> ProgressBar:
        """A context manager that shows on stderr how far the task `doing` is, and its remaining time."""
        return ProgressBar(doing, total=total)


def _unbroken(renderable: RenderableType) -> int:
    """The width, in characters, in which no text of it breaks."""
    console = _console(sys.stdout)
    return console.measure(renderable, options=console.options.update(max_width=10_000)).maximum


def table(
    columns: Sequence[str], rows: Iterable[Sequence[Any]], *, title: str | None = None,
    unneeded: Iterable[Collection[str]] = (),
) -> Table:  # fmt: skip
    """A table for people: numbers right-aligned with three significant digits, None as "-".

    A column whose name ends in "_s" is in seconds and is shown with a time unit. Where stdout is too narrow, the
    columns of each entry of `unneeded` are left out together, the first entry first, until no text breaks; what is
    still too wide then is shown wider than stdout.
    """
    cells = [list(row) for row in rows]
    found = _drawn(columns, cells, title)
    for names in unneeded:
        if _unbroken(found) <= _console(sys.stdout).width:
            break
        kept = [i for i, column in enumerate(columns) if column not in names]
        columns, cells = [columns[i] for i in kept], [[row[i] for i in kept] for row in cells]
        found = _drawn(columns, cells, title)
    if unneeded:
        found.width = _unbroken(found)
    return found


def _drawn(columns: Sequence[str], cells: Sequence[Sequence[Any]], title: str | None) -> Table:
    shown_table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", pad_edge=False)
    for i, column in enumerate(columns):
        numeric = column.endswith("%") or any(_is_number(row[i]) for row in cells)
        shown_table.add_column(column.removesuffix("_s"), justify="right" if numeric else "left", overflow="fold")
    for row in cells:
        shown_table.add_row(*(_cell(column, value) for column, value in zip(columns, row, strict=True)))
    return shown_table


def _cell(column: str, value: Any) -> str:
    if value is None:
        return "-"
    if not _is_number(value):
        return printable(str(value))
    if column.endswith("_s"):
        return duration(float(value))
    return f"{value:,}" if isinstance(value, int | np.integer) else significant(float(value))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, np.ndarray | np.generic):
        return _plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _console(file: Any) -> Console:
    width = None if file.isatty() else PIPED_COLUMNS
    return Console(file=file, width=width, markup=False, emoji=False, highlight=False)
