"""Decides from the times of whole calls what runs a program: eager PyTorch or its graphs, and in which layout.

It uses no clock and no lock. `next_turn` says what runs the next call, and `observe` records how long it took.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from math import ceil
from typing import Any

import torch

from threadcast.runtime.graph_calls import GraphCalls
from threadcast.runtime.plans.variant import MemoryFormat
from threadcast.runtime.short_way import ShortWay
from threadcast.runtime.tuner.contender_id import DEFAULT
from threadcast.runtime.tuner.guard import MAX_PAIRS, Guard, Side, Verdict

_ELSEWHERE = 10
"""Calls in a row with other sizes, after which calls of these sizes are compared. A convention."""
_HOPELESS = 0.8
"""Ratio of eager PyTorch's time to the graphs' under which the other layout is not tried. A convention."""
_LOSS = 0.02
"""Part of their time that calls may lose to graphs that are slower and still learn. A convention."""
_TURN = 8
"""Calls in a row for which such graphs run: the first one after eager PyTorch's starts their threads anew."""
_BEGUN = 8
"""Calls in a layout after which its graphs have begun to learn: the first ones of a kind are only timed. Also calls
before layouts are compared, in which libraries make their kernels."""
_SHORTENED = 4
"""Most calls that wait for the short way to graphs that have settled: one learns it, unless its arguments are special,
or its backward pass comes late. A convention."""
_ORDERING_PAIRS = 5
"""Pairs of blocks by which it is decided which layout is learned first. A convention."""


class Graphs:
    """What is known of a program's graphs, its `parts`, before a call by what `run`s them."""

    def __init__(self, run: Callable[..., Any], parts: Sequence[GraphCalls]) -> None:
        self._run, self._parts = run, parts

    @property
    def has_channels_last(self) -> bool:
        """Whether one of them can run in channels last."""
        return any(part.has_channels_last for part in self._parts)

    @property
    def has_settled(self) -> bool:
        """Whether it is known of each what runs it, though something may not have been tried yet."""
        reports = [report for part in self._parts for report in part.reports]
        return bool(reports) and not any(report.measuring for report in reports)

    @property
    def learning(self) -> bool:
        """Whether something has not been tried yet."""
        return any(part.learning for part in self._parts)

    @property
    def disturbed(self) -> bool:
        """Whether a plan is being made on one of their cores, beside which calls tell little of their speed."""
        return any(part.disturbed for part in self._parts)

    @property
    def by_pytorch(self) -> int:
        """How many of them PyTorch runs."""
        found = [part.reports for part in self._parts]
        return sum(bool(reports) and all(one.contender is DEFAULT for one in reports) for reports in found)

    def gets_shorter(self) -> bool:
        """Return whether the next call, if it runs by them, may find a shorter way to them."""
        return isinstance(self._run, ShortWay) and torch.is_grad_enabled() and self._run.learns()


class Stage(Enum):
    """What calls are used for now."""

    ORDERING = "ordering"
    """PyTorch runs the graphs by turns in both layouts: the faster one is learned first."""
    LEARNING = "learning"
    """The graphs learn in these calls, which are not compared."""
    COMPARING = "comparing"
    """Graphs in the layout that has been learned, and the fastest way before, run by turns."""
    OVER = "over"
    """It is known what runs all further calls."""


@dataclass(frozen=True, slots=True)
class Turn:
    """What runs a call."""

    layout: MemoryFormat | None
    """The layout in which the graphs run it; None: eager PyTorch does."""
    plainly: bool = False
    """Whether PyTorch runs the graphs, and nothing is learned."""
    side: Side | None = None
    """On which side of a comparison the call counts; None: on neither."""
    comparison: int = 0
    """The number of that comparison."""


class WholeCalls:
    """Compares whole calls of one program, as `CompiledCall` says. With `unlimited`, learning may take any time."""

    def __init__(self, graphs: Graphs, *, unlimited: bool = False) -> None:
        self._graphs, self._unlimited = graphs, unlimited
        self.stage: Stage | None = None
        """What calls are used for; None before the first one."""
        self.best: MemoryFormat | None = None
        """The layout in which the graphs are the fastest known way; None while eager PyTorch is."""
        self.layout = MemoryFormat.AS_GIVEN
        """The layout that is learned or compared."""
        self.verdicts: Mapping[MemoryFormat, Verdict] = {}
        """How the graphs in each layout compare with the fastest way before, as far as that is known."""
        self._other: MemoryFormat | None = None
        """The layout that comes after it if it does not win."""
        self._unseen = 0
        """Calls still to come in the layout before its graphs have begun to learn, or before layouts are compared."""
        self._waits = False
        """Whether the next comparison comes only once the graphs have tried all there is."""
        self._shortened = 0
        """Calls that have waited for a shorter way to the graphs."""
        self._patience: _Patience | None = None
        """Which calls the graphs may learn in before the next comparison; None where none waits for them."""
        self._guard: Guard | None = None
        self._comparison = 0
        """The number of the comparison, or of the part of it since it was disturbed last."""
        self._sizes: tuple[int, ...] = ()
        """The integers among the arguments of the calls that are compared: calls of other sizes take other times."""
        self._elsewhere = 0
        self._by_pytorch: int | None = None
        """How many graphs PyTorch ran when they were found to be faster; None where they run whatever their speed."""

    def next_turn(self, sizes: tuple[int, ...]) -> Turn:
        """Return what runs the next call; `sizes` are the integers among its arguments."""
        if self.stage is None:
            ordering = self._graphs.has_channels_last
            self.stage, self._unseen = (Stage.ORDERING, _BEGUN) if ordering else (Stage.LEARNING, 0)
        if self.stage is Stage.ORDERING:
            return self._next_of_ordering(sizes)
        if self.stage is Stage.LEARNING:
            if not self._may_compare():
                return self._next_of_learning()
            if self._shortened < _SHORTENED and self._graphs.gets_shorter():
                self._shortened += 1
                return self._by(tried=True)
            self.stage, self._patience, self._waits, self._shortened = Stage.COMPARING, None, False, 0
            self._compare(sizes)
        return self._next_compared(sizes) or self._by(tried=self.stage is not Stage.OVER)

    def observe(self, turn: Turn, *, started_s: float, seconds: float) -> None:
        """Record the seconds of a call that `next_turn` has named, and when it started by the caller's clock."""
        guard = self._guard
        if guard is None or turn.comparison != self._comparison or turn.side != guard.next_runner():
            return
        guard.observe(started_s=started_s, seconds=seconds)
        if guard.verdict is None:
            return
        self._guard = None
        if self.stage is Stage.ORDERING:
            self._order(guard.verdict.gain)
        else:
            self._judge(guard.verdict)

    def keep_graphs(self) -> None:
        """Run all further calls by the graphs, even if eager PyTorch is faster."""
        self.best, self.stage, self._guard, self._by_pytorch = self.layout, Stage.OVER, None, None

    def doubt(self) -> bool:
        """Compare anew if more of the graphs that run all calls have been left to PyTorch since; return whether."""
        if self.best is None or self._by_pytorch is None or self._graphs.by_pytorch <= self._by_pytorch:
            return False
        if self._graphs.learning or not self._graphs.has_settled:
            return False
        self._other = MemoryFormat.AS_GIVEN if MemoryFormat.AS_GIVEN not in self.verdicts else None
        self.stage, self.layout, self.best, self._by_pytorch = Stage.LEARNING, self.best, None, None
        return True

    def _may_compare(self) -> bool:
        """Whether the graphs have learned what they learn before whole calls are compared, and nothing disturbs."""
        if self._unseen > 0 or ((self._waits or self._unlimited) and self._graphs.learning):
            return False
        return self._graphs.has_settled and not self._graphs.disturbed

    def _next_of_learning(self) -> Turn:
        tried = self._patience is None or self._patience.next_is_graphs()
        self._unseen -= tried
        return self._by(tried=tried)

    def _next_of_ordering(self, sizes: tuple[int, ...]) -> Turn:
        self._unseen -= 1
        if self._guard is None and self._unseen < 0:
            self._compare(sizes, max_pairs=_ORDERING_PAIRS)
        return self._next_compared(sizes) or self._by(tried=self._unseen % 2 == 1)

    def _compare(self, sizes: tuple[int, ...], *, max_pairs: int = MAX_PAIRS) -> None:
        """Begin to compare calls of these sizes."""
        # not by one pair, which shows only that something else used the cores
        self._guard, self._sizes, self._elsewhere = Guard(max_pairs=max_pairs, at_once=False), sizes, 0
        self._comparison += 1

    def _next_compared(self, sizes: tuple[int, ...]) -> Turn | None:
        """The next turn of the comparison; None where there is none, or these sizes are not compared."""
        if self._guard is None:
            return None
        if self._graphs.disturbed:
            self._guard.break_off()
            self._comparison += 1
            return self._by(tried=False)
        if sizes != self._sizes:
            self._elsewhere += 1
            if self._elsewhere < _ELSEWHERE:
                return None
            self._compare(sizes)
        self._elsewhere = 0
        side = self._guard.next_runner()
        return self._by(tried=side == "plan", side=side)

    def _by(self, *, tried: bool, side: Side | None = None) -> Turn:
        """A turn of the layout that is tried, or of the fastest way that is known."""
        if self.stage is Stage.ORDERING:
            layout: MemoryFormat | None = MemoryFormat.CHANNELS_LAST if tried else MemoryFormat.AS_GIVEN
        else:
            layout = self.layout if tried else self.best
        return Turn(layout, self.stage is Stage.ORDERING, side, self._comparison)

    def _order(self, gain: float) -> None:
        """Decide which layout is learned first; in channels last calls by PyTorch are `gain` times as fast."""
        self.stage, self._unseen = Stage.LEARNING, _BEGUN
        if not self._graphs.has_channels_last:  # it was refused meanwhile
            return
        if gain > 1.0:
            self.layout, self._other = MemoryFormat.CHANNELS_LAST, MemoryFormat.AS_GIVEN
        elif gain > _HOPELESS:
            self._other = MemoryFormat.CHANNELS_LAST

    def _judge(self, verdict: Verdict) -> None:
        wins = verdict.kept == "plan"
        if self._graphs.learning and not (wins and verdict.shown):
            # Fused operators or backends may be faster, and looks at operators or compilers have run in these calls.
            self.stage, self._waits = Stage.LEARNING, True
            self._patience = None if wins else self._patience_for(verdict.gain)
            return
        self.verdicts = {**self.verdicts, self.layout: verdict}
        if wins:
            self.best = self.layout
        if self.best is None and self._other is not None:
            self.stage, self.layout, self._other, self._unseen = Stage.LEARNING, self._other, None, _BEGUN
            self._patience = self._patience_for(_HOPELESS)
        else:
            self.stage, self._by_pytorch = Stage.OVER, self._graphs.by_pytorch

    def _patience_for(self, gain: float) -> _Patience | None:
        return None if self._unlimited else _Patience(gain)


class _Patience:
    """Lets graphs that are slower by `gain` learn in some calls, and eager PyTorch run all others.

    Calls lose `_LOSS` of their time at most. `gain` is the ratio of eager PyTorch's time to the graphs'.
    """

    def __init__(self, gain: float) -> None:
        slower_by = max(1.0 / gain - 1.0, 0.0)
        self._of = max(_TURN, ceil(_TURN * slower_by / _LOSS))
        self._calls = 0

    def next_is_graphs(self) -> bool:
        """Whether the graphs run the next call; each question is for one call."""
        turn = self._calls % self._of < _TURN
        self._calls += 1
        return turn
