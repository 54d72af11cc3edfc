"""A progress bar on stderr; plain lines where stderr is no terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from threading import Event, Thread
from types import TracebackType
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

_LINE_EVERY_S = 5.0  # between plain lines: seldom enough for a CI log, often enough to see that it lives
_LOOK_EVERY_S = 0.5
_TELLING = 0.1  # share of the steps from which on their pace tells the rest: the first ones wait for libraries to load


class ProgressBar:
    """A context manager that shows how far a task is and the remaining time; call `update` inside its block.

    `total` may be None while it is not known. At the end of the block the bar is removed. `look`, for a task that calls
    nothing meanwhile, returns how much is done and what is being done; another thread calls it and updates the bar.
    """

    def __init__(
        self, doing: str, *, total: int | None = None, unit: str = "",
        look: Callable[[], tuple[int, str]] | None = None, clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._doing, self._total, self._unit, self._done = doing, total, unit, 0
        self._clock, self._started, self._printed_s = clock, clock(), clock()
        self._bar = _terminal_bar() if sys.stderr.isatty() else None
        self._task = self._bar.add_task(doing, total=total) if self._bar else None
        self._look, self._ended = look, Event()
        self._looking = Thread(target=self._follow, name="threadcast-progress", daemon=True)

    def __enter__(self) -> Self:
        self._started = self._printed_s = self._clock()
        if self._bar:
            self._bar.start()
        if self._look:
            self._looking.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        if self._look:
            self._looking.join()
        if self._bar:
            self._bar.stop()

    def update(self, done: int, *, total: int | None = None, doing: str | None = None) -> None:
        """Set the number of steps that are done; `total` and `doing` where these have changed."""
        self._done, self._total, self._doing = done, total or self._total, doing or self._doing
        if self._bar and self._task is not None:
            self._bar.update(self._task, completed=done, total=self._total, description=self._doing)
        elif self._clock() - self._printed_s >= _LINE_EVERY_S:
            self._printed_s = self._clock()
            sys.stderr.write(f"{self._line()}\n")

    def _follow(self) -> None:
        while self._look and not self._ended.wait(_LOOK_EVERY_S):
            done, doing = self._look()
            self.update(done, doing=doing)

    def _line(self) -> str:
        if not self._total:
            return f"{self._doing}: {self._done}{self._unit}"
        elapsed_s = self._clock() - self._started
        is_telling = self._done >= max(_TELLING * self._total, 1)
        remaining_s = elapsed_s / self._done * (self._total - self._done) if is_telling else None
        rest = "" if remaining_s is None else f", about {remaining_s:.0f} s left"
        return f"{self._doing}: {self._done} of {self._total}{self._unit}{rest}"


def _terminal_bar() -> Bar:
    from rich.console import Console  # here: most commands end before a bar is drawn
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (
        TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
        TextColumn("left"), TimeRemainingColumn(),
    )  # fmt: skip
    return Bar(*columns, console=Console(file=sys.stderr), transient=True)
