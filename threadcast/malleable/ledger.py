"""Keeps which process has which cores and which it is to get, and decides in what order cores change hands.

A core is granted to two processes only if there are more processes than cores, if one of the two lends it, if both may
use no other core, or for the moment in which they exchange their only cores.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

from threadcast.core import Machine
from threadcast.malleable.activity import ActivityState
from threadcast.malleable.division import Claim, divide, floors
from threadcast.malleable.party import Party
from threadcast.malleable.placement import CoreIds, place
from threadcast.malleable.steady_cores import SteadyCores
from threadcast.malleable.trials import next_trial

REST_S = 2.0
"""Seconds between two trials, and between a change of the processes and the next trial."""
TRIAL_S = 10.0
"""Longest trial in seconds: a process that makes no steps would never be measured."""


OTHERS = "others"
"""In place of a name, in divisions: processes that are not attached. They have one claim together, of the weight 1."""


class Order(NamedTuple):
    """An order to a process: use the cores with these ids and no others, then confirm the order by its number."""

    number: int
    cores: CoreIds


class Ledger:
    """Divides the cores of `machine` among the processes that share it. Has no clock, threads or sockets of its own.

    Report events (`join`, `leave`, `report`, `confirm`, `set_activity` and so on), and now and then call `explore` with
    the time. Then send the orders that `orders` returns. All times are in seconds of the caller's clock.

    A core goes to another process only once the process that had it has confirmed that it no longer uses the core, or
    has left; only where processes that can keep none of their cores wait for each other, one goes first.

    While a process `lends`, others may use its cores too. It is sent no order meanwhile, so that it can go on at once;
    as soon as it works again, the others are ordered off its cores. From the steps that processes report, the ledger
    learns by trials how fast they are with other numbers of cores.
    """

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.parties: dict[str, Party] = {}
        self._last_number = 0
        self._trial: dict[str, int] | None = None
        self._trial_until_s = 0.0
        self._rests_until_s = 0.0
        self._floors: Mapping[str, int] = {}
        self._outside = SteadyCores()
        self._pinned: CoreIds = ()
        self.left = 0
        """Number of cores that are left to processes that are not attached."""

    def join(
        self, name: str, claim: Claim, in_use: Iterable[int], now_s: float, *, allowed: frozenset[int] | None = None
    ) -> None:
        """Add a process. `allowed` are the ids of the only cores that it may use (None: all).

        `in_use` are the ids of cores that an earlier arbiter gave it; it keeps those that no other process uses.
        """
        claimed = frozenset(in_use) & {core.id for core in self.machine.cores}
        granted = frozenset[int]().union(*(party.granted for party in self.parties.values()))
        self.parties[name] = Party(claim, claimed - granted, disputed=bool(claimed & granted), allowed=allowed)
        self._changed(now_s)

    def leave(self, name: str, now_s: float) -> None:
        """Remove a process; its cores are free."""
        if self.parties.pop(name, None):
            self._changed(now_s)

    def set_activity(self, name: str, activity: ActivityState, now_s: float) -> None:
        """Record whether a process computes or waits. A process that waits lends its cores while another computes."""
        party = self.parties[name]
        before, party.activity = party.activity, activity
        if before == "waits" and activity != "waits":
            party.rates.restart(now_s)
        somebody_computes = any(one.activity == "computes" for one in self.parties.values())
        returning, changed = [], False
        for other, one in self.parties.items():
            lends = somebody_computes and one.activity == "waits"
            if one.lends != lends:
                one.lends, changed = lends, True
                returning += [] if lends else [other]
        if changed:
            self._changed(now_s, returning)

    def report(self, name: str, steps: float, now_s: float) -> None:
        """Record a process's step counter: the steps that it has made since it began."""
        party = self.parties[name]
        party.rates.report(steps, now_s)
        party.steps = steps

    def set_demand(self, name: str, threads: float, now_s: float) -> None:
        """Record how many threads of a process run or wait for a CPU; it counts where its steps are not known.

        The process's threads must not depend on how many cores it has: else it would keep to the number that it has.
        """
        party = self.parties[name]
        before = party.known_rates()
        party.demand.observe(threads, now_s)
        if party.known_rates() != before:
            self._changed(now_s)

    def leave_to_others(self, used: float, now_s: float, pinned: Callable[[], CoreIds] = tuple) -> None:
        """Record how many cores are used by processes that are not attached: they get these as one more process would.

        But no attached process gets fewer than its least for their sake, and each has a core of its own. `pinned`
        returns the cores to which they are pinned, which are left to them first.
        """
        before = self._outside.cores
        if self._outside.observe(used, now_s) != before:
            self._pinned = pinned() if self._outside.cores else ()
            self._changed(now_s)

    def set_bounds(
        self, name: str, least: int, most: int | None, now_s: float, *, allowed: frozenset[int] | None = None
    ) -> None:
        """Record how many cores a process can use, and which (None: all); InvalidInput as of `Claim`."""
        party = self.parties[name]
        party.claim, party.allowed = replace(party.claim, least=least, most=most), allowed
        self._changed(now_s)

    def expect(self, name: str, rates: Mapping[int, float], now_s: float) -> None:
        """Record the steps a second that a process expects, by number of cores; InvalidInput as of `Claim`."""
        party = self.parties[name]
        party.claim = replace(party.claim, progress=dict(rates))
        self._changed(now_s)

    def confirm(self, name: str, number: int, in_use: Iterable[int]) -> None:
        """Record that a process has obeyed the order with this number: it uses the cores `in_use` and no others.

        Later orders may already grant it more. Cores among `in_use` that it was never granted are ignored.
        """
        party = self.parties[name]
        if number in party.pending:
            party.confirmed = party.granted & frozenset(in_use)
            party.pending = {later: cores for later, cores in party.pending.items() if later > number}

    def orders(self) -> dict[str, Order]:
        """Return the orders to be sent now, by process. They count as sent."""
        found: dict[str, Order] = {}
        present = self._present()
        shared = len(present) > len(self.machine)
        for name, party in present.items():
            target = frozenset(party.target)
            if not target <= party.granted:
                # Cores that are in two targets are shared: these processes are allowed no others.
                others = frozenset[int]().union(
                    *(p.granted - target.intersection(p.target) for n, p in present.items() if n != name)
                )
                now = target if shared else (target & party.granted) | (target - others)
            else:
                now = target
            found |= self._order(name, now)
        if not found and not any(party.pending for party in present.values()):
            # Processes that can keep none of their cores wait for each other: one goes first, to where another is.
            waiting = [name for name, party in present.items() if party.granted.isdisjoint(party.target)]
            for name in sorted(waiting, key=lambda name: not present[name].granted):
                if found := self._order(name, frozenset(present[name].target)):
                    break
        return found

    def _order(self, name: str, use: frozenset[int]) -> dict[str, Order]:
        """The order to use these cores; empty where there are none, or where the process knows or uses them already."""
        party, cores = self.parties[name], tuple(sorted(use))
        is_news = cores != party.last_order and (party.last_order or party.disputed or use != party.granted)
        if not (cores and is_news):
            return {}
        self._last_number, party.disputed = self._last_number + 1, False
        party.pending[self._last_number] = party.last_order = cores
        return {name: Order(self._last_number, cores)}

    def explore(self, now_s: float) -> None:
        """Begin a trial, or end one whose rates are all measured. Call this regularly."""
        if self._trial is not None:
            measured = all(self.parties[name].rates.by_cores.get(count) for name, count in self._trial.items())
            if measured or now_s > self._trial_until_s:
                self._changed(now_s)
        elif now_s >= self._rests_until_s:
            self._trial = next_trial(self._present(), self._floors, len(self.machine), self._fits)
            if self._trial is not None:
                self._trial_until_s = now_s + TRIAL_S
                self._aim(self._placed(self._trial), now_s)

    def _present(self) -> dict[str, Party]:
        """The processes among which the cores are divided: all that do not lend theirs."""
        return {name: party for name, party in self.parties.items() if not party.lends}

    def _changed(self, now_s: float, returning: Iterable[str] = ()) -> None:
        self._trial, self._rests_until_s = None, now_s + REST_S
        self._divide(now_s, returning)

    def _divide(self, now_s: float, returning: Iterable[str] = ()) -> None:
        """Set all targets anew. Processes that are `returning` get back the cores that they lent, before all others."""
        present = {name: self.parties[name] for name in returning} | self._present()
        if not present:
            return
        claims = {name: party.known_claim for name, party in present.items()}
        before = {name: len(party.target or party.granted) for name, party in present.items()}
        if sum(before.values()) > len(self.machine):
            before = {name: party.own_count for name, party in present.items()}
        counts = self._divided(claims, before)
        self._floors = floors(claims, len(self.machine))
        self._aim(self._with_lost_cores(self._placed(counts), claims, sum(counts.values())), now_s)
        if len(present) == len(self.parties):
            for name, party in present.items():
                party.own_count = counts[name]

    def _divided(self, claims: Mapping[str, Claim], before: Mapping[str, int]) -> dict[str, int]:
        """How many cores each process gets, of those that are not left to others."""
        cores, outside = len(self.machine), self._outside.cores
        least = sum(min(claim.least, cores) for claim in claims.values())
        if not outside or least >= cores or len(claims) >= cores:
            self.left = 0
        else:
            every = {**claims, OTHERS: Claim(most=outside)}
            self.left = divide(every, cores, {**before, OTHERS: self.left})[OTHERS]
        return divide(claims, cores - self.left, before)  # whose worth is compared without that of others

    def _fits(self, counts: Mapping[str, int]) -> bool:
        return all(len(cores) == counts[name] for name, cores in self._placed(counts).items())

    def _placed(self, counts: Mapping[str, int]) -> dict[str, CoreIds]:
        before = {name: self.parties[name].granted or self.parties[name].target for name in counts}
        allowed = {name: party.allowed for name, party in self.parties.items() if party.allowed is not None}
        free = frozenset(core.id for core in self.machine.cores).difference(self._pinned[: self.left])
        if self.left and self._pinned and sum(counts.values()) <= len(free):
            allowed = {name: allowed.get(name, free) & free or allowed[name] for name in counts}
        return place(counts, self.machine, before, allowed)

    def _with_lost_cores(
        self, placed: Mapping[str, CoreIds], claims: Mapping[str, Claim], count: int
    ) -> dict[str, CoreIds]:
        """Give away cores until `count` are in use: to a process that shares its only core, which moves there, or else
        to the one whose progress another core raises most.

        Some are left where processes get fewer cores than were divided, or share one, because of those that they may
        use, or that they had before.
        """
        found, ids = dict(placed), {core.id for core in self.machine.cores}
        for core in sorted(ids.difference(*placed.values())):
            if len(frozenset().union(*found.values())) >= min(count, len(ids)):
                break
            mine = [name for name in found if core in (self.parties[name].allowed or ids)]
            crowded = [name for name in mine if len(found[name]) == 1 and _is_shared(found[name][0], found)]
            if crowded:
                found[crowded[-1]] = (core,)
                continue
            gains = {
                name: claims[name].worth(len(ids))[len(cores) + 1] - claims[name].worth(len(ids))[len(cores)]
                for name, cores in ((name, found[name]) for name in mine)
                if len(cores) < (claims[name].most or len(ids))
            }
            best = max(gains, key=lambda name: gains[name], default=None)
            if best is not None and gains[best] > 0:
                found[best] = tuple(sorted((*found[best], core)))
        return found

    def _aim(self, targets: Mapping[str, CoreIds], now_s: float) -> None:
        for name, cores in targets.items():
            party = self.parties[name]
            if cores != party.target:
                party.target = cores
                party.rates.resized(len(cores), now_s)


def _is_shared(core: int, placed: Mapping[str, CoreIds]) -> bool:
    """Whether several processes have this core."""
    return sum(core in cores for cores in placed.values()) > 1
