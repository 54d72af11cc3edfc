"""Says when a search for backends may go on beside the steps of a backend that it has found already."""

from __future__ import annotations

LEAST_SHARE = 0.01
"""Least share of a core, and of the time, that a search for backends gets, also where learning may take less."""
BURST_S = 0.2
"""Seconds for which a search works at a time, at least. A convention: far longer than processes need to go on."""
DISTURBS = 0.5
"""Share of their time that steps lose while a search works beside them: OpenVINO took 8.5 ms in place of 5.5 for Llama
(decision 59)."""
APART = 5
"""Steps in a row, each after a longer time without one, after which steps leave time for a search. A convention."""


class SearchPace:
    """Lets a search work in a part of the time only, where steps follow each other closely.

    A search gets little of the cores from steps that keep all of them busy, but a backend's threads wait for each
    other, and lose far more by it. Where steps leave the cores idle for longer than they take, it need not rest.
    """

    def __init__(self) -> None:
        self._apart = 0
        self._ended_s: float | None = None
        self._works, self._left_s = True, BURST_S

    @property
    def rests(self) -> bool:
        """Whether the search has to rest beside the next step."""
        return self._apart < APART and not self._works

    def ran(self, *, started_s: float, ended_s: float, share: float) -> None:
        """Record a step, by the seconds of a clock. Steps may lose this share of their time."""
        seconds, idle_s = ended_s - started_s, 0.0 if self._ended_s is None else started_s - self._ended_s
        self._apart = self._apart + 1 if idle_s > seconds else 0
        self._ended_s = ended_s
        gets_s = seconds * min(1.0, max(share, LEAST_SHARE) / DISTURBS)
        self._left_s = min(BURST_S + seconds, self._left_s + gets_s - (seconds if self._works else 0.0))
        self._works = self._left_s > 0 if self._works else self._left_s >= BURST_S
