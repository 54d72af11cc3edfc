"""What the ledger knows of one process that shares the machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from threadcast.malleable.activity import ActivityState
from threadcast.malleable.deadline import Deadline
from threadcast.malleable.division import Claim
from threadcast.malleable.placement import CoreIds
from threadcast.malleable.step_rates import StepRates


@dataclass(slots=True)
class Party:
    """One process: its claim, how fast it is, the cores that it is meant to have, and those that it may be using."""

    claim: Claim
    confirmed: frozenset[int] = frozenset()
    """The cores that it last said it uses."""
    rates: StepRates = field(default_factory=StepRates)
    target: CoreIds = ()
    """The cores that it is meant to have once all have obeyed."""
    pending: dict[int, CoreIds] = field(default_factory=dict)
    """Orders that it has not confirmed, by number, in the order in which they were sent."""
    last_order: CoreIds = ()
    """The cores of the last order that it was sent."""
    own_count: int = 0
    """How many cores it had when last nobody lent any."""
    activity: ActivityState = "new"
    lends: bool = False
    """Whether others may use its cores: it waits, and somebody computes. It is sent no orders meanwhile."""
    steps: float | None = None
    """Its step counter, as last reported."""
    disputed: bool = False
    """Whether it came with cores that another uses, and has to be told that they are not its own."""
    allowed: frozenset[int] | None = None
    """The only cores that it may use; None: all."""
    deadline: Deadline | None = None
    on_time: bool | None = None
    """Whether it meets its deadline with `target`; None without a deadline, and before that is known."""

    @property
    def granted(self) -> frozenset[int]:
        """The cores that it may be using at this moment: those confirmed, and those of orders on their way."""
        return self.confirmed.union(*self.pending.values())

    def known_rates(self) -> Mapping[int, float]:
        """Steps a second by number of cores: measured ones, and expected ones where there are no others.

        Expected rates are scaled to the measured ones, because only their ratios count.
        """
        measured, expected = self.rates.by_cores, self.claim.progress
        ratios = [rate / expected[cores] for cores, rate in measured.items() if expected.get(cores)]
        if not ratios:
            return expected or measured
        scale = sum(ratios) / len(ratios)
        return {cores: scale * rate for cores, rate in expected.items()} | measured

    def claim_at(self, now_s: float) -> Claim:
        """Its claim with the rates that are known now, and with what its deadline needs."""
        needs_per_s = 0.0 if self.deadline is None else self.deadline.needs_per_s(self.steps, now_s)
        return replace(self.claim, progress=self.known_rates(), needs_per_s=needs_per_s)
