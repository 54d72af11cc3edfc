"""`threadcast top`: attached processes, their cores and progress, live; or who waits for cores, and why."""

from __future__ import annotations

import sys
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table

from threadcast.cli.options import common, setting
from threadcast.cli.output import Output, table
from threadcast.core.errors import NotFound, ServiceUnavailable
from threadcast.core.settings import Settings
from threadcast.core.sysfs import format_cpus, require_linux

if TYPE_CHECKING:
    from threadcast.malleable.usage import MachineUse

_ROWS, _NAME, _CPUS = 20, 18, 9
"""Processes shown at most, and characters of a name, and of a list of CPUs."""


@click.command()
@click.option(
    "--every", "every_s", type=click.FloatRange(0.1), default=1.0, show_default=True, help="Seconds between two looks."
)
@click.option("--once", is_flag=True, help="Show it once and end, as where stdout is no terminal or with --json.")
@setting("arbiter.socket", "--socket")
@common
def command(output: Output, settings: Settings, every_s: float, once: bool) -> None:
    """Show the processes that the arbiter knows, their cores, and their steps per second.

    Without an arbiter: this user's processes, how many cores their threads want and have on average, and why they wait.
    """
    require_linux("threadcast top")
    from threadcast.core.topology import read_machine
    from threadcast.malleable.sockets import ask
    from threadcast.malleable.usage import watch_use

    def look() -> tuple[dict[str, Any], list[RenderableType]]:
        try:
            state = ask(settings["arbiter.socket"], {"who": "all"})
        except (NotFound, ServiceUnavailable):
            return _use(watch_use(read_machine(), every_s))
        return state, [_table(state)]

    document, shown = look()
    if once or output.as_json or not sys.stdout.isatty():
        output.result(document, *shown)
        return
    with Live(Group(*shown), console=Console(markup=False, highlight=False), auto_refresh=False) as live:
        while True:
            if "left" in document:  # without an arbiter, a look takes as long
                time.sleep(every_s)
            document, shown = look()
            live.update(Group(*shown), refresh=True)


def _use(use: MachineUse) -> tuple[dict[str, Any], list[RenderableType]]:
    """What is shown without an arbiter: a table of this user's processes, and a line a cause."""
    from threadcast.malleable.causes import causes

    rows, found = [], causes(use)
    stopped = any(one.throttled for one in use.processes)
    for one in use.processes[:_ROWS]:
        name, cpus = _short(one.name, _NAME), "all" if one.cpus >= use.cpus else _short(format_cpus(one.cpus), _CPUS)
        cells = [str(one.process), name, one.threads, round(one.runnable, 1), round(one.used, 1), f"{one.waiting:.0%}"]
        rows.append([*cells, *([f"{one.throttled:.0%}"] if stopped else []), cpus])
    used = "" if use.used is None else f", {use.used:.1f} used"
    title = f"no arbiter; {use.runnable:.1f} threads run or wait on {use.cores} cores{used}"
    columns = ["process", "name", "threads", "want", "have", "wait", *(["stop"] if stopped else []), "CPUs"]
    lines = [one.text for one in found] or ["no cause found why threads would wait"]
    document = {
        "cores": use.cores, "used": use.used, "runnable": use.runnable,
        "processes": [
            {**asdict(one), "cpus": sorted(one.cpus), "waiting": one.waiting} for one in use.processes
        ],
        "causes": [one._asdict() for one in found],
    }  # fmt: skip
    return document, [table(columns, rows, title=title), *lines]


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def _table(state: dict[str, Any]) -> Table:
    rows = []
    for one in state["processes"]:
        count, cpus = len(one["cores"]), format_cpus(cpu for core in one["cores"] for cpu in core)
        rows.append(
            [
                str(one["process"]), one["name"], f"{count} lent" if one["lends"] else count, cpus, one["weight"],
                one["steps_per_s"], one["learning"],
            ]
        )  # fmt: skip
    used = len({tuple(core) for one in state["processes"] for core in one["cores"]})
    left = f", {state['left']} left to processes that are not attached" if state["left"] else ""
    title = f"{state['machine']}: {used} of {state['cores']} cores in use{left}"
    return table(["process", "name", "cores", "CPUs", "weight", "steps/s", "learning"], rows, title=title)
