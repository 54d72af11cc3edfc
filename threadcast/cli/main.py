"""The command `threadcast`: imports and runs a subcommand, and turns errors into messages and exit codes.

Exit codes: 0 done; 1 failed, with one line on stderr; 2 wrong usage; 130 interrupted. `exec` ends as its program does,
or as shells do: 126 for one that cannot be run, 127 for none.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import importlib.util
import io
import json
import os
import re
import sys
from typing import Any

import click

from threadcast import __version__
from threadcast.cli.extras import extra_for

COMMANDS = {
    "doctor": "Say what this machine offers, and what to improve.",
    "compile": "Compile the engine and the planner now rather than at their first use.",
    "profile": "Time the operations of a network at sampled thread counts.",
    "campaign": "Time the operations of networks on all machines of a Dask cluster.",
    "train": "Learn models from the measurements.",
    "compare": "Compare every model on the same measurements.",
    "predict": "Forecast an operation's time at every thread count.",
    "plan": "Decide cores, threads and order for every operation.",
    "run": "Run a network by a plan, beside the framework's default.",
    "exec": "Run a program whose threads follow the cores that it is given.",
    "resize": "Give an attached process other cores.",
    "arbiter": "Divide this machine's cores among attached processes.",
    "top": "Show attached processes, their cores and progress.",
    "serve": "Serve predictions and plans over HTTP.",
    "keys": "Create, list and remove the service's API keys.",
    "models": "List, show, promote and remove registered models.",
    "db": "Import, export, check, prune and back up measurements.",
    "bundle": "Save and load what optimised steps have learned.",
    "demo": "Do all stages once on small networks and write a report.",
}
"""Every command with its help, in the order of a typical use. A command is the function `command` in the file with its
name in this folder."""


_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)
"""Numbers of errors, of a full or broken disk or a stream for reading only, that are explained even without a file."""
_NO_MEMORY = re.compile(r"tried to allocate (\d+) bytes")
"""What PyTorch says of memory that it does not get."""


class _Commands(click.Group):
    """A group that imports a command's file only when that command is called, so that help and start-up stay fast."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for name in COMMANDS if importlib.util.find_spec(f"threadcast.cli.{name}")]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.list_commands(ctx):
            return None
        command: click.Command = importlib.import_module(f"threadcast.cli.{cmd_name}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if rows := [(name, COMMANDS[name]) for name in self.list_commands(ctx)]:
            with formatter.section("Commands"):
                formatter.write_dl(rows)

    def main(self, *args: Any, **kwargs: Any) -> Any:
        _prepare_streams()
        return super().main(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            click.echo("threadcast: interrupted", err=True)
            ctx.exit(130)
        except Exception as error:  # raised again unless the user can solve it
            message = _explain(error)
            if message is None or ctx.meta.get("threadcast.traceback"):
                raise
            _fail(ctx, error, message)


def _explain(error: Exception) -> str | None:
    """One line for an error that the user can solve; None for one that must be a bug in threadcast."""
    from threadcast.core.errors import ThreadcastError  # here: core needs numpy, which help should not wait for

    if isinstance(error, ThreadcastError):
        pointer = getattr(error, "pointer", "")
        return f"{pointer}: {error}" if pointer else str(error)
    if isinstance(error, ImportError):
        extra = extra_for(error.name)
        return f"this needs {error.name}; pip install 'threadcast[{extra}]'" if extra else None
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    if isinstance(error, OSError) and error.errno in _DISK:
        return f"the output cannot be written: {error.strerror}"
    if isinstance(error, RuntimeError) and (asked := _NO_MEMORY.search(str(error))):
        return f"there is not enough memory: PyTorch asked for {asked[1]} bytes at once; take a smaller size or batch"
    return None


def _fail(ctx: click.Context, error: Exception, message: str) -> None:
    if ctx.meta.get("threadcast.json"):
        described = {"type": type(error).__name__, "message": str(error) or message}
        if (pointer := getattr(error, "pointer", None)) is not None:
            described["pointer"] = pointer
        with contextlib.suppress(OSError):  # stdout itself may be what failed
            click.echo(json.dumps({"error": described}, indent=2))
    from threadcast.core.printable import printable  # here: see above

    click.echo(f"threadcast: error: {printable(message)}", err=True)
    ctx.exit(ctx.meta.get("threadcast.exit_code", 1))


def _prepare_streams() -> None:
    """Let standard streams that are closed (`>&-`) lead to /dev/null: a command does its work for its exit code too.

    Else the next file that is opened takes their number, and gets what libraries and children write to them. What a
    stream cannot encode, as in a file's name that is not UTF-8, is escaped.
    """
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, name) is None:
            file = os.open(os.devnull, os.O_RDWR)
            if file != number:
                os.dup2(file, number)
                os.close(file)
            os.set_inheritable(number, True)
            setattr(sys, name, open(number, mode, closefd=False))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


@click.command(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="threadcast")
def cli() -> None:
    """Forecast how long every operation takes at every thread count, and run networks by the forecast."""


def main() -> None:
    """Entry point of the console script."""
    try:
        cli(prog_name="threadcast")
    except OSError as error:  # of help and version, which click writes before a command is invoked
        if error.errno not in _DISK:
            raise
        click.echo(f"threadcast: error: {_explain(error)}", err=True)
        sys.exit(1)
