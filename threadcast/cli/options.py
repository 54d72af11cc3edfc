"""The options that several commands have, as decorators.


    @click.command()
    @click.argument("network")
    @setting("profile.budget_s", "--budget")
    @common
    def command(output: Output, settings: Settings, network: str) -> None:
        \"\"\"Time every operation of NETWORK.\"\"\"
        budget_s = settings["profile.budget_s"]
        ...
        output.result(document, table(columns, rows))

`common` goes last (nearest to the function); every command has it. Options that select a network are in
`cli.network_choice`.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from threadcast.cli.output import Output
from threadcast.core.errors import ConfigError
from threadcast.core.settings import SETTINGS, Settings

F = TypeVar("F", bound=Callable[..., Any])

AS_JSON, TRACEBACK, _FLAGS = "threadcast.json", "threadcast.traceback", "threadcast.flags"


def predictor_options(function: F) -> F:
    """Give a command the settings that select where its forecasts come from: a store, models, or a service."""
    for option in (
        setting("predictor.key_file", "--key-file"),
        setting("predictor.deadline_s", "--deadline-s"),
        setting("predictor.url", "--url"),
        setting("models", "--models"),
        setting("store", "--store"),
    ):
        function = option(function)
    return function


class NewFile(click.Path):
    """A file to write; a missing folder is an error before the command's work and not after it."""

    def __init__(self) -> None:
        super().__init__(dir_okay=False, writable=True, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The path of the file."""
        path = Path(os.fsdecode(super().convert(value, param, ctx)))
        if not path.parent.is_dir():
            self.fail(f"{str(value)!r} is in a folder that does not exist; make it first", param, ctx)
        return path


def common(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command --json, --config and --traceback, and call it with `output` and `settings` first."""

    @click.option(
        "--json",
        "as_json",
        is_flag=True,
        is_eager=True,
        help="Print the result as JSON.",
        callback=_remember(AS_JSON),
        expose_value=False,
    )
    @click.option(
        "--config",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help="Settings file to read in place of ./threadcast.toml.",
    )
    @click.option(
        "--traceback",
        is_flag=True,
        is_eager=True,
        help="Show the traceback of an error.",
        callback=_remember(TRACEBACK),
        expose_value=False,
    )
    @click.pass_context
    @functools.wraps(function)
    def wrapped(context: click.Context, /, *args: Any, config: Path | None, **kwargs: Any) -> Any:
        settings = Settings.read(context.meta.get(_FLAGS), file=config)
        output = Output(as_json=bool(context.meta.get(AS_JSON)))
        return function(output, settings, *args, **kwargs)

    return wrapped


def setting(name: str, *flags: str) -> Callable[[F], F]:
    """Let a flag set the value of a setting; its help and limits come from the table of settings.

    The command reads the value from `settings[name]`, wherever it was set.
    """
    described = SETTINGS[name]

    def take(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
        if value is None:
            return
        try:
            checked = described.check(value, origin=flags[0])
        except ConfigError as error:
            raise click.BadParameter(f"{value!r} must be {described.allowed}") from error
        context.meta.setdefault(_FLAGS, {})[name] = checked

    unit = f" ({described.unit})" if described.unit else ""
    return click.option(
        *flags, f"_{name.replace('.', '_')}", metavar=described.kind.__name__.upper(), callback=take,
        expose_value=False, help=f"{described.doc}{unit} [{name}; default: {described.shown_default}]",
    )  # fmt: skip


def _remember(key: str) -> Callable[[click.Context, click.Parameter, bool], bool]:
    def callback(context: click.Context, parameter: click.Parameter, value: bool) -> bool:
        if value:
            context.meta[key] = True
        return value

    return callback
