"""The site's page of all commands, made from what the commands say."""

from __future__ import annotations

import inspect

import click

from threadcast.cli.main import COMMANDS, cli

HEAD = """# Commands

The result is on stdout, messages and progress on stderr. Every command takes `--json` (stdout is then one JSON
document), `--config FILE`, `--traceback` and `--help`. Exit codes: 0 done, 1 failed with one line on stderr, 2 wrong
usage, 130 interrupted. [Settings](settings.md) are flags too, variables, or lines in `threadcast.toml`; square brackets
have the setting of a flag and its default.

| command | what it does |
|---|---|
"""

EXAMPLES: dict[str, tuple[str, ...]] = {
    "doctor": ("threadcast doctor",),
    "profile": (
        "threadcast profile resnet18 --size small --batch 8",
        "threadcast profile resnet18 --size small --batch 8",
        "threadcast profile my_model.py:build --mode forward --cases 4",
    ),
    "campaign": (
        "dask scheduler                                        # on one machine",
        "dask worker tcp://host:8786 --no-nanny --nthreads 1   # on each machine that measures",
        "threadcast campaign resnet18 lstm --scheduler tcp://host:8786 --store postgresql://host/threadcast",
        "threadcast campaign resnet18 lstm",
    ),
    "train": ("threadcast train --model hill_climb --model xgboost",),
    "compare": (
        "threadcast compare times.csv",
        "threadcast compare odd.csv --column threads=p --column seconds=took:us",
    ),
    "predict": (
        "threadcast predict --op sgemm m=300 k=500 n=700",
        "threadcast predict resnet18 --size small --batch 8",
    ),
    "plan": (
        "threadcast plan graph.json --cores 16 --json",
        "threadcast plan resnet18 --size small --batch 8 --explain",
        "threadcast plan resnet18 --size small --batch 8 --compare --timeline plan.json",
    ),
    "run": ("threadcast run inception_block --size small --batch 1", "threadcast run my_model.py:build"),
    "exec": ("threadcast exec -- ./simulate --fast", "threadcast exec --weight 2 -- python train.py"),
    "resize": ("threadcast resize 4711 2",),
    "serve": ("threadcast serve --port 8321",),
    "keys": ("threadcast keys add ci --scope ingest --keys keys.json",),
    "models": ("threadcast models list", "threadcast models alias champion hill_climb@1"),
    "db": ("threadcast db import times.csv", "threadcast db ops sgemm", "threadcast db export times.parquet"),
    "bundle": ("threadcast bundle save plans.bundle", "threadcast bundle load plans.bundle --trust"),
    "demo": ("threadcast demo",),
}

NOTES = {
    "campaign": """Whoever reaches a Dask scheduler runs programs on its workers: keep it in a network of its own, or
use [Dask's TLS](https://distributed.dask.org/en/stable/tls.html), which this command takes from Dask's configuration.
Operators that a worker's PyTorch does not have (custom ones) fail there, and are listed.
""",
}
"""What the page says of a command besides its help."""

_VALUES = {"integer": "N", "integer range": "N", "float": "NUMBER", "float range": "NUMBER"}
"""How the page names an option's value, by the name of click's type; any other is its name in capitals."""


def render() -> str:
    """The page as Markdown."""
    context = cli.make_context("threadcast", [], resilient_parsing=True)
    found = {name: command for name in COMMANDS if (command := cli.get_command(context, name)) is not None}
    rows = [f"| [`{name}`](#{_anchor(name, command)}) | {COMMANDS[name]} |" for name, command in found.items()]
    parts = [HEAD + "\n".join(rows) + "\n"]
    for name, command in found.items():
        parts += _section(command, f"threadcast {name}", "##", EXAMPLES.get(name, ()), NOTES.get(name, ""))
    return "\n".join(parts)


def _anchor(name: str, command: click.Command) -> str:
    """The anchor that Markdown makes of a command's heading."""
    heading = _heading(command, f"threadcast {name}").lower().replace(" ", "-")
    return "".join(letter for letter in heading if letter.isalnum() or letter in "-_")


def _heading(command: click.Command, path: str) -> str:
    arguments = [p.metavar or _plain_name(p) for p in command.params if isinstance(p, click.Argument)]
    return " ".join([path, *arguments])


def _plain_name(argument: click.Argument) -> str:
    return f"{argument.name or ''}".upper() + ("..." if argument.nargs == -1 else "")


def _section(
    command: click.Command, path: str, heading: str, examples: tuple[str, ...] = (), note: str = ""
) -> list[str]:
    parts = [f"{heading} `{_heading(command, path)}`\n", inspect.cleandoc(command.help or "") + "\n"]
    if examples:
        parts.append("```console\n" + "\n".join(f"$ {line}" for line in examples) + "\n```\n")
    if note:
        parts.append(note)
    rows = [_row(option) for option in command.params if isinstance(option, click.Option)]
    if shown := [row for row in rows if row]:
        parts.append("\n".join(["| option | what it does |", "|---|---|", *shown]) + "\n")
    if isinstance(command, click.Group):
        for name, child in command.commands.items():
            parts += _section(child, f"{path} {name}", heading + "#")
    return parts


def _row(option: click.Option) -> str:
    name = max(option.opts, key=len)
    if name in {"--json", "--config", "--traceback", "--help"} or option.hidden:
        return ""
    names = "/".join([name, *option.secondary_opts])
    default = ""
    if option.show_default and option.default is not None:
        values = option.default if isinstance(option.default, tuple) else (option.default,)
        default = f" [default: {', '.join(map(str, values))}]"
    cells = (f"`{' '.join([names, *_value(option)])}`", f"{option.help or ''}{default}".strip())
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _value(option: click.Option) -> list[str]:
    """The name of the option's value; nothing where it takes none. It does not depend on the version of click."""
    if option.is_flag:
        return []
    if option.metavar:
        return [option.metavar]
    if isinstance(option.type, click.Choice):
        return [f"[{'|'.join(map(str, option.type.choices))}]"]
    return [_VALUES.get(option.type.name, option.type.name.upper())]
