"""The search for backends beside the steps of one kind of call: begun once, asked for what it finds, ended."""

from __future__ import annotations

import logging
from typing import Any

from threadcast.capture.capture import Captured
from threadcast.runtime.tuner.contender import Backends, Contender, MakeBackends

_logger = logging.getLogger("threadcast")


class BackendsBeside:
    """A search that `make` makes (None: there is none). It raises what the search raises; then call `leave_out`."""

    def __init__(self, make: MakeBackends | None) -> None:
        self._make = make
        self._search: Backends | None = None
        self._later_too = False
        self.beside = False
        """Whether the search works beside the next step, or did beside the last."""

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

        Returns whether there is one now. There is none while another search of the same model is at work.
        """
        assert self._make is not None
        if captured is None:
            self._make = None
            return False
        self._search = self._make(captured, arguments, result)
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
        """Let the search rest beside the next step, or work.

        What contenders with threads of their own take beside it would not be what they take once it is over.
        """
        if self._search is not None:
            self._search.pause(rests)
        self.beside = self.works and not rests

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
