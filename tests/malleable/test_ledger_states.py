"""Whatever processes do, in whatever order: the ledger keeps its promises after every event."""

from __future__ import annotations

from collections import Counter, deque

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, precondition, rule

from threadcast.core import Machine
from threadcast.malleable.division import Claim
from threadcast.malleable.ledger import Ledger, Order

CORES = 6
ALL = frozenset(range(CORES))


class Sharing(RuleBasedStateMachine):
    """Processes that come, go, wait, work, report, and obey their orders as late as they like."""

    joined = Bundle("joined")

    def __init__(self) -> None:
        super().__init__()
        self.ledger = Ledger(Machine.uniform("m", CORES, group_size=3))
        self.now_s, self.number, self.restricts = 0.0, 0, False
        self.used: dict[str, frozenset[int]] = {}
        """What each process really uses."""
        self.mail: dict[str, deque[Order]] = {}
        """Orders on their way."""
        self.shared: set[str] = set()
        """Processes that lent cores, or had to share them, and whose cores others may not have left yet."""

    def send(self) -> None:
        """Orders go out after every event, as the arbiter sends them."""
        parties = self.ledger.parties
        before = {name: party.granted for name, party in parties.items()}
        for name, order in self.ledger.orders().items():
            assert not parties[name].lends, "a process that lends is sent nothing"
            assert order.number > self.number, "numbers rise"
            assert order.cores == tuple(sorted(set(order.cores)))
            assert set(order.cores) <= ALL
            self.number = order.number
            self.mail[name].append(order)
            gained = set(order.cores) - before[name]
            others = [other for other in parties if other != name and not parties[other].lends]
            if len(self.present()) <= CORES and not self.restricts:
                assert not gained & frozenset[int]().union(*(before[other] for other in others))
        self.note_sharing()

    def note_sharing(self) -> None:
        parties = self.ledger.parties
        self.shared |= {name for name, party in parties.items() if party.lends}
        if len(self.present()) > CORES or len(parties) > CORES:
            self.shared |= set(parties)
        if not any(self.mail.values()) and not any(party.lends for party in parties.values()) and len(parties) <= CORES:
            granted = Counter(core for party in parties.values() for core in party.granted)
            if not granted or max(granted.values()) == 1:
                self.shared.clear()

    def present(self) -> list[str]:
        return [name for name, party in self.ledger.parties.items() if not party.lends]

    def event(self, passed_s: float = 0.1) -> float:
        self.now_s += passed_s
        return self.now_s

    @initialize(restricts=st.booleans())
    def begin(self, restricts: bool) -> None:
        """In half of the runs processes may be restricted to some cores; they may then have to share these."""
        self.restricts = restricts

    @rule(
        target=joined,
        weight=st.sampled_from([0.5, 1.0, 3.0]),
        least=st.integers(1, 2),
        allowed=st.none() | st.frozensets(st.integers(0, CORES - 1), min_size=1),
        in_use=st.frozensets(st.integers(0, CORES + 1), max_size=3),
    )
    @precondition(lambda self: len(self.used) < CORES + 2)
    def join(self, weight: float, least: int, allowed: frozenset[int] | None, in_use: frozenset[int]) -> str:
        allowed = allowed if self.restricts else None
        name = f"p{len(self.used)}.{self.event():.1f}"
        free = ALL - frozenset[int]().union(*(party.granted for party in self.ledger.parties.values()))
        self.ledger.join(name, Claim(weight, least), in_use, self.now_s, allowed=allowed)
        assert self.ledger.parties[name].granted == in_use & free, "what others have is not granted"
        self.used[name], self.mail[name] = in_use & free, deque()
        self.send()
        return name

    @rule(name=consumes(joined))
    def leave(self, name: str) -> None:
        self.ledger.leave(name, self.event())
        del self.used[name], self.mail[name]
        self.shared.discard(name)
        self.send()

    @rule(name=joined, lies=st.booleans())
    def obey(self, name: str, lies: bool) -> None:
        if self.mail[name]:
            order, party = self.mail[name].popleft(), self.ledger.parties[name]
            self.used[name] = frozenset(order.cores)
            before = party.granted
            self.ledger.confirm(name, order.number, {*order.cores, *(ALL - before if lies else ())})
            assert party.granted <= before
        self.send()

    @rule(name=joined, number=st.integers(0, 50), in_use=st.frozensets(st.integers(0, CORES - 1)))
    def claim_what_was_not_given(self, name: str, number: int, in_use: frozenset[int]) -> None:
        party = self.ledger.parties[name]
        if number not in party.pending:
            before = party.granted
            self.ledger.confirm(name, number, in_use)
            assert party.granted == before

    @rule(name=joined, activity=st.sampled_from(["new", "computes", "waits"]))
    def change_activity(self, name: str, activity: str) -> None:
        lent = {one for one, party in self.ledger.parties.items() if party.lends}
        self.ledger.set_activity(name, activity, self.event())  # type: ignore[arg-type]
        parties = self.ledger.parties
        somebody_computes = any(party.activity == "computes" for party in parties.values())
        for party in parties.values():
            assert party.lends == (somebody_computes and party.activity == "waits")
        self.shared |= lent
        self.send()

    @rule(
        name=joined, least=st.integers(1, 3), more=st.integers(0, 4),
        allowed=st.none() | st.frozensets(st.integers(0, CORES - 1), min_size=1),
    )  # fmt: skip
    def change_bounds(self, name: str, least: int, more: int, allowed: frozenset[int] | None) -> None:
        allowed = allowed if self.restricts else None
        self.ledger.set_bounds(name, least, least + more, self.event(), allowed=allowed)
        self.send()

    @rule(name=joined, rates=st.dictionaries(st.integers(1, CORES), st.floats(0.1, 100.0), max_size=4))
    def expect(self, name: str, rates: dict[int, float]) -> None:
        self.ledger.expect(name, rates, self.event())
        self.send()

    @rule(name=joined, steps=st.floats(0.0, 1e4))
    def report(self, name: str, steps: float) -> None:
        self.ledger.report(name, (self.ledger.parties[name].steps or 0.0) + steps, self.event(1.1))
        self.send()

    @rule(passed_s=st.sampled_from([0.1, 2.1, 11.0]))
    def time_passes(self, passed_s: float) -> None:
        self.ledger.explore(self.event(passed_s))
        self.send()

    @rule()
    def everybody_obeys(self) -> None:
        """Once all orders are obeyed, everybody has its target, and lent cores are their owners' again."""
        while any(self.mail.values()):
            for name in [name for name in self.mail if self.mail[name]]:
                self.obey(name, lies=False)
        present, parties = self.present(), self.ledger.parties
        for name in present:
            party = parties[name]
            assert self.used[name] == party.granted == set(party.target)
        if len(present) <= CORES and all(parties[name].allowed is None for name in present):
            used = [core for name in present for core in self.used[name]]
            assert len(used) == len(set(used)), "lent cores have come back"
            if present and all(parties[name].most is None and not parties[name].known_rates() for name in present):
                assert set(used) == ALL, "no core is lost"
        self.note_sharing()

    @invariant()
    def no_core_is_used_by_two(self) -> None:
        if self.restricts:
            return
        cores = Counter(core for name, cores in self.used.items() if name not in self.shared for core in cores)
        assert not cores or max(cores.values()) == 1, dict(self.used)

    @invariant()
    def everybody_is_meant_to_have_a_core(self) -> None:
        for name in self.present():
            party = self.ledger.parties[name]
            assert party.target
            assert set(party.target) <= (party.allowed or ALL)

    @invariant()
    def shares_sum_to_what_there_is(self) -> None:
        present = self.present()
        targets = [core for name in present for core in self.ledger.parties[name].target]
        assert set(targets) <= ALL
        if self.restricts:  # some may have to share a core, and others use what these leave
            return
        if len(present) >= CORES:
            assert all(len(self.ledger.parties[name].target) == 1 for name in present)
        else:
            assert len(targets) <= CORES

    @invariant()
    def nobody_uses_what_was_not_granted(self) -> None:
        for name, cores in self.used.items():
            assert cores <= self.ledger.parties[name].granted

    @invariant()
    def departures_free_everything(self) -> None:
        assert self.ledger.parties.keys() == self.used.keys()
        if not self.ledger.parties:
            assert self.ledger.orders() == {}

    def teardown(self) -> None:
        for name in list(self.used):
            self.ledger.leave(name, self.event())
        self.ledger.join("last", Claim(), (), self.event())
        (order,) = self.ledger.orders().values()
        assert order.cores == tuple(range(CORES)), "everything is free once all have gone"


TestSharing = Sharing.TestCase
TestSharing.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
