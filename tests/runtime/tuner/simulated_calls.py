"""Calls whose candidates take given seconds and are prepared in given parts, as a tournament decides."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from threadcast.runtime.tuner.budget import Budget
from threadcast.runtime.tuner.events import (
    Compared,
    Drop,
    Event,
    Instruction,
    Key,
    LeftOut,
    Next,
    Offered,
    Place,
    Prepare,
    Ran,
    Ready,
    Run,
    RunStage,
    Staged,
)
from threadcast.runtime.tuner.standings import Status
from threadcast.runtime.tuner.tournament import Tournament

DEFAULT = "default"


@dataclass(frozen=True)
class Part:
    """A part of a preparation: it is expected to cost calls `cost_s`, and takes `seconds` in each of `calls` calls."""

    place: Place
    cost_s: float = 0.0
    seconds: float = 0.0
    calls: int = 1


@dataclass
class Way:
    """A candidate: its calls take `seconds`, or `at_first` as long as it was not compared yet."""

    seconds: float
    parts: tuple[Part, ...] = ()
    at_first: float | None = None
    fails: bool = False
    """Whether its preparation fails in the end."""


def plan(
    seconds: float, *, look_s: float | None = None, looks: int = 6, at_first: float | None = None, fails: bool = False
) -> Way:
    """A candidate that is prepared as plans are: looks in calls, a plan made beside calls, a trial in calls."""
    look_s = seconds if look_s is None else look_s
    parts = (
        Part(Place.BETWEEN, 0.01, 0.01), Part(Place.CALL, 0.5 * looks * look_s, look_s, looks),
        Part(Place.BETWEEN), Part(Place.BESIDE, calls=3), Part(Place.CALL, 0.0, seconds, 4),
    )  # fmt: skip
    return Way(seconds, parts, at_first, fails)


class Calls:
    """A caller whose calls run as a tournament says, and what comes of it.

    With `anew` what was made earlier and is dropped is offered once more, as prepared here.
    """

    def __init__(
        self, ways: dict[Key, Way], *, budget: Budget | None = None, default_s: float = 1.0, offer: bool = True,
        anew: bool = False,
    ) -> None:  # fmt: skip
        self.ways = {DEFAULT: Way(default_s), **ways}
        self.budget = Budget() if budget is None else budget
        self.tournament = Tournament(DEFAULT)
        self.now_s = 0.0
        self.ran: list[Key] = []
        """What ran each call, whole or as a part of its preparation."""
        self.done: list[Instruction] = []
        """All instructions but those that run or prepare something."""
        self.spent_s = self.eager_s = 0.0
        """What all calls took, and would have taken by the default."""
        self.worst_s, self.last_s = 0.0, 0.0
        """By how much they were ever behind what is promised, and seconds of the last call."""
        self._parts: dict[Key, list[Part]] = {}
        self._left: dict[Key, int] = {}
        """Calls that the part of a preparation still takes, where it has begun."""
        self._anew = anew
        if offer:
            for key in ways:
                self.offer(key)

    @property
    def best(self) -> Key:
        return self.tournament.best

    @property
    def found(self) -> list[Instruction]:
        """The last instruction, if any."""
        return self.done[-1:]

    def offer(self, key: Key, *, ready: bool | None = None, **options: float | bool) -> None:
        way = self.ways[key]
        self._parts[key] = [] if ready else list(way.parts)
        cost_s = options.pop("cost_s", sum(part.cost_s for part in way.parts[:2]))
        self.handle(Offered(key, ready=not way.parts if ready is None else ready, cost_s=cost_s, **options))  # type: ignore[arg-type]

    def handle(self, event: Event) -> None:
        for instruction in self._handled(event):
            self._carry_out(instruction)

    def call(self, count: int = 1, *, disturbed: bool = False, all_cores: bool = True, alone: bool = True) -> None:
        for _ in range(count):
            self._call(disturbed=disturbed, all_cores=all_cores, alone=alone)

    def until(self, wanted: Callable[[], object], *, most: int = 20_000) -> None:
        for _ in range(most):
            if wanted():
                return
            self.call()
        raise AssertionError(f"not after {most} calls:\n{self.tournament.story()}")

    def settle(self) -> None:
        """Call until nothing is left to find out."""
        self.until(lambda: self.tournament.settled and self.tournament.idle and self.tournament.confirmed)

    def compared(self, key: Key) -> int:
        """How often a candidate was compared."""
        return sum(isinstance(one, Compared) and key == one.key for one in self.done)

    def _call(self, *, disturbed: bool, all_cores: bool, alone: bool) -> None:
        began_s = self.now_s
        self._look()
        while True:
            *before, what = self._handled(Next(self.budget.left_s, disturbed))
            for instruction in before:
                self._carry_out(instruction)
            if not isinstance(what, Prepare):
                break
            self._prepare(what.key)
        assert isinstance(what, Run | RunStage)
        assert self.tournament.standings[what.key].status is not Status.OUT
        started_s, seconds = self.now_s, self._seconds(what)
        self.now_s += seconds
        self.ran.append(what.key)
        ran = Ran(started_s, seconds, self.now_s - began_s, all_cores, alone)
        eager_s = self.tournament.eager_of(ran, what)
        self.budget.ran(ran.call_s, eager_s=seconds if eager_s is None else eager_s)
        self.last_s, self.spent_s = ran.call_s, self.spent_s + ran.call_s
        self.eager_s += self.ways[DEFAULT].seconds
        self.worst_s = max(self.worst_s, self.spent_s - (1 + self.budget.share) * self.eager_s - self.budget.start_s)
        self.handle(ran)
        if isinstance(what, RunStage):
            self._left[what.key] -= 1
            self._report(what.key)

    def _handled(self, event: Event) -> tuple[Instruction, ...]:
        found = self.tournament.handle(event)
        self.tournament.validate()
        return found

    def _carry_out(self, instruction: Instruction) -> None:
        self.done.append(instruction)
        if isinstance(instruction, Drop):
            self._parts[instruction.key] = []
            self._left.pop(instruction.key, None)
            if instruction.earlier and self._anew:
                self.offer(instruction.key, ready=False)

    def _seconds(self, what: Run | RunStage) -> float:
        way = self.ways[what.key]
        if isinstance(what, RunStage):
            part = self._parts[what.key][0]
            if what.anew or what.key not in self._left:
                self._left[what.key] = part.calls
            return part.seconds
        first = way.at_first is not None and not self.compared(what.key)
        return way.at_first if first and way.at_first is not None else way.seconds

    def _look(self) -> None:
        """Go on with what works beside calls."""
        for key, parts in self._parts.items():
            if key in self._left and parts and parts[0].place is Place.BESIDE:
                self._left[key] -= 1
                if not self._left[key]:
                    self._report(key)

    def _prepare(self, key: Key) -> None:
        if self._parts[key] and self._parts[key][0].place is Place.BETWEEN:
            part = self._parts[key].pop(0)
            self.now_s += part.seconds
        self._report(key)

    def _report(self, key: Key) -> None:
        """Tell how far a preparation is."""
        parts = self._parts[key]
        if parts and key in self._left and self._left[key] <= 0:
            parts.pop(0)
            del self._left[key]
        if parts:
            part = parts[0]
            begun = part.place is Place.CALL and key in self._left
            if part.place is Place.BESIDE:
                self._left.setdefault(key, part.calls)
            self.handle(Staged(key, part.place, part.cost_s, begun=begun))
        elif self.ways[key].fails:
            self.handle(LeftOut(key, f"{key} cannot be made"))
        else:
            self.handle(Ready(key, self.ways[key].at_first or self.ways[key].seconds))


def as_backend(way: Way) -> Way:
    """The same candidate, made beside calls."""
    return replace(way, parts=(Part(Place.BETWEEN), Part(Place.BESIDE, 0.0, 0.0, 30)))
