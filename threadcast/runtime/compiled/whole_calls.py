"""Decides from the times of whole calls what runs a program: eager PyTorch, or its graphs in one of the layouts.

What is decided by `Tournament` is carried out here; this uses no clock and no lock. `next_turn` says what runs the next
call, and `observe` takes note of how long it took.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
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
_FIRST, _HOPELESS = 0.95, 0.75
"""Ratios of eager PyTorch's time to that of the graphs in channels last by PyTorch: above the first one that layout is
learned first, and under the second one never. As given, PyTorch's graphs take 1.1 of eager's time."""
_BEGUN = 8
"""Calls in one of two layouts after which its graphs have begun to learn: the first ones of a kind are only timed."""
_SHORTENED = 4
"""Most calls that wait for the short way to graphs that have settled: one learns it, unless its arguments are special,
or its backward pass comes late. A convention."""
_LOOKS_S = 0.05
"""Seconds between two looks at what is at work beside the calls. A convention."""


@dataclass(frozen=True, slots=True)
class Way:
    """The graphs in this layout; `plainly`: run by PyTorch, and nothing is learned."""

    layout: MemoryFormat
    plainly: bool = False

    def __str__(self) -> str:
        return f"the graphs{' by PyTorch' if self.plainly else ''}, {self.layout}"


class Turn(NamedTuple):
    """What runs a call: the graphs in some way, or eager PyTorch (None)."""

    way: Way | None
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
        self.verdicts: dict[Way, Verdict] = {}
        """How the graphs in each way compare with the fastest one before, as far as that is known."""
        self._graphs = graphs
        self._later: list[Way] | None = None
        """What is learned where what is learned before it does not win; None before the first call."""
        self._ordered = False
        """Whether it is known which layout is learned first."""
        self._lost: set[Way] = set()
        self._backends = BackendsBeside(None)
        """Lets searches rest beside calls."""
        self._begun = self._shortened = self._uncounted = self._elsewhere = 0
        """Of the way that is prepared: calls so far, and calls that have waited for a shorter way; calls since the last
        one that counts; calls in a row of other sizes."""
        self._took_s = 0.0
        """Seconds of the fastest call by what is prepared now."""
        self._looked_s, self._trains = 0.0, False
        self._what: to.Run | to.RunStage = to.Run(AS_TRACED)
        self._sizes: tuple[int, ...] | None = None
        """The integers among the arguments of calls that count: calls of other sizes take other times."""

    @property
    def best(self) -> Way | None:
        """The fastest known way; None while that is eager PyTorch."""
        return _way(self.tournament.best)

    @property
    def rests(self) -> bool:
        """Whether the fastest way runs, and nothing is being learned."""
        known = self.tournament
        if not (known.settled and known.confirmed and known.idle):
            return False
        return self.best is None or self._graphs.outlook.place is None

    def next_turn(self, sizes: tuple[int, ...], *, now_s: float, waiting: bool = False) -> Turn:
        """Return what runs the next call, at this time of a clock; `sizes` are the integers among its arguments.

        `waiting`: an earlier call is not over. Then, or if its sizes are others, it does not count.
        """
        if self._later is None:
            self._begin()
        if waiting or not self._are_counted(sizes):
            self._uncounted += 1
            stays = waiting or isinstance(self._what, to.RunStage)
            return Turn(_way(self._what.key) if stays else self.best, compared=self.tournament.comparison is not None)
        self._look(now_s)
        self._trains = torch.is_grad_enabled()
        self._what = what = self.next()
        compared = self.tournament.comparison is not None
        self._backends.before_step(rests=compared or not self.budget.unlimited)
        return Turn(_way(what.key), True, compared, self.disturbed)

    @property
    def disturbed(self) -> bool:
        """Whether a plan is being made on one of the graphs' cores."""
        return self._graphs.disturbed

    def prepare(self, key: to.Key) -> None:
        """Have the graphs run calls, in which they learn."""
        assert isinstance(key, Way)
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
            assert isinstance(what.key, Way)
            self._begun += 1
            self._took_s = min(self._took_s or seconds, seconds)
            self._staged(what.key)
            self.do()

    def _begin(self) -> None:
        self._later = []
        if self._found is not None:
            layout, step_s, eager_s = self._found
            self.tell(to.Resumed(Way(layout), step_s, eager_s))
        else:
            self._offer_first()

    def _offer_first(self) -> None:
        if self._graphs.has_channels_last:
            self._offer(Way(MemoryFormat.CHANNELS_LAST, plainly=True), gain=1.2)
        else:
            self._offer(Way(MemoryFormat.AS_GIVEN))

    def _offer(self, way: Way, *, gain: float = 1.5) -> None:
        self.tell(to.Offered(way, gain=gain, most=10.0, cost_s=0.0))

    def _offer_next(self) -> None:
        if self._later:
            self._offer(self._later.pop(0))

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
            if one.stage is not None and one.stage.place is Place.BESIDE and isinstance(one.key, Way):
                self._graphs.look()
                self._staged(one.key)

    def _staged(self, way: Way) -> None:
        """Tell how far the preparation of the graphs is, unless they run or have been dropped meanwhile."""
        if self._is_out(way) or way in (self.tournament.best, self.tournament.challenger):
            return
        if way.layout is MemoryFormat.CHANNELS_LAST and not self._graphs.has_channels_last:
            self.tell(to.LeftOut(way, "its results are not those of the order as given"))
            self._later = [one for one in self._later or [] if one.layout is not way.layout]
            self._after(way, 0.0)
            return
        outlook = Outlook(None) if way.plainly else self._graphs.outlook
        learns = outlook.place is not None and (self.budget.unlimited or way in self._lost)
        two = way.layout is MemoryFormat.CHANNELS_LAST or self._graphs.has_channels_last
        if (two and self._begun < _BEGUN) or not (way.plainly or (self._graphs.has_settled and not learns)):
            cost_s = outlook.cost_s + max(0.0, self._took_s - (self.tournament.best_s or 0.0))
            self.tell(to.Staged(way, outlook.place or Place.CALL, cost_s))
        elif not way.plainly and self._trains and self._shortened < _SHORTENED and self._graphs.gets_shorter():
            self._shortened += 1
            self.tell(to.Staged(way, Place.CALL))
        else:
            self.tell(to.Ready(way))

    def carry_out(self, instruction: to.Instruction) -> None:
        """Take note of verdicts, offer what is learned next, and keep what is the fastest for later processes."""
        match instruction:
            case to.Compared(Way() as way, verdict):
                self.verdicts[way] = verdict
                if self._is_out(way):  # `Drop` follows
                    return
                if verdict.kept == "default":
                    self._lost_by(way)
                if way.plainly:
                    self._after(way, verdict.gain)
            case to.Keep(Way(layout, plainly=False), step_s) if (eager_s := self.tournament.eager_s) is not None:
                self._keep(FasterGraphs(layout, step_s, eager_s))
            case to.Drop(earlier=True):
                self._offer_first()
            case to.Settle(key) if key == AS_TRACED and self.tournament.idle and not self.loud:
                gains = [verdict.high for way, verdict in self.verdicts.items() if not way.plainly]
                if gains and max(gains) < LITTLE:
                    self._keep(None)

    def _after(self, way: Way, gain: float) -> None:
        """Offer what is learned, once it is known how fast PyTorch runs graphs in channels last."""
        if way.plainly:
            if self._ordered:
                return
            self._ordered = True
            last, given = Way(MemoryFormat.CHANNELS_LAST), Way(MemoryFormat.AS_GIVEN)
            self._later = [last, given] if gain > _FIRST else [given, last] if gain > _HOPELESS else [given]
        self._offer_next()

    def _is_out(self, way: Way) -> bool:
        """Whether the graphs never run in this way again, unless they are offered anew."""
        return self.tournament.entrants[way].status is Status.OUT

    def _lost_by(self, way: Way) -> None:
        """Have graphs that are not faster learn on where they can, or else those in the other layout."""
        if way.plainly:
            return
        self._lost.add(way)
        if self._graphs.outlook.place is None:
            self._offer_next()
        else:
            self._staged(way)


def _way(key: to.Key) -> Way | None:
    return key if isinstance(key, Way) else None
