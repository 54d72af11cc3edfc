"""`threadcast arbiter`: the daemon that divides this machine's cores among attached processes."""

from __future__ import annotations

import logging
import signal
from typing import Any

import click

from threadcast.cli.options import common, setting
from threadcast.cli.output import Output
from threadcast.core.settings import Settings
from threadcast.core.sysfs import require_linux


@click.command()
@click.option("--group", help="Members of this group may register their processes too.")
@setting("cores", "--cores")
@setting("arbiter.socket", "--socket")
@common
def command(output: Output, settings: Settings, group: str | None) -> None:
    """Give each attached process whole cores, so that the sum of weighted progress is greatest.

    Decides again whenever a process comes, goes, or changes its speed. Runs until it is interrupted; the processes then
    keep their cores, and connect again when another arbiter starts.
    """
    require_linux("threadcast arbiter")
    from threadcast.core.topology import read_machine
    from threadcast.malleable.arbiter import Arbiter

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    machine = read_machine(cores=settings["cores"])
    with Arbiter(machine, settings["arbiter.socket"], group=group) as arbiter:

        def stop(*_: Any) -> None:
            arbiter.stop()

        signal.signal(signal.SIGTERM, stop)
        signal.signal(signal.SIGINT, stop)
        output.note(f"dividing {len(machine)} cores at {settings['arbiter.socket']}; Ctrl-C ends it")
        arbiter.serve()
