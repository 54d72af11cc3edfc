"""Decides from the times of whole calls what runs a program: eager PyTorch, or its graphs.

What is decided by `Tournament` is carried out here; this uses no clock and no lock. `next_turn` says what runs the next
call, and `observe` takes note of how long it took.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from threadcast.runtime.compiled.graph_calls import GraphCalls
from threadcast.runtime.compiled.short_way import ShortWay
from threadcast.runtime.plans.plan_store import FasterGraphs
from threadcast.runtime.tuner import events as to
from threadcast.runtime.tuner.backends_beside import BackendsBeside
from threadcast.runtime.tuner.budget import BESIDE, Budget
from threadcast.runtime.tuner.events import Outlook, Place
from threadcast.runtime.tuner.guard import LITTLE, Verdict
from threadcast.runtime.tuner.rounds import Rounds
from threadcast.runtime.tuner.standings import Status
from threadcast.runtime.tuner.tournament import Tournament

AS_TRACED = "eager PyTorch"
"""The program as Dynamo has traced it, under PyTorch's own autograd: what runs while nothing faster is known."""
GRAPHS = "the graphs"
"""The program by its graphs below autograd."""

_ELSEWHERE = 10
"""Calls in a row with other sizes, after which calls of these sizes are counted. A convention."""
_SHORTENED = 4
"""Most calls that wait for the short way to graphs that have settled: one learns it, unless its arguments are special,
or its backward pass comes late. A convention."""
_LAST = 10
"""Last calls by graphs that learn, of which the fastest tells how long one takes. A convention."""
_LOOKS_S = 0.05
"""Seconds between two looks at what is at work beside the calls. A convention."""


class Turn(NamedTuple):
    """Whether the graphs run a call, and not eager PyTorch."""

    by_graphs: bool
    counts: bool = False
    """Whether `observe` is to be told how long it took."""
    compared: bool = False
    """Whether it is compared with others, so that the graphs learn nothing in it."""
    disturbed: bool = False
    """Whether a plan is being made beside it."""


class WholeCalls(Rounds):
    """Has whole calls of one program compared, as `CompiledCall` says. `told` is called with what happens.

    `run` runs the program by its graphs, the `parts`. `found` is what was found before for the same program, so that
    its graphs run from the first call on. `keep` is called with what is found now; with None where they are not faster.
    """

    def __init__(
        self, run: Callable[..., Any], parts: Sequence[GraphCalls], budget: Budget, *,
        told: Callable[[str], None] = lambda _: None,
        found: FasterGraphs | None = None, keep: Callable[[FasterGraphs | None], None] = lambda _: None,
    ) -> None:  # fmt: skip
        super().__init__(Tournament(AS_TRACED, told=told), budget)
        self._found, self._keep = found, keep
        self.verdict: Verdict | None = None
        """How the graphs compare with the program as traced, as far as that is known."""
        self._run, self._parts = run, parts
        self._offered = self._lost = False
        """Whether there was a call, and whether graphs that may learn on have lost a comparison."""
        self._backends = BackendsBeside(None)
        """Lets searches rest beside calls."""
        self._shortened = self._uncounted = self._elsewhere = 0
        """Calls that have waited for a shorter way to the graphs; calls since the last one that counts; calls in a row
        of other sizes."""
        self._took_s = deque[float](maxlen=_LAST)
        """Seconds of the last calls by graphs that are prepared now."""
        self._looked_s, self._trains = 0.0, False
        self._what: to.Run | to.RunStage = to.Run(AS_TRACED)
        self._sizes: tuple[int, ...] | None = None
        """The integers among the arguments of calls that count: calls of other sizes take other times."""

    @property
    def by_graphs(self) -> bool:
        """Whether the graphs are the fastest known way."""
        return self.tournament.best == GRAPHS

    @property
    def rests(self) -> bool:
        """Whether the fastest way runs, and nothing is being learned."""
        known = self.tournament
        if not (known.settled and known.confirmed and known.idle):
            return False
        return not self.by_graphs or self.outlook.place is None

    def next_turn(self, sizes: tuple[int, ...], *, now_s: float, waiting: bool = False) -> Turn:
        """Return what runs the next call, at this time of a clock; `sizes` are the integers among its arguments.

        `waiting`: an earlier call is not over. Then, or if its sizes are others, it does not count.
        """
        if not self._offered:
            self._begin()
        if waiting or not self._are_counted(sizes):
            self._uncounted += 1
            stays = waiting or isinstance(self._what, to.RunStage)
            by_graphs = self._what.key == GRAPHS if stays else self.by_graphs
            return Turn(by_graphs, compared=self.tournament.comparison is not None)
        self._look(now_s)
        self._trains = torch.is_grad_enabled()
        self._what = what = self.next()
        compared = self.tournament.comparison is not None
        self._backends.before_step(rests=compared or not self.budget.unlimited)
        return Turn(what.key == GRAPHS, True, compared, self.disturbed)

    @property
    def disturbed(self) -> bool:
        """Whether a plan is being made on one of the graphs' cores, beside which calls tell little of their speed."""
        return any(part.disturbed for part in self._parts)

    @property
    def outlook(self) -> Outlook:
        """What the graphs learn next."""
        return Outlook.of(part.outlook for part in self._parts)

    @property
    def _have_settled(self) -> bool:
        """Whether it is known of each what runs it, and how fast, though something may not have been tried yet."""
        reports = [report for part in self._parts for report in part.reports]
        known = bool(reports) and not any(report.measuring for report in reports)
        return known and all(part.outlook.place is not None or not part.learning for part in self._parts)

    def prepare(self, key: to.Key) -> None:
        """Have the graphs run calls, in which they learn."""
        self._shortened = 0
        self._took_s.clear()
        self.tell(to.Staged(key, Place.CALL))

    def observe(self, *, started_s: float, seconds: float) -> None:
        """Take note of the seconds of the call that counts, and when it started by the caller's clock."""
        what = self._what
        beside = self._backends.beside or self.disturbed or self.outlook.place is Place.BESIDE
        event = to.Ran(started_s, seconds, seconds, alone=not beside)
        eager_s = self.tournament.eager_of(event, what)
        if eager_s is not None and what.key == AS_TRACED:  # whatever else takes the cores is not due to learning
            eager_s = max(eager_s, seconds / BESIDE)
        calls, self._uncounted = 1 + self._uncounted, 0
        self.budget.ran(calls * seconds, eager_s=calls * (seconds if eager_s is None else eager_s))
        self.tell(event)
        self.do()
        if isinstance(what, to.RunStage):
            self._took_s.append(seconds)
            self._staged()
            self.do()

    def _begin(self) -> None:
        self._offered = True
        if self._found is not None:
            self.tell(to.Resumed(GRAPHS, *self._found))
        else:
            self._offer()

    def _offer(self) -> None:
        self.tell(to.Offered(GRAPHS, most=10.0, cost_s=0.0))

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
        one = self.tournament.standings.get(GRAPHS)
        if one is not None and one.stage is not None and one.stage.place is Place.BESIDE:
            for part in self._parts:
                part.look()
            self._staged()

    def _staged(self) -> None:
        """Tell how far the preparation of the graphs is, unless they run or have been dropped meanwhile."""
        if self._are_out or GRAPHS in (self.tournament.best, self.tournament.challenger):
            return
        outlook, best_s = self.outlook, self.tournament.best_s or 0.0
        took_s = min(self._took_s, default=best_s)
        faster_s = took_s if took_s < best_s else None
        learns = outlook.place is not None and (self.budget.unlimited or self._lost)
        if learns or not self._have_settled:
            cost_s = 0.0  # they gain already, whether or not there is time for what they would learn next
            if faster_s is None:
                cost_s = outlook.cost_s + max(0.0, took_s - best_s)
            self.tell(to.Staged(GRAPHS, outlook.place or Place.CALL, cost_s))
        elif self._trains and self._shortened < _SHORTENED and isinstance(self._run, ShortWay) and self._run.learns():
            self._shortened += 1
            self.tell(to.Staged(GRAPHS, Place.CALL))
        else:
            self.tell(to.Ready(GRAPHS, faster_s))

    def carry_out(self, instruction: to.Instruction) -> None:
        """Take note of verdicts, have graphs that lost learn on, and keep what is the fastest for later processes."""
        match instruction:
            case to.Compared(_, verdict):
                self.verdict = verdict
                if not self._are_out and verdict.kept == "default":  # else `Drop` follows
                    self._lost = True
                    if self.outlook.place is not None:
                        self._staged()
            case to.Keep(key, step_s) if key == GRAPHS and (eager_s := self.tournament.eager_s) is not None:
                self._keep(FasterGraphs(step_s, eager_s))
            case to.Drop(earlier=True):
                self._offer()
            case to.Settle(key) if key == AS_TRACED and self.tournament.idle and not self.loud:
                if self.verdict is not None and self.verdict.high < LITTLE:
                    self._keep(None)

    @property
    def _are_out(self) -> bool:
        """Whether the graphs never run again, unless they are offered anew."""
        return self.tournament.standings[GRAPHS].status is Status.OUT
