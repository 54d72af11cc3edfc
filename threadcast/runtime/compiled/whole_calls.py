"""Decides from the times of whole calls what runs a program: eager PyTorch, or its graphs in one of the layouts.

What is decided by `Tournament` is carried out here; this uses no clock and no lock. `next_turn` says what runs the next
call, and `observe` takes note of how long it took.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from threadcast.runtime.compiled.graph_calls import GraphCalls
from threadcast.runtime.compiled.short_way import ShortWay
from threadcast.runtime.plans.plan_store import FasterGraphs
from threadcast.runtime.plans.variant import MemoryFormat
from threadcast.runtime.tuner import events as to
from threadcast.runtime.tuner.backends_beside import BackendsBeside
from threadcast.runtime.tuner.budget import BESIDE, Budget
from threadcast.runtime.tuner.entrant import Status
from threadcast.runtime.tuner.events import Outlook, Place
from threadcast.runtime.tuner.guard import LITTLE, Verdict
from threadcast.runtime.tuner.rounds import Rounds
from threadcast.runtime.tuner.tournament import Tournament

AS_TRACED = "eager PyTorch"
"""The program as Dynamo has traced it, under PyTorch's own autograd: what runs while nothing faster is known."""

_ELSEWHERE = 10
"""Calls in a row with other sizes, after which calls of these sizes are counted. A convention."""
_BEGUN, _HOPELESS = 8, 0.85
"""Calls in one of two layouts in which its graphs are only timed, and ratio of eager PyTorch's time to theirs in
channels last, by PyTorch, under which they do not learn so. As given, PyTorch's graphs take 1.1 of eager's time."""
_SHORTENED = 4
"""Most calls that wait for the short way to graphs that have settled: one learns it, unless its arguments are special,
or its backward pass comes late. A convention."""
_LOOKS_S = 0.05
"""Seconds between two looks at what is at work beside the calls. A convention."""


class Turn(NamedTuple):
    """What runs a call: the graphs in this layout, or eager PyTorch (None)."""

    layout: MemoryFormat | None
    counts: bool = False
    """Whether `observe` is to be told how long it took."""
    compared: bool = False
    """Whether it is compared with others, so that the graphs learn nothing in it."""
    disturbed: bool = False
    """Whether a plan is being made beside it."""


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
        """Whether it is known of each what runs it, and how fast, though something may not have been tried yet."""
        reports = [report for part in self._parts for report in part.reports]
        known = bool(reports) and not any(report.measuring for report in reports)
        return known and all(part.outlook.place is not None or not part.learning for part in self._parts)

    @property
    def outlook(self) -> Outlook:
        """What they learn next."""
        return Outlook.of(part.outlook for part in self._parts)

    @property
    def disturbed(self) -> bool:
        """Whether a plan is being made on one of their cores, beside which calls tell little of their speed."""
        return any(part.disturbed for part in self._parts)

    def look(self) -> None:
        """Take note of what has become ready beside calls."""
        for part in self._parts:
            part.look()

    def gets_shorter(self) -> bool:
        """Return whether the next call, if it runs by them, may find a shorter way to them."""
        return isinstance(self._run, ShortWay) and self._run.learns()


class WholeCalls(Rounds):
    """Has whole calls of one program compared, as `CompiledCall` says. `told` is called with what happens.

    `found` is what was found before for the same program, so that its graphs run from the first call on. `keep` is
    called with what is found now; with None where they are not faster.
    """

    def __init__(
        self, graphs: Graphs, budget: Budget, *, told: Callable[[str], None] = lambda _: None,
        found: FasterGraphs | None = None, keep: Callable[[FasterGraphs | None], None] = lambda _: None,
    ) -> None:  # fmt: skip
        super().__init__(Tournament(AS_TRACED, told=told), budget)
        self._found, self._keep = found, keep
        self.verdicts: dict[MemoryFormat, Verdict] = {}
        """How the graphs in each layout compare with the fastest before, as far as that is known."""
        self._graphs = graphs
        self._lost: set[MemoryFormat] = set()
        self._backends = BackendsBeside(None)
        """Lets searches rest beside calls."""
        self._begun = self._shortened = self._uncounted = self._elsewhere = 0
        """Of the layout that is prepared: calls so far, and calls that have waited for a shorter way; calls since the
        last one that counts; calls in a row of other sizes."""
        self._took_s = 0.0
        """Seconds of the fastest call by what is prepared now."""
        self._looked_s, self._trains, self._has_begun = 0.0, False, False
        self._what: to.Run | to.RunStage = to.Run(AS_TRACED)
        self._sizes: tuple[int, ...] | None = None
        """The integers among the arguments of calls that count: calls of other sizes take other times."""

    @property
    def best(self) -> MemoryFormat | None:
        """The layout in which the graphs are the fastest that is known; None while that is eager PyTorch."""
        return _layout(self.tournament.best)

    @property
    def rests(self) -> bool:
        """Whether the fastest runs, and nothing is being learned."""
        known = self.tournament
        if not (known.settled and known.confirmed and known.idle):
            return False
        return self.best is None or self._graphs.outlook.place is None

    def next_turn(self, sizes: tuple[int, ...], *, now_s: float, waiting: bool = False) -> Turn:
        """Return what runs the next call, at this time of a clock; `sizes` are the integers among its arguments.

        `waiting`: an earlier call is not over. Then, or if its sizes are others, it does not count.
        """
        if not self._has_begun:
            self._begin()
        if waiting or not self._are_counted(sizes):
            self._uncounted += 1
            stays = waiting or isinstance(self._what, to.RunStage)
            return Turn(
                _layout(self._what.key) if stays else self.best, compared=self.tournament.comparison is not None
            )
        self._look(now_s)
        self._trains = torch.is_grad_enabled()
        self._what = what = self.next()
        compared = self.tournament.comparison is not None
        self._backends.before_step(rests=compared or not self.budget.unlimited)
        return Turn(_layout(what.key), True, compared, self.disturbed)

    @property
    def disturbed(self) -> bool:
        """Whether a plan is being made on one of the graphs' cores."""
        return self._graphs.disturbed

    def prepare(self, key: to.Key) -> None:
        """Have the graphs run calls, in which they learn."""
        self._begun = self._shortened = 0
        self._took_s = 0.0
        self.tell(to.Staged(key, Place.CALL))

    def observe(self, *, started_s: float, seconds: float) -> None:
        """Take note of the seconds of the call that counts, and when it started by the caller's clock."""
        what = self._what
        beside = self._backends.beside or self._graphs.disturbed or self._graphs.outlook.place is Place.BESIDE
        event = to.Ran(started_s, seconds, seconds, alone=not beside)
        eager_s = self.tournament.eager_of(event, what)
        if eager_s is not None and what.key == AS_TRACED:  # whatever else takes the cores is not due to learning
            eager_s = max(eager_s, seconds / BESIDE)
        calls, self._uncounted = 1 + self._uncounted, 0
        self.budget.ran(calls * seconds, eager_s=calls * (seconds if eager_s is None else eager_s))
        self.tell(event)
        self.do()
        if isinstance(what, to.RunStage):
            assert isinstance(what.key, MemoryFormat)
            self._begun += 1
            self._took_s = min(self._took_s or seconds, seconds)
            self._staged(what.key)
            self.do()

    def _begin(self) -> None:
        self._has_begun = True
        if self._found is not None:
            self.tell(to.Resumed(*self._found))
        else:
            self._offer_next()

    def _offer_next(self) -> None:
        """Have the graphs learn in channels last, where they have it, and as given where they are not faster so."""
        for layout in (MemoryFormat.CHANNELS_LAST, MemoryFormat.AS_GIVEN):
            known = self.tournament.entrants.get(layout)
            has_it = layout is MemoryFormat.AS_GIVEN or self._graphs.has_channels_last
            if has_it and (known is None or (known.offered.earlier and known.status is Status.OUT)):
                self.tell(to.Offered(layout, most=10.0, cost_s=0.0))
                return

    def _are_counted(self, sizes: tuple[int, ...]) -> bool:
        """Whether calls of these sizes count: those before them have not come for a while."""
        if sizes != self._sizes and self._sizes is not None:
            self._elsewhere += 1
            if self._elsewhere < _ELSEWHERE:
                return False
            if self.tournament.comparison is not None:
                self.break_off()
        self._sizes, self._elsewhere = sizes, 0
        return True

    def _look(self, now_s: float) -> None:
        """Look at graphs for which something is at work beside calls."""
        if now_s - self._looked_s < _LOOKS_S:
            return
        self._looked_s = now_s
        for one in list(self.tournament.entrants.values()):
            if one.stage is not None and one.stage.place is Place.BESIDE and isinstance(one.key, MemoryFormat):
                self._graphs.look()
                self._staged(one.key)

    def _staged(self, layout: MemoryFormat) -> None:
        """Tell how far the preparation of the graphs is, unless they run or have been dropped meanwhile."""
        if self._is_out(layout) or layout in (self.tournament.best, self.tournament.challenger):
            return
        best_s, outlook = self.tournament.best_s or 0.0, self._graphs.outlook
        if layout is MemoryFormat.CHANNELS_LAST:
            reason = None if self._graphs.has_channels_last else "its results are not those of the order as given"
            if self._begun == _BEGUN and layout not in self._lost and best_s < _HOPELESS * self._took_s:
                reason = "PyTorch takes longer so"
            if reason is not None:
                self.tell(to.LeftOut(layout, reason))
                self._offer_next()
                return
        learns = outlook.place is not None and (self.budget.unlimited or layout in self._lost)
        two = layout is MemoryFormat.CHANNELS_LAST or self._graphs.has_channels_last
        if (two and self._begun < _BEGUN) or learns or not self._graphs.has_settled:
            cost_s = outlook.cost_s + max(0.0, self._took_s - best_s)
            self.tell(to.Staged(layout, outlook.place or Place.CALL, cost_s))
        elif self._trains and self._shortened < _SHORTENED and self._graphs.gets_shorter():
            self._shortened += 1
            self.tell(to.Staged(layout, Place.CALL))
        else:
            self.tell(to.Ready(layout))

    def carry_out(self, instruction: to.Instruction) -> None:
        """Take note of verdicts, offer what is learned next, and keep what is the fastest for later processes."""
        match instruction:
            case to.Compared(MemoryFormat() as layout, verdict):
                self.verdicts[layout] = verdict
                if verdict.kept == "default" and not self._is_out(layout):  # else `Drop` follows
                    self._lost.add(layout)
                    if self._graphs.outlook.place is None:
                        self._offer_next()
                    else:  # they learn on, where they can
                        self._staged(layout)
            case to.Keep(MemoryFormat() as layout, step_s) if (eager_s := self.tournament.eager_s) is not None:
                self._keep(FasterGraphs(layout, step_s, eager_s))
            case to.Drop(earlier=True):
                self._offer_next()
            case to.Settle(key) if key == AS_TRACED and self.tournament.idle and not self.loud:
                gains = [verdict.high for verdict in self.verdicts.values()]
                if gains and max(gains) < LITTLE:
                    self._keep(None)

    def _is_out(self, layout: MemoryFormat) -> bool:
        """Whether the graphs never run in this layout again, unless they are offered anew."""
        return self.tournament.entrants[layout].status is Status.OUT


def _layout(key: to.Key) -> MemoryFormat | None:
    return key if isinstance(key, MemoryFormat) else None
