"""Finds out which kinds of calls are too short or too seldom to gain anything, before their graph is captured.

Capturing costs time whatever it gains. The first kind is captured at once. A further one is once eager PyTorch has
taken as long for its calls as the last capture took: kinds that come seldom, as lengths of texts that vary, are not.
For each kind that nothing was faster for, others wait for twice as long: kinds of one function are much alike.
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from threadcast.runtime.calls.kinds import CallKind
from threadcast.runtime.calls.table import MOST_KINDS
from threadcast.runtime.tuner.tuning import LOOKING_SHARE

TIMED = 3
"""Calls of a kind that are timed before it is decided; the first does not count, as it fills caches."""
LONG = 50
"""A first call that takes so many times as long as the shortest step worth planning is not too short."""

NEW_IN_A_ROW = 8
"""Calls in a row that are each the first of a kind, after which a user is told."""
_KEPT = 50
"""Most times of a kind that are kept: its median changes little by more. A convention."""


@dataclass(slots=True)
class _Timed:
    """The seconds of the first call of a kind, of its last ones, and of all that were timed."""

    first_s: float | None = None
    last_s: deque[float] = field(default_factory=lambda: deque(maxlen=_KEPT))
    total_s: float = 0.0


class ShortCalls:
    """Times the first calls of each kind in eager PyTorch. `least_s` are the fewest seconds of a call worth planning;
    with 0 only calls of further kinds are timed."""

    def __init__(self, least_s: float) -> None:
        self._least_s = least_s
        self._timed: OrderedDict[CallKind, _Timed] = OrderedDict()
        self.new_in_a_row = 0
        """Number of last calls that were each the first of a kind."""

    def wants(self, kind: CallKind, *, captured_s: float | None) -> bool:
        """Return whether one more call of this kind has to be timed.

        `captured_s` are the seconds of calls for which a further kind is captured; None where none was.
        """
        known = self._timed.get(kind)
        found = _Timed() if known is None else known
        few = len(found.last_s) < TIMED - 1 and (found.first_s or 0.0) < LONG * self._least_s
        timed = self._least_s > 0 and few
        timed = timed or (captured_s is not None and (known is None or found.total_s < captured_s))
        self.new_in_a_row = self.new_in_a_row + 1 if timed and known is None else 0
        return timed

    def ran(self, kind: CallKind, seconds: float | None) -> None:
        """Record the seconds of a call of this kind in eager PyTorch; None where another thread disturbed it.

        Of more than `MOST_KINDS` kinds, those that came first are forgotten.
        """
        found = self._timed.setdefault(kind, _Timed())
        if seconds is not None:
            found.total_s += seconds
            if found.first_s is None:
                found.first_s = seconds
            else:
                found.last_s.append(seconds)
        if len(self._timed) > MOST_KINDS:
            self._timed.popitem(last=False)

    def why_left_alone(self, kind: CallKind) -> str | None:
        """Return why calls of this kind are not worth planning; None where they may be."""
        found = self._timed.get(kind)
        seconds = min(found.last_s, default=self._least_s) if found is not None else self._least_s
        if seconds >= self._least_s:
            return None
        return f"a call takes {seconds * 1e6:.0f} us, too short to gain (engine.least_step_us)"

    def take(self, kind: CallKind) -> list[float]:
        """Return the seconds of the first and last calls of this kind, and forget them: it is captured."""
        self.new_in_a_row = 0
        found = self._timed.pop(kind, _Timed())
        return [] if found.first_s is None else [found.first_s, *found.last_s]

    def leaves_alone(self, kind: CallKind, looking_s: float) -> bool:
        """Whether the next calls need no look: many kinds are timed, and looks make such calls clearly slower."""
        return len(self._timed) >= NEW_IN_A_ROW and looking_s > LOOKING_SHARE * self.last_s(kind)

    def last_s(self, kind: CallKind) -> float:
        """Return the seconds of the last call of this kind; infinity where none was timed."""
        found = self._timed.get(kind, _Timed())
        # a first call fills caches, or is not timed and 0
        return found.last_s[-1] if found.last_s else math.inf if found.first_s is None else found.first_s

    @property
    def kinds(self) -> Iterable[CallKind]:
        """The kinds that were timed."""
        return self._timed
