"""Says when a search for backends may go on beside the steps of a caller that keeps the cores busy."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from statistics import median

LEAST_SHARE = 0.01
"""Least share of a core, and of the time, that a search for backends gets, also where learning may take less."""
BURST_S = 0.2
"""Seconds for which a search works at a time, at least. A convention: far longer than processes need to go on."""
DISTURBS = 0.5
"""Share of their time that steps are taken to lose while a search works beside them, before it is measured: OpenVINO
took 8.5 ms in place of 5.5 for Llama (decision 59)."""
APART = 5
"""Steps in a row, each after a longer time without one, after which steps leave time for a search. A convention."""
RECENT, ENOUGH = 25, 8
"""Number of recent steps beside a search that works, and as many beside one that rests, whose medians tell what it
disturbs; and the fewest."""


class SearchPace:
    """Lets a search work in a part of the time only, where steps follow each other closely.

    A search gets little of the cores from steps that keep all of them busy, but these may lose far more by it: threads
    wait for the one that shares its core. How much they lose is measured, and the search works in so much of the time
    that steps lose the share that they may. Where steps leave the cores idle for longer than they take, it need not
    rest.
    """

    def __init__(self) -> None:
        self._apart = 0
        self._ended_s: float | None = None
        self._works, self._left_s = True, BURST_S
        self._by: Hashable = None
        self._beside_s: deque[float] = deque(maxlen=RECENT)
        self._alone_s: deque[float] = deque(maxlen=RECENT)

    @property
    def rests(self) -> bool:
        """Whether the search has to rest beside the next step."""
        return self._apart < APART and not self._works

    @property
    def disturbs(self) -> float:
        """Share of their time that steps lose while a search works beside them."""
        if min(len(self._beside_s), len(self._alone_s)) < ENOUGH:
            return DISTURBS
        return max(0.0, 1 - median(self._alone_s) / median(self._beside_s))

    def ran(self, *, started_s: float, ended_s: float, share: float, by: Hashable, beside: bool) -> None:
        """Record a step, by the seconds of a clock. Steps may lose this share of their time.

        `by` is what ran it (None: something whose steps cannot be compared); `beside`: a search worked beside it.
        """
        seconds, idle_s = ended_s - started_s, 0.0 if self._ended_s is None else started_s - self._ended_s
        self._note(seconds, by, beside=beside)
        self._apart = self._apart + 1 if idle_s > seconds else 0
        self._ended_s = ended_s
        share, disturbs = max(share, LEAST_SHARE), self.disturbs
        gets_s = seconds * (share / disturbs if disturbs > share else 1.0)
        saved_s = BURST_S + (gets_s if gets_s < seconds else 0.0)  # nothing, of times without a limit
        self._left_s = min(saved_s, self._left_s + gets_s - (seconds if self._works else 0.0))
        self._works = self._left_s > 0 if self._works else self._left_s >= BURST_S

    def _note(self, seconds: float, by: Hashable, *, beside: bool) -> None:
        if by is None:
            return
        if by != self._by:
            self._beside_s.clear()
            self._alone_s.clear()
            self._by = by
        (self._beside_s if beside else self._alone_s).append(seconds)
