"""`threadcast top`: attached processes, their cores and progress, live."""

from __future__ import annotations

import sys
import time
from typing import Any

import click
from rich.console import Console
from rich.live import Live
from rich.table import Table

from threadcast.cli.options import common, setting
from threadcast.cli.output import Output, table
from threadcast.core.errors import NotFound
from threadcast.core.settings import Settings
from threadcast.core.sysfs import format_cpus, require_linux


@click.command()
@click.option(
    "--every", "every_s", type=click.FloatRange(0.1), default=1.0, show_default=True, help="Seconds between two looks."
)
@click.option("--once", is_flag=True, help="Show it once and end, as where stdout is no terminal or with --json.")
@setting("arbiter.socket", "--socket")
@common
def command(output: Output, settings: Settings, every_s: float, once: bool) -> None:
    """Show the processes that the arbiter knows, their cores, and their steps per second."""
    require_linux("threadcast top")
    from threadcast.malleable.sockets import ask

    path = settings["arbiter.socket"]

    def state() -> dict[str, Any]:
        try:
            return ask(path, {"who": "all"})
        except NotFound:
            raise NotFound(f"no arbiter listens at {path}; start one by `threadcast arbiter`") from None

    first = state()
    if once or output.as_json or not sys.stdout.isatty():
        output.result(first, _table(first))
        return
    with Live(_table(first), console=Console(markup=False), auto_refresh=False) as live:
        while True:
            time.sleep(every_s)
            live.update(_table(state()), refresh=True)


def _table(state: dict[str, Any]) -> Table:
    rows = []
    for one in state["processes"]:
        count, cpus = len(one["cores"]), format_cpus(cpu for core in one["cores"] for cpu in core)
        rows.append(
            [
                str(one["process"]), one["name"], f"{count} lent" if one["lends"] else count, cpus, one["weight"],
                one["steps_per_s"], _deadline(one["deadline"]),
                one["learning"],
            ]
        )  # fmt: skip
    used = len({tuple(core) for one in state["processes"] for core in one["cores"]})
    left = f", {state['left']} left to processes that are not attached" if state["left"] else ""
    title = f"{state['machine']}: {used} of {state['cores']} cores in use{left}"
    return table(["process", "name", "cores", "CPUs", "weight", "steps/s", "deadline", "learning"], rows, title=title)


def _deadline(deadline: dict[str, Any] | None) -> str:
    if deadline is None:
        return ""
    if not deadline["steps"]:
        return "done"
    words = {True: "in time", False: "will be missed", None: "not known yet"}[deadline["met"]]
    return f"{deadline['steps']:,.0f} steps in {max(deadline['in_s'], 0):,.0f} s: {words}"
