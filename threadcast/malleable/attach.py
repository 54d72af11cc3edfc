"""`threadcast.attach()`: one line that makes a program follow the cores that its process gets."""

from __future__ import annotations

import atexit
import os
import sys
import threading
from pathlib import Path

from threadcast.core.arguments import check, is_number, is_whole
from threadcast.core.settings import Settings
from threadcast.core.sysfs import require_linux
from threadcast.malleable.arbiter_link import Terms
from threadcast.malleable.division import Claim
from threadcast.malleable.inherited_limit import check_least
from threadcast.malleable.member import Member
from threadcast.malleable.optimizer_steps import OptimizerSteps
from threadcast.threads.openmp import undo_binding
from threadcast.threads.this_process import this_process

_attached: Member | None = None
_lock = threading.Lock()


def attach(
    *, name: str | None = None, weight: float | None = None, least: int | None = None, most: int | None = None
) -> Member:  # fmt: skip
    """Let this process's threads, and the thread counts of torch, OpenBLAS, MKL and OpenMP, follow its cores.

    Its cores are those that its affinity mask, cpuset and CPU quota allow; of these, those that an arbiter on this
    machine assigns, if one runs; of these, those that `threadcast resize` asked for. They may change at any time.

    The arbiter divides cores by `weight` (how much the progress of this process counts), and by `least` and `most`
    (numbers of cores). None takes the settings `malleable.weight`, `malleable.least` and so on. `name` is shown by
    `threadcast top` (none: the program's name). Signals are followed under `threadcast exec`.

    Thread counts change in the main thread, between two operators. Models optimised by `threadcast.optimize` continue
    with a plan for the current cores. A second call returns the same member. A forked child is not attached.

    InvalidInput for numbers that an arbiter would refuse, for a `least` beyond the cores that there are, and without
    Linux.
    """
    global _attached
    check(name is None or isinstance(name, str), "name", name, "text")
    check(weight is None or is_number(weight), "weight", weight, "a number above 0")
    for option, cores in (("least", least), ("most", most)):
        check(cores is None or is_whole(cores), option, cores, "a number of cores")
    with _lock:
        if _attached is not None:
            return _attached
        require_linux("attach")
        settings = Settings.read()
        if least is not None:
            check_least(least)
        terms = Terms(
            (name or settings["malleable.name"] or _program())[:200],
            settings["malleable.weight"] if weight is None else weight,
            settings["malleable.least"] if least is None else least,
            settings["malleable.most"] if most is None else most,
        )
        Claim(terms.weight, terms.least, terms.most)  # InvalidInput for what an arbiter would refuse
        undo_binding()
        process = this_process()
        arbiter, steps = settings["arbiter.socket"].absolute(), OptimizerSteps(process.steps)
        member = Member(terms, process, arbiter=arbiter, steps=steps)
        member.start()
        atexit.register(detach)
        _attached = member
        return member


def _program() -> str:
    """The name of the script or module that this Python runs; works even before `sys.argv` is set."""
    given = iter(sys.orig_argv[1:])
    for part in given:
        if part in ("-m", "-c"):
            return next(given, "python") if part == "-m" else "python -c"
        if not part.startswith("-"):
            return Path(part).name
    return "python"


def detach() -> None:
    """Stop following the cores; the process keeps those that it has now."""
    global _attached
    with _lock:
        if _attached is not None:
            _attached.close()
            _attached = None


def _forget() -> None:
    """Detach a forked child: it has no listening thread, and its sockets belong to its parent."""
    global _attached, _lock
    if _attached is not None:
        _attached.abandon()
    _attached, _lock = None, threading.Lock()


os.register_at_fork(after_in_child=_forget)
