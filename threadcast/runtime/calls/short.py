"""Finds out which kinds of calls are too short or too seldom to gain anything, before their graph is captured.

Capturing costs time whatever it gains. The first kind is captured at once. A further one is once eager PyTorch has
taken as long for its calls as the last capture took: kinds that come seldom, as lengths of texts that vary, are not.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterable

from threadcast.runtime.calls.kinds import CallKind
from threadcast.runtime.calls.table import MOST_KINDS
from threadcast.runtime.tuner.tuning import LOOKING_SHARE

TIMED = 3
"""Calls of a kind that are timed before it is decided; the first does not count, as it fills caches."""
LONG = 50
"""A first call that takes so many times as long as the shortest step worth planning is not too short."""


NEW_IN_A_ROW = 8
"""Calls in a row that are each the first of a kind, after which a user is told."""


class ShortCalls:
    """Times the first calls of each kind in eager PyTorch. `least_s` are the fewest seconds of a call worth planning;
    with 0 only calls of further kinds are timed."""

    def __init__(self, least_s: float) -> None:
        self._least_s = least_s
        self._seconds: OrderedDict[CallKind, list[float]] = OrderedDict()
        self.new_in_a_row = 0
        """Number of last calls that were each the first of a kind."""

    def wants(self, kind: CallKind, *, captured_s: float | None) -> bool:
        """Return whether one more call of this kind has to be timed.

        `captured_s` are the seconds that it took to capture the last of other kinds; None where none was.
        """
        known, seconds = kind in self._seconds, self._seconds.get(kind, ())
        timed = self._least_s > 0 and len(seconds) < TIMED and not (seconds and seconds[0] >= LONG * self._least_s)
        timed = timed or (captured_s is not None and (not known or sum(seconds) < captured_s))
        self.new_in_a_row = self.new_in_a_row + 1 if timed and not known else 0
        return timed

    def ran(self, kind: CallKind, seconds: float | None) -> None:
        """Record the seconds of a call of this kind in eager PyTorch; None where another thread disturbed it.

        Of more than `MOST_KINDS` kinds, those that came first are forgotten.
        """
        self._seconds.setdefault(kind, []).extend([] if seconds is None else [seconds])
        if len(self._seconds) > MOST_KINDS:
            self._seconds.popitem(last=False)

    def why_left_alone(self, kind: CallKind) -> str | None:
        """Return why calls of this kind are not worth planning; None where they may be."""
        seconds = min(self._seconds.get(kind, [])[1:], default=self._least_s)
        if seconds >= self._least_s:
            return None
        return f"a call takes {seconds * 1e6:.0f} us, too short to gain (engine.least_step_us)"

    def take(self, kind: CallKind) -> list[float]:
        """Return the seconds of the calls of this kind that were timed, and forget them: it is captured."""
        self.new_in_a_row = 0
        return self._seconds.pop(kind, [])

    def leaves_alone(self, kind: CallKind, looking_s: float) -> bool:
        """Whether the next calls need no look: many kinds are timed, and looks make such calls clearly slower."""
        last_s = (self._seconds.get(kind) or [math.inf])[-1]  # a first one fills caches, or is not timed and 0
        return len(self._seconds) >= NEW_IN_A_ROW and looking_s > LOOKING_SHARE * last_s

    @property
    def kinds(self) -> Iterable[CallKind]:
        """The kinds that were timed."""
        return self._seconds
