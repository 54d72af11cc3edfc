"""`threadcast resize`: other cores for an attached process."""

from __future__ import annotations

from typing import Any

import click

from threadcast.cli.options import common
from threadcast.cli.output import Output
from threadcast.core.errors import InvalidInput, NotFound
from threadcast.core.settings import Settings
from threadcast.core.sysfs import format_cpus, parse_cpus, require_linux


def _cores(context: click.Context, parameter: click.Parameter, value: str) -> Any:
    if value == "all":
        return None
    if value.isascii() and value.isdigit() and int(value) > 0:
        return int(value)
    if value.startswith("cpus:") and (cpus := parse_cpus(value.removeprefix("cpus:"))):
        return [[cpu] for cpu in sorted(cpus)]
    raise click.BadParameter(f"{value!r} must be a number of cores, all, or cpus: and a list such as 0-3,8")


@click.command()
@click.argument("process", type=click.IntRange(1))
@click.argument("cores", callback=_cores)
@common
def command(output: Output, settings: Settings, process: int, cores: Any) -> None:
    """Let PROCESS, which is attached, use CORES: a number, `cpus:0-3,8`, or `all` that it may use.

    It takes effect within the operator that the process is running. The cores that an arbiter gives the process, and
    the limits of its container, are not exceeded.
    """
    require_linux("threadcast resize")
    from threadcast.malleable.sockets import ask, socket_of

    try:
        answer = ask(socket_of(process), {"resize": cores})
    except NotFound:
        raise NotFound(
            f"process {process} is not attached; start it by `threadcast exec`, or call threadcast.attach() in it"
        ) from None
    if "error" in answer:
        raise InvalidInput(answer["error"])
    cpus = format_cpus(cpu for core in answer["cores"] for cpu in core)
    count = len(answer["cores"])
    output.result(answer, f"process {process} uses {count} core{'s' * (count != 1)}: CPUs {cpus}")
