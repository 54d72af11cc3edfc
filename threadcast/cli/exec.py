"""`threadcast exec`: run a program whose Python processes are attached."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import click

from threadcast.cli.options import common, setting
from threadcast.cli.output import Output
from threadcast.core.errors import InvalidInput, NotFound
from threadcast.core.settings import SETTINGS, Settings
from threadcast.core.sysfs import require_linux

_DEADLINE = ("malleable.deadline_steps", "malleable.deadline_s")
_PASSED_ON = ("malleable.name", "malleable.weight", "malleable.least", "malleable.most", *_DEADLINE, "arbiter.socket")


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.argument("program", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option(
    "--keep-memory/--no-keep-memory", default=True, show_default=True,
    help="Have malloc keep freed memory: else the system takes large blocks back and gives them anew in each step.",
)  # fmt: skip
@setting("malleable.name", "--name")
@setting("malleable.weight", "--weight")
@setting("malleable.least", "--least")
@setting("malleable.most", "--most")
@setting("malleable.deadline_steps", "--deadline-steps")
@setting("malleable.deadline_s", "--deadline-s")
@setting("arbiter.socket", "--arbiter")
@common
def command(output: Output, settings: Settings, program: tuple[str, ...], keep_memory: bool) -> None:
    """Run PROGRAM with its arguments (`threadcast exec -- python train.py`), unchanged except for its cores.

    Its threads, and how many of them torch and the usual libraries use, follow the arbiter, `threadcast resize`,
    SIGUSR1 and SIGUSR2 (one core fewer, one more), and the limits of its container. It is attached once it imports
    torch, numpy or scipy, or has computed for a while, and so is every Python process that it starts, except those of
    multiprocessing; launchers are not. Memory that it frees stays in the process.
    """
    require_linux("threadcast exec")
    from threadcast import malleable
    from threadcast.malleable.inherited_limit import VARIABLE, check_least, inherited_limit, limit_record
    from threadcast.threads.memory import KEEPING

    if shutil.which(program[0]) is None:
        raise NotFound(f"{program[0]!r} is no program that can be run from here")
    if len([name for name in _DEADLINE if settings[name] is not None]) == 1:
        raise InvalidInput("--deadline-steps and --deadline-s belong together; give both")
    least, most = settings["malleable.least"], settings["malleable.most"]
    if most is not None and most < least:
        raise InvalidInput(f"--least {least} is more than --most {most}")
    check_least(least)
    environment = dict(os.environ)
    folder = Path(malleable.__file__).parent / "inject"
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(folder), environment.get("PYTHONPATH", "")]))
    for name in _PASSED_ON:
        if settings.origins.get(name) not in (None, "default"):
            value = settings[name]
            environment[SETTINGS[name].variable] = str(value.absolute() if isinstance(value, Path) else value)
    if keep_memory:
        environment |= {name: value for name, value in KEEPING.items() if name not in environment}
    mask = os.sched_getaffinity(0)
    environment[VARIABLE] = limit_record(inherited_limit() or mask, mask)  # adding it beside other threads is not safe
    os.execvpe(program[0], program, environment)
