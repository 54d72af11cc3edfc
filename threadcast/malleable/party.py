"""What the ledger knows of a process that shares the machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from threadcast.malleable.activity import ActivityState
from threadcast.malleable.division import Claim
from threadcast.malleable.placement import CoreIds
from threadcast.malleable.steady_cores import SteadyCores
from threadcast.malleable.step_rates import StepRates

MANY = 1024
"""So many times the cores that its threads can use make a process no faster: it gets them where nobody gains by them.
"""


@dataclass(slots=True)
class Party:
    """A process: its claim, its rates, the cores that it is to get, and those that it may be using. Cores are ids."""

    claim: Claim
    confirmed: frozenset[int] = frozenset()
    """The cores that it uses, as last confirmed."""
    rates: StepRates = field(default_factory=StepRates)
    target: CoreIds = ()
    """The cores that it is to have once all processes have obeyed their orders."""
    pending: dict[int, CoreIds] = field(default_factory=dict)
    """Cores of the orders that it has not confirmed, by number of the order, in the order in which they were sent."""
    last_order: CoreIds = ()
    """The cores of the last order that was sent to it."""
    own_count: int = 0
    """Its number of cores when last no process lent any."""
    activity: ActivityState = "new"
    lends: bool = False
    """Whether others may use its cores, because it waits while another process computes. It is sent no orders then."""
    steps: float | None = None
    """Its step counter, as last reported; None before that."""
    disputed: bool = False
    """Whether it joined with cores that another process uses, so that it must be ordered off these."""
    allowed: frozenset[int] | None = None
    """The only cores that it may use; None: all."""
    demand: SteadyCores = field(default_factory=SteadyCores)
    """How many cores its threads can use at a time, as they run or wait for a CPU; 0 until it is known."""

    @property
    def granted(self) -> frozenset[int]:
        """The cores that it may be using now: the confirmed ones, and those of orders that it has not confirmed."""
        return self.confirmed.union(*self.pending.values())

    def known_rates(self) -> Mapping[int, float]:
        """Return steps a second by number of cores: measured rates, and expected rates where none is measured.

        Expected rates are scaled to fit the measured ones, because only their ratios count: at numbers of cores that
        have both, or else between them. Without either, cores beyond those that its threads can use count for nothing.
        """
        measured, expected = self.rates.by_cores, {n: rate for n, rate in self.claim.progress.items() if rate > 0}
        if not (measured or expected) and (threads := self.demand.cores):
            best = self.claim.rate(threads)
            return {n: self.claim.rate(n) / best for n in range(1, threads + 1)} | {MANY * threads: 1.0}
        if not (measured and expected):
            return expected or measured
        ratios = [rate / expected[cores] for cores, rate in measured.items() if cores in expected]
        ratios = ratios or [rate / self.claim.rate(cores) for cores, rate in measured.items()]
        scale = sum(ratios) / len(ratios)
        return {cores: scale * rate for cores, rate in expected.items()} | measured

    @property
    def most(self) -> int | None:
        """The most cores that it can use: its claim's, and no more than it may use. None: all of the machine."""
        if not self.allowed:
            return self.claim.most
        return min(self.claim.most or len(self.allowed), len(self.allowed))

    @property
    def known_claim(self) -> Claim:
        """Its claim, on no more cores than it may use, with the rates known so far."""
        least, most = self.claim.least, self.most
        return replace(self.claim, least=min(least, most or least), most=most, progress=self.known_rates())
