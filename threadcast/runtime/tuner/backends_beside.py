"""The search for backends beside the steps of one kind of call: begun once, asked for what it finds, ended.

One search of a process is at work at a time. It works in turns between the calls that it is for, in which the caller
waits, and while the process computes nothing; so it takes no core from any call, nor from what is computed between
calls, and what it costs is known.
"""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

from threadcast.capture.graph.captured import Captured
from threadcast.core.signal_handlers import Failure
from threadcast.runtime.tuner.candidate import Backends, MakeBackends, Way

TURN_S, MOST_TURN_S = 0.02, 0.1
"""Seconds of a turn between calls: caches have to be filled anew after each. Between them two calls are waited for."""
ASKS_S, ASK_S = 0.5, 0.002
"""Seconds between two looks whether the search of another process is still at work, and what each takes."""

_logger = logging.getLogger("threadcast")


class _Turn:
    """Which search of this process is at work."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._search: weakref.ref[Backends] | None = None
        self._process = os.getpid()
        self.worked = 0
        """How often a search was let work, or told to rest, so far."""

    @property
    def search(self) -> Backends | None:
        """The search that is at work now; None where none is, as in a fork."""
        search = None if self._search is None or self._process != os.getpid() else self._search()
        return search if search is not None and not search.over and search.working else None

    def make(self, make: Callable[[], Backends | None]) -> Backends | None:
        """Return the search that `make` makes; None, and nothing is made, while another one is at work."""
        with self._lock:
            if self.search is not None or (found := make()) is None:
                return None
            self._search, self._process = weakref.ref(found), os.getpid()
            return found


_TURN = _Turn()


class BackendsBeside:
    """A search that `make` makes (None: there is none). Whatever it raises ends it, with a warning."""

    def __init__(self, make: MakeBackends | None) -> None:
        self._make = make
        self._search: Backends | None = None
        self._later_too = False
        self._rests, self._worked = True, 0
        self._turn_s = 0.0
        """When the next turn may come."""

    @property
    def waits(self) -> bool:
        """Whether the search is still to begin."""
        return self._make is not None

    @property
    def works(self) -> bool:
        """Whether the search has begun and is not over."""
        return self._search is not None

    @property
    def has_turn(self) -> bool:
        """Whether the search computes where it may, and none of another process."""
        return self._search is not None and self._search.has_turn

    @property
    def over(self) -> bool:
        """Whether nothing more will be found."""
        return self._make is None and self._search is None

    @property
    def finished(self) -> bool:
        """Whether later processes need not search: a search went to its end, and what it found, if anything, stays."""
        return self.over and not self._later_too

    def search_later_too(self) -> None:
        """Note that later processes are to search as if this one had not."""
        self._later_too = True

    def begin(
        self, captured: Captured | None, arguments: tuple[Any, ...], result: Any, *,
        before: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        """Begin the search by the example of a step, its graph (None: there is none) and result; `before` comes first.

        Nothing happens while another search of the process is at work.
        """
        if captured is None:
            self._make = None
        if captured is None or self._make is None:
            return
        with Failure() as failure:  # the step has run; only what follows from it fails
            self._search = _TURN.make(partial(self._make, captured, arguments, result))
            if self._search is not None:
                self._make = None
                before()
                self._search.start()
        self._leave_out(failure)

    def poll(self, *, unlimited: bool) -> Way | None:
        """Return what the search has found and is ready to run; None where there is nothing new."""
        if self._search is None:
            return None
        found = None
        with Failure() as failure:  # whatever stops the search, what was found before goes on
            found = self._search.poll(unlimited=unlimited)
            self._later_too |= self._search.broken_off
            if self._search.over:
                self._search = None
        self._leave_out(failure)
        return found

    def wait(self, timeout_s: float) -> None:
        """Let the search work, and return when `poll` has something to do, or after `timeout_s` seconds."""
        if self._search is not None:
            _TURN.worked += 1
            self._search.wait(timeout_s)
            _TURN.worked += 1

    def before_step(self, *, rests: bool) -> None:
        """Let the search that is at work rest beside the next step, or work."""
        search = _TURN.search
        self._rests, self._worked = search is None or rests, _TURN.worked
        if search is not None:
            search.rest(rests)

    @property
    def beside(self) -> bool:
        """Whether a search has worked since `before_step`."""
        return not self._rests or self._worked != _TURN.worked

    def turn(self, step_s: float, *, left_s: float, now_s: float) -> None:
        """Let the search work while the caller waits, of whose `left_s` seconds this takes some, before a step.

        Between two turns steps take as long as a turn, at least two of them, of `step_s` seconds each; longer where the
        search of another process is at work.
        """
        turn_s = min(max(TURN_S, 2 * step_s), MOST_TURN_S)
        if self._search is None or self.beside or left_s < turn_s or now_s < self._turn_s:
            return
        has_turn = self._search.has_turn
        self.wait(turn_s if has_turn else ASK_S)
        self._turn_s = now_s + turn_s + step_s + (turn_s if has_turn else ASKS_S)
        self._search.rest(True)

    def _leave_out(self, failure: Failure) -> None:
        if failure.error is not None:
            _logger.warning("backends are left out: %s", failure.error)
            self.close()

    def close(self, *, later_too: bool = True) -> None:
        """End the search, or never begin it; without `later_too` because later processes need not search either."""
        self._later_too |= later_too and not self.over
        self._make = None
        if self._search is not None:
            self._search.close()
            self._search = None
