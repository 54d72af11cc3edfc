"""The options of commands that read tables of other programs."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from threadcast.cli.output import Output
from threadcast.core.errors import InvalidInput

if TYPE_CHECKING:
    from threadcast.core import Measurement


@dataclass(frozen=True, slots=True)
class Reading:
    """How the user wants tables to be read: labels that they lack, and what their columns are."""

    machine: str | None = None
    op: str | None = None
    columns: tuple[str, ...] = ()

    def measurements(self, path: Path, output: Output) -> list[Measurement]:
        """Those in the table at `path`; the user is told what was taken for what, and what was left out."""
        from threadcast.store.long_form import read_long_form

        return read_long_form(path, machine=self.machine, op=self.op, columns=self.columns, note=output.note)


def table_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command --machine, --op and --column; it gets them as one argument, `reading`."""

    @click.option("--machine", help="Label of the machine, for files that name none [default: the file's name].")
    @click.option("--op", help="Kind of the ops, for files that name none [default: the file's name].")
    @click.option(
        "--column", "columns", multiple=True, metavar="ROLE=NAME[:UNIT]", callback=_checked,
        help="What a column is: threads=num_threads, or threads=4 of all rows; seconds=time:ms (s, ms, us, ns), or "
        "seconds=t*:us of a column for each number of threads; also machine, op, affinity, repeat, feature (describes "
        "ops), ignored. May be repeated.",
    )  # fmt: skip
    @functools.wraps(function)
    def with_reading(*args: Any, machine: str | None, op: str | None, columns: tuple[str, ...], **kwargs: Any) -> Any:
        return function(*args, reading=Reading(machine, op, columns), **kwargs)

    return with_reading


def _checked(context: click.Context, parameter: click.Parameter, texts: tuple[str, ...]) -> tuple[str, ...]:
    from threadcast.store.columns_of_others import Choice

    try:
        for text in texts:
            Choice.read(text)
    except InvalidInput as error:
        raise click.BadParameter(str(error)) from error
    return texts
