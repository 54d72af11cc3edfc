"""`threadcast exec`: run a program that follows the cores that it is given."""

from __future__ import annotations

import errno
import os
import shutil
import signal
from pathlib import Path
from typing import NoReturn

import click

from threadcast.cli.options import common, setting
from threadcast.cli.output import Output
from threadcast.core.errors import InvalidInput, NotFound
from threadcast.core.settings import SETTINGS, Settings
from threadcast.core.sysfs import require_linux

_PASSED_ON = ("malleable.name", "malleable.weight", "malleable.least", "malleable.most", "arbiter.socket")


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.argument("program", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option(
    "--keep-memory/--no-keep-memory", default=True, show_default=True,
    help="Have malloc keep freed memory: else the system takes large blocks back and gives them anew in each step.",
)  # fmt: skip
@click.option(
    "--progress-regex", metavar="REGEX",
    help="Count as a step each line of stdout that this matches, or by how much the number in its group has grown. "
    "What is printed stays as it is; Python too is then kept on its cores from outside.",
)  # fmt: skip
@setting("malleable.name", "--name")
@setting("malleable.weight", "--weight")
@setting("malleable.least", "--least")
@setting("malleable.most", "--most")
@setting("arbiter.socket", "--arbiter")
@common
def command(
    output: Output, settings: Settings, program: tuple[str, ...], keep_memory: bool, progress_regex: str | None
) -> None:
    """Run PROGRAM with its arguments (`threadcast exec -- ./simulate --fast`), unchanged except for its cores.

    The masks of its threads, and of all that it starts, follow the arbiter, `threadcast resize`, and the limits of its
    container. As it starts, OMP_NUM_THREADS and its kind are the number of its cores, where they are not set.

    A Python process is attached once it imports torch, numpy or scipy, or has computed for a while: how many threads
    these use follows too, as do SIGUSR1 and SIGUSR2 (one core fewer, one more). Memory that a program frees stays in
    it.
    """
    require_linux("threadcast exec")
    from threadcast import malleable
    from threadcast.malleable.arbiter_link import Terms
    from threadcast.malleable.inherited_limit import VARIABLE, check_least, inherited_limit, limit_record
    from threadcast.malleable.keeper import is_python, start_keeper
    from threadcast.malleable.line_progress import LineProgress, progress_pattern
    from threadcast.threads.memory import KEEPING
    from threadcast.threads.thread_variables import thread_variables

    found = shutil.which(program[0])
    if found is None:
        there = shutil.which(program[0], os.F_OK) is not None or (os.sep in program[0] and Path(program[0]).is_dir())
        _refuse(f"{program[0]!r} is no program that can be run from here", there=there)
    least, most = settings["malleable.least"], settings["malleable.most"]
    if most is not None and most < least:
        raise InvalidInput(f"--least {least} is more than --most {most}")
    check_least(least)
    environment = dict(os.environ)
    progress = None if progress_regex is None else LineProgress(progress_pattern(progress_regex))
    if progress is None:
        folder = Path(malleable.__file__).parent / "inject"
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(folder), environment.get("PYTHONPATH", "")]))
    for name in _PASSED_ON:
        if settings.origins.get(name) not in (None, "default"):
            value = settings[name]
            environment[SETTINGS[name].variable] = str(value.absolute() if isinstance(value, Path) else value)
    if keep_memory:
        environment |= {name: value for name, value in KEEPING.items() if name not in environment}
    mask = frozenset(os.sched_getaffinity(0))
    limit = inherited_limit() or mask
    environment[VARIABLE] = limit_record(limit, mask)  # adding it beside other threads is not safe
    terms = Terms(settings["malleable.name"] or Path(found).name, settings["malleable.weight"], least, most)
    cores = start_keeper(
        terms, settings["arbiter.socket"].absolute(), limit, progress=progress,
        attaches_itself=progress is None and is_python(Path(found)),
    )  # fmt: skip
    if cores is not None:
        environment |= thread_variables(cores[0], environment, shared=cores[1])
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # which Python ignores, and the program would too
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvpe(program[0], program, environment)
    except OSError as error:
        if error.errno == errno.ENOEXEC:  # a script that does not say what runs it
            os.execve("/bin/sh", ["sh", found, *program[1:]], environment)
        _refuse(f"{found} cannot be run: {error.strerror}", there=not isinstance(error, FileNotFoundError))


def _refuse(why: str, *, there: bool) -> NoReturn:
    """Raise NotFound; the command then ends as a shell's would: with 127 where there is no such program, else 126."""
    click.get_current_context().meta["threadcast.exit_code"] = 126 if there else 127
    raise NotFound(why)
