"""The search for backends beside the steps of one kind of call: begun once, asked for what it finds, ended.

One search of a process is at work at a time; it rests beside the steps of all kinds of calls where these are compared,
or may lose no time, whichever it is for.
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
from threadcast.runtime.tuner.contender import Backends, Contender, MakeBackends

_logger = logging.getLogger("threadcast")


class _Turn:
    """Which search of this process is at work."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._search: weakref.ref[Backends] | None = None
        self._process = os.getpid()

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
    """A search that `make` makes (None: there is none). It raises what the search raises; then call `leave_out`."""

    def __init__(self, make: MakeBackends | None) -> None:
        self._make = make
        self._search: Backends | None = None
        self._later_too = False
        self.beside = False
        """Whether a search works beside the next step, or did beside the last."""

    @property
    def waits(self) -> bool:
        """Whether the search is still to begin."""
        return self._make is not None

    @property
    def works(self) -> bool:
        """Whether the search has begun and is not over."""
        return self._search is not None

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

    def make(self, captured: Captured | None, arguments: tuple[Any, ...], result: Any) -> bool:
        """Make the search by the example of a step, its graph (None: it has none) and its result; `start` starts it.

        Returns whether there is one now. There is none while another search of the process is at work.
        """
        assert self._make is not None
        if captured is None:
            self._make = None
            return False
        self._search = _TURN.make(partial(self._make, captured, arguments, result))
        if self._search is None:
            return False
        self._make = None
        return True

    def start(self) -> None:
        """Start the search that was made."""
        assert self._search is not None
        self._search.start()

    def poll(self, *, unlimited: bool) -> Contender | None:
        """Return what the search has found and is ready to run; None where there is nothing new."""
        assert self._search is not None
        found = self._search.poll(unlimited=unlimited)
        self._later_too |= self._search.broken_off
        if self._search.over:
            self._search = None
        return found

    def wait(self, timeout_s: float) -> None:
        """Return when `poll` has something to do, or after `timeout_s` seconds."""
        if self._search is not None:
            self._search.wait(timeout_s)

    def before_step(self, *, rests: bool) -> None:
        """Let the search that is at work rest beside the next step, or work.

        What contenders with threads of their own take beside it would not be what they take once it is over.
        """
        search = _TURN.search
        if search is not None:
            search.pause(rests)
        self.beside = search is not None and not rests

    def leave_out(self, error: Exception) -> None:
        """End the search, or never begin it, because of this error."""
        _logger.warning("backends are left out: %s", error)
        self._later_too = True
        self.close()
        self._make = None

    def never(self) -> None:
        """Do not begin the search: an earlier process did."""
        self._make = None

    def end(self) -> None:
        """End the search, or never begin it, because the caller wants none."""
        self._later_too |= not self.over
        self.close()
        self._make = None

    def close(self) -> None:
        """End the search where it is at work."""
        if self._search is not None:
            self._later_too = True
            self._search.close()
            self._search = None
