"""Who has which cores, who is to get which, and in which order they change hands: no core is ever handed out twice."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import permutations
from typing import NamedTuple

from threadcast.core import Machine
from threadcast.malleable.activity import State
from threadcast.malleable.deadline import Deadline
from threadcast.malleable.division import Claim, divide, floors, in_time
from threadcast.malleable.placement import CoreIds, place
from threadcast.malleable.progress import Progress

REST_S = 2.0
"""Between two trials, and after processes have come or gone."""
NEAR = 1.15
"""Ratio of two numbers of cores up to which progress with one tells enough of the other."""
FEWER_FROM = 8
"""Cores of a process from which on it is tried whether fewer serve it better: on a few, more are hardly ever worse."""
_PARTS = (2, 4, 8)
TRIAL_S = 10.0
"""Longest trial: a process that makes no steps meanwhile tells nothing."""


@dataclass(slots=True)
class Party:
    """One process: its claim, its progress, the cores that it is to have, and those that it may still be using."""

    claim: Claim
    confirmed: frozenset[int] = frozenset()
    """What it last said that it uses."""
    progress: Progress = field(default_factory=Progress)
    target: CoreIds = ()
    """What it is to have in the end."""
    told: dict[int, CoreIds] = field(default_factory=dict)
    """Orders that it has not confirmed, by number, in the order in which they were sent."""
    last: CoreIds = ()
    """What it was told last."""
    own: int = 0
    """How many cores it had when last nobody lent any."""
    activity: State = "new"
    lends: bool = False
    """Whether others may use what it holds: it waits, and somebody computes. It is told nothing meanwhile."""
    steps: float | None = None
    """As last reported."""
    disputed: bool = False
    """Whether it came with cores that another has, and is to be told that it has them not."""
    may: frozenset[int] | None = None
    """The only cores that it may use; None: all."""
    deadline: Deadline | None = None
    on_time: bool | None = None
    """Whether it meets its deadline with what it is to have; None without one, and before that is known."""

    @property
    def holds(self) -> frozenset[int]:
        """What it may be using."""
        return self.confirmed.union(*self.told.values())


class Order(NamedTuple):
    """A process is to use these cores and no others, and to say so with the number."""

    number: int
    cores: CoreIds


class Ledger:
    """The cores of `machine` and the processes that share them.

    Tell it what happens (`join`, `leave`, `report`, `confirmed`, `active`) and now and then the time (`explore`), then
    send everybody in `orders` the cores that it names. A core goes to another process only once the one that had it
    said that it has let go, or has left. Cores of a process that `lends` are others' as well until it works again: it
    is told nothing of that, so that it can go on at once, and whoever has them is told to let go. Of processes that
    report steps it learns by trials what a core more or fewer would make of them.
    """

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.parties: dict[str, Party] = {}
        self._orders = 0
        self._rests_until_s = 0.0
        self._trial: dict[str, int] | None = None
        self._trial_until_s = 0.0
        self._looks_at_s = 0.0
        self._floors: Mapping[str, int] = {}

    def join(
        self, name: str, claim: Claim, holds: Iterable[int], now_s: float, *, may: frozenset[int] | None = None
    ) -> None:
        """A process comes, with the cores that it is using already: those that an arbiter before this one gave it.

        It `may` use these cores only; None: all.
        """
        claimed = frozenset(holds) & {core.id for core in self.machine.cores}
        taken = frozenset[int]().union(*(party.holds for party in self.parties.values()))
        self.parties[name] = Party(claim, claimed - taken, disputed=bool(claimed & taken), may=may)
        self._changed(now_s)

    def active(self, name: str, activity: State, now_s: float) -> None:
        """Whether a process computes or waits."""
        party = self.parties[name]
        before, party.activity = party.activity, activity
        if before == "waits" and activity != "waits":
            party.progress.restart(now_s)
        computing = any(one.activity == "computes" for one in self.parties.values())
        changed = [one for one in self.parties.values() if one.lends != (computing and one.activity == "waits")]
        for one in changed:
            one.lends = not one.lends
        if changed:
            back = [name for name, one in self.parties.items() if one in changed and not one.lends]
            self._changed(now_s, back)

    def leave(self, name: str, now_s: float) -> None:
        """A process has gone."""
        if self.parties.pop(name, None):
            self._changed(now_s)

    def report(self, name: str, steps: float, now_s: float) -> None:
        """A process says how many steps it has made since it began."""
        party = self.parties[name]
        party.progress.report(steps, now_s)
        party.steps = steps
        if party.deadline is not None:
            party.deadline = party.deadline.after(steps)

    def promise(self, name: str, deadline: Deadline | None, now_s: float) -> None:
        """A process wants to be done in time, or no longer does."""
        party = self.parties[name]
        party.deadline = deadline if deadline is None or party.steps is None else deadline.after(party.steps)
        self._changed(now_s)

    def bound(self, name: str, least: int, most: int, now_s: float, *, may: frozenset[int] | None = None) -> None:
        """A process can use other numbers of cores than it said, or others; InvalidInput for what cannot be."""
        party = self.parties[name]
        party.claim, party.may = replace(party.claim, least=least, most=most), may
        self._changed(now_s)

    def expect(self, name: str, progress: Mapping[int, float], now_s: float) -> None:
        """A process says how it will get on with each number of cores; InvalidInput for what cannot be."""
        party = self.parties[name]
        party.claim = replace(party.claim, progress=dict(progress))
        self._changed(now_s)

    def confirmed(self, name: str, number: int, holds: Iterable[int]) -> None:
        """A process says that since the order of this number it has used these cores and no others.

        Orders that it was sent later may give it more; what it holds without having been told is not believed.
        """
        party = self.parties[name]
        if number in party.told:
            party.confirmed = party.holds & frozenset(holds)
            party.told = {later: cores for later, cores in party.told.items() if later > number}

    def orders(self) -> dict[str, Order]:
        """What processes are to be told, of those for which that is something new; it counts as sent."""
        found: dict[str, Order] = {}
        present = self._present()
        shared = len(present) > len(self.machine)
        for name, party in present.items():
            target = frozenset(party.target)
            if not target <= party.holds:
                others = frozenset[int]().union(*(p.holds for n, p in present.items() if n != name))
                now = target if shared else (target & party.holds) | (target - others)
            else:
                now = target
            cores = tuple(sorted(now))
            if cores and cores != party.last and (party.last or party.disputed or now != party.holds):
                self._orders, party.disputed = self._orders + 1, False
                found[name] = Order(self._orders, cores)
                party.told[self._orders] = party.last = cores
        return found

    def explore(self, now_s: float) -> None:
        """Begin a trial, in which one process has cores of another's, or decide by what the last one told."""
        if self._trial is not None:
            told = all(self.parties[name].progress.rates.get(count) for name, count in self._trial.items())
            if told or now_s > self._trial_until_s:
                self._trial, self._rests_until_s = None, now_s + REST_S
                self._divide(now_s)
        elif now_s >= self._looks_at_s and any(party.deadline for party in self.parties.values()):
            self._looks_at_s = now_s + REST_S
            self._divide(now_s)  # time goes by
        elif now_s >= self._rests_until_s and (trial := self._next_trial()) is not None:
            self._trial, self._trial_until_s = trial, now_s + TRIAL_S
            self._place(trial, now_s)

    def _next_trial(self) -> dict[str, int] | None:
        """A division near the present one of which a process's progress is not known: far ones first, then near ones.

        A process that is alone on many cores may be better off with fewer.
        """
        counts = {name: len(party.target) for name, party in self._present().items()}
        if sum(counts.values()) > len(self.machine):
            return None
        for part in _PARTS:
            for giver, taker in permutations(counts, 2):
                moved = max(1, min(counts[giver], counts[taker]) // part)
                trial = counts | {giver: counts[giver] - moved, taker: counts[taker] + moved}
                if self._tells(trial, counts, (giver, taker)):
                    return trial
            for name, count in counts.items():
                trial = counts | {name: count - count // part}
                if count >= FEWER_FROM and self._tells(trial, counts, (name,)):
                    return trial
        return None

    def _tells(self, trial: Mapping[str, int], counts: Mapping[str, int], changed: Iterable[str]) -> bool:
        """Whether something is learnt by a trial in which the cores of these processes change."""
        news = False
        for name in changed:
            party = self.parties[name]
            if not party.progress.rates.get(counts[name]):
                return False  # not measured yet with what it has
            if not self._floors[name] <= trial[name] <= (party.claim.most or len(self.machine)):
                return False
            news |= not any(known / NEAR <= trial[name] <= known * NEAR for known in _known(party))
        return news

    def _present(self) -> dict[str, Party]:
        """The processes among which the cores are divided."""
        return {name: party for name, party in self.parties.items() if not party.lends}

    def _changed(self, now_s: float, back: Iterable[str] = ()) -> None:
        self._trial, self._rests_until_s = None, now_s + REST_S
        self._divide(now_s, back)

    def _divide(self, now_s: float, back: Iterable[str] = ()) -> None:
        """Divide anew; those that come `back` have what they lent before anybody else."""
        present = {name: self.parties[name] for name in back} | self._present()
        if not present:
            return
        claims = {name: _claim(party, now_s) for name, party in present.items()}
        before = {name: len(party.target or party.holds) for name, party in present.items()}
        if sum(before.values()) > len(self.machine):
            before = {name: party.own for name, party in present.items()}
        counts = divide(claims, len(self.machine), before)
        self._floors = floors(claims, len(self.machine))
        self._place(counts, now_s)
        known = in_time(claims, counts)
        for name, party in present.items():
            party.own = counts[name] if len(present) == len(self.parties) else party.own
            if not claims[name].needs_per_s:
                party.on_time = None if party.deadline is None else True
            elif sum(counts.values()) > len(self.machine) or claims[name].needs_per_s == math.inf:
                party.on_time = False
            else:
                party.on_time = known.get(name)

    def _place(self, counts: Mapping[str, int], now_s: float) -> None:
        had = {name: self.parties[name].holds or self.parties[name].target for name in counts}
        may = {name: party.may for name, party in self.parties.items() if party.may is not None}
        for name, cores in place(counts, self.machine, had, may).items():
            party = self.parties[name]
            if cores != party.target:
                party.target = cores
                party.progress.resized(len(cores), now_s)


def _claim(party: Party, now_s: float) -> Claim:
    needs_per_s = 0.0 if party.deadline is None else party.deadline.needs_per_s(now_s)
    return replace(party.claim, progress=_known(party), needs_per_s=needs_per_s)


def _known(party: Party) -> Mapping[int, float]:
    """Steps a second by number of cores: as measured, and as expected where that is all there is."""
    rates, expected = party.progress.rates, party.claim.progress
    both = [rate / expected[cores] for cores, rate in rates.items() if expected.get(cores)]
    if not both:
        return expected or rates
    scale = sum(both) / len(both)
    return {cores: scale * rate for cores, rate in expected.items()} | rates
