"""Generates docs/commands.md from the commands: `python -m threadcast.cli.reference > docs/commands.md`."""

from __future__ import annotations

import inspect

import click

from threadcast.cli.main import COMMANDS, cli

HEAD = """# Commands

The result is on stdout, messages and progress on stderr. Every command takes `--json` (stdout is then one JSON
document), `--config FILE` and `--traceback`. Exit codes: 0 done, 1 failed with one line on stderr, 2 wrong usage, 130
interrupted. [Settings](settings.md) are flags too, variables, or lines in `threadcast.toml`.
"""

EXAMPLES: dict[str, tuple[str, ...]] = {
    "doctor": ("threadcast doctor", "threadcast doctor --gains", "threadcast doctor --gains my_model.py:build"),
    "profile": (
        "threadcast profile resnet18 --size small --batch 8",
        "threadcast profile resnet18 --size small --batch 8 --corun",
        "threadcast profile my_model.py:build --mode forward --cases 4",
    ),
    "train": ("threadcast train --model hill_climb --model xgboost",),
    "compare": ("threadcast compare", "threadcast compare times.csv --json"),
    "predict": ("threadcast predict resnet18 --size small --batch 8",),
    "plan": (
        "threadcast plan graph.json --cores 16 --json",
        "threadcast plan resnet18 --size small --batch 8 --explain",
        "threadcast plan resnet18 --size small --batch 8 --compare --timeline plan.json",
    ),
    "run": ("threadcast run inception_block --size small --batch 1", "threadcast run my_model.py:build --gains"),
    "serve": ("threadcast serve --port 8321",),
    "models": ("threadcast models list", "threadcast models alias champion hill_climb@1"),
    "db": ("threadcast db import times.csv", "threadcast db export times.parquet"),
    "demo": ("threadcast demo",),
}


def render() -> str:
    """The text of docs/commands.md."""
    context = cli.make_context("threadcast", [], resilient_parsing=True)
    parts = [HEAD]
    for name in COMMANDS:
        command = cli.get_command(context, name)
        if command is not None:
            parts += _section(command, f"threadcast {name}", "##", EXAMPLES.get(name, ()))
    return "\n".join(parts)


def _section(command: click.Command, path: str, heading: str, examples: tuple[str, ...] = ()) -> list[str]:
    arguments = " ".join(
        p.make_metavar(click.Context(command)) for p in command.params if isinstance(p, click.Argument)
    )
    text = inspect.cleandoc(command.help or "")
    parts = [f"{heading} `{f'{path} {arguments}'.strip()}`\n", text + "\n"]
    if examples:
        parts.append("```console\n" + "\n".join(f"$ {line}" for line in examples) + "\n```\n")
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
    value = "" if option.is_flag else f" {option.make_metavar(click.Context(click.Command('x')))}"
    default = f" [default: {option.default}]" if option.show_default and option.default is not None else ""
    cells = (f"`{name}{value}`", f"{option.help or ''}{default}".strip())
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


if __name__ == "__main__":
    click.echo(render(), nl=False)
