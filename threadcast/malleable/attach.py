"""`threadcast.attach()`: one line that lets a program follow the cores that its process is given."""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from threadcast.core.errors import InvalidInput
from threadcast.core.settings import Settings
from threadcast.malleable.arbiter_link import Terms
from threadcast.malleable.deadline import Deadline
from threadcast.malleable.division import Claim
from threadcast.malleable.member import Member
from threadcast.malleable.optimizer_steps import OptimizerSteps
from threadcast.threads.this_process import this_process

_attached: Member | None = None
_lock = threading.Lock()


def attach(
    *, name: str | None = None, weight: float | None = None, least: int | None = None, most: int | None = None,
    deadline: tuple[float, float] | None = None, signals: bool = False,
) -> Member:  # fmt: skip
    """Let this process's threads, and the thread counts of torch, OpenBLAS, MKL and OpenMP, follow its cores.

    The cores are those that its affinity mask, cpuset and CPU quota leave it, of these those that an arbiter gives it
    while one runs on this machine, and of these those that `threadcast resize` asked for. The arbiter goes by `weight`,
    `least` and `most` (None: the settings `malleable.weight` and so on) and by `deadline`: optimizer steps to be made,
    and within how many seconds from now; `Member.finish` sets another one later. With `signals`, SIGUSR1 and SIGUSR2
    mean one core fewer and one more. Thread counts change in the main thread, between two operators. Models optimised
    by `threadcast.optimize` continue with a plan for the cores that there are. A second call returns the same member.
    A forked child is not attached.

    InvalidInput for numbers that an arbiter would refuse, and for `signals` elsewhere than in the main thread.
    """
    global _attached
    with _lock:
        if _attached is not None:
            return _attached
        settings = Settings.read()
        terms = Terms(
            (name or _program())[:200],
            settings["malleable.weight"] if weight is None else weight,
            settings["malleable.least"] if least is None else least,
            settings["malleable.most"] if most is None else most,
            _deadline(settings) if deadline is None else deadline,
        )
        Claim(terms.weight, terms.least, terms.most)  # InvalidInput for what an arbiter would refuse
        if terms.deadline is not None:
            Deadline.within(*terms.deadline, now_s=0.0)
        if signals and threading.current_thread() is not threading.main_thread():
            raise InvalidInput("signals=True: signals can be followed from the main thread only")
        process = this_process()
        arbiter, steps = settings["arbiter.socket"].absolute(), OptimizerSteps(process.steps)
        member = Member(terms, process, arbiter=arbiter, steps=steps)
        if signals:
            _follow_signals(member)
        member.start()
        atexit.register(detach)
        _attached = member
        return member


def _deadline(settings: Settings) -> tuple[float, float] | None:
    steps, seconds = settings["malleable.deadline_steps"], settings["malleable.deadline_s"]
    if (steps is None) != (seconds is None):
        raise InvalidInput("malleable.deadline_steps and malleable.deadline_s: set both, or none")
    return None if steps is None else (steps, seconds)


def _program() -> str:
    """The script or module that this Python runs, also before `sys.argv` is there."""
    given = iter(sys.orig_argv[1:])
    for part in given:
        if part in ("-m", "-c"):
            return next(given, "python") if part == "-m" else "python -c"
        if not part.startswith("-"):
            return Path(part).name
    return "python"


def detach() -> None:
    """Stop following; the cores stay as they are."""
    global _attached
    with _lock:
        if _attached is not None:
            _attached.close()
            _attached = None


def _follow_signals(member: Member) -> None:
    def change(number: int, _: Any) -> None:
        # Elsewhere: the lock may be held by the listening thread, which waits for nobody, but not by this one too.
        threading.Thread(target=member.step, args=(1 if number == signal.SIGUSR2 else -1,), daemon=True).start()

    signal.signal(signal.SIGUSR1, change)
    signal.signal(signal.SIGUSR2, change)


def _forget() -> None:
    """Detach a forked child: it has no listening thread, and its sockets are its parent's."""
    global _attached, _lock
    if _attached is not None:
        _attached.abandon()
    _attached, _lock = None, threading.Lock()


os.register_at_fork(after_in_child=_forget)
