"""The measurements of an op in one case: raw samples are stored, medians are computed from them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from threadcast.core.case import Case
from threadcast.core.errors import InvalidInput
from threadcast.core.machine import Machine
from threadcast.core.op import Op

SHORTEST_S, LONGEST_S = 1e-12, 1e9
"""Seconds that an op can take: from less than a clock cycle to thirty years. Times outside come from a broken clock or
a wrong unit, and would overflow in squares and exponentials."""

OTHERS_SHARE = "others_share"
"""Condition: the share, 0 to 1, of the CPUs' time that other processes used while the samples were taken."""

DISTURBED = 0.1
"""Largest share of the CPUs' time that others may use. One busy core in ten already moves medians by more than the 2 %
that timing asks for, since a team waits for its slowest thread."""

TIMED = "runs_a_batch"
"""Condition that each measurement has which threadcast's own clock timed: how many runs each sample is the mean of."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One timed batch: seconds per run and counts per run; a counter that could not be read is None, never 0."""

    seconds: float
    counters: Mapping[str, float | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not math.isfinite(self.seconds) or self.seconds < 0:
            raise InvalidInput(f"seconds={self.seconds!r}: a sample must be finite and at least 0")
        for name, value in self.counters.items():
            if value is not None and (not math.isfinite(value) or value < 0):
                raise InvalidInput(f"counter {name}={value!r} must be None or finite and at least 0")
        object.__setattr__(self, "counters", MappingProxyType(dict(self.counters)))

    def __reduce__(self) -> tuple[Any, ...]:
        return (Sample, (self.seconds, dict(self.counters)))


@dataclass(frozen=True, slots=True)
class Doubt:
    """How far what a measurement says may be from what holds now, in logarithms of seconds, each at least 0.

    Now the time may be shorter by the factor exp(low) and longer by exp(high). `stale`: the machine has changed since
    the samples were taken, or they were taken with caches in another state than in other cases of the op, and they were
    multiplied by what that seems to change (`store.holding`). `shift` is that change, or the one after which the
    samples were taken, in logarithms of seconds.
    """

    low: float
    high: float
    stale: bool
    shift: float = 0.0


@dataclass(frozen=True, slots=True)
class Measurement:
    """The samples of one op in one case on one machine, in the order in which they were timed, without warm-up.

    InvalidInput where there are none, or the machine lacks the case.

    `conditions` are JSON scalars that say how it was measured: "cache" ("rotated", "warm" or "cold"), "converged"
    (whether the required confidence was reached), "torch", "time" (ISO 8601) and whatever else the collector knew.
    `doubt` is None in everything that was measured and stored; what holds now of it may have some (`store.holding`).
    """

    op: Op
    machine: Machine
    case: Case
    samples: tuple[Sample, ...]
    conditions: Mapping[str, Any] = field(default_factory=dict)
    doubt: Doubt | None = None
    number: int = field(default=0, repr=False, compare=False)
    """The number under which a store holds it, which grows with every measurement stored; 0 outside of stores."""
    stored_s: float | None = field(default=None, repr=False, compare=False)
    """When a store took it first, in seconds since 1970; None where no store or file says so."""
    _median_s: float | None = field(init=False, default=None, repr=False, compare=False)
    """What `seconds` returned; None before its first call. Comparing models asks for each median some 500 times."""

    def __post_init__(self) -> None:
        if not self.samples:
            raise InvalidInput(f"a measurement of {self.op.key} at {self.case} needs at least one sample")
        self.machine.require(self.case)
        object.__setattr__(self, "conditions", MappingProxyType(dict(self.conditions)))

    def __reduce__(self) -> tuple[Any, ...]:
        return (
            Measurement,
            (
                self.op, self.machine, self.case, self.samples, dict(self.conditions), self.doubt, self.number,
                self.stored_s,
            ),
        )  # fmt: skip

    @property
    def stale(self) -> bool:
        """Whether the samples tell of another state of the machine or of its caches (`Doubt`)."""
        return self.doubt is not None and self.doubt.stale

    @property
    def disturbed(self) -> bool:
        """Whether others used so much of the CPUs meanwhile that the samples say more of them than of the op."""
        share = self.conditions.get(OTHERS_SHARE)
        return isinstance(share, int | float) and share > DISTURBED

    @property
    def seconds(self) -> float:
        """Median of the samples' seconds."""
        if self._median_s is None:
            object.__setattr__(self, "_median_s", statistics.median([sample.seconds for sample in self.samples]))
        return self._median_s  # type: ignore[return-value]

    def counter(self, name: str) -> float | None:
        """Median over the samples in which the counter was read; None where it was read in none."""
        values = [v for sample in self.samples if (v := sample.counters.get(name)) is not None]
        return statistics.median(values) if values else None


def mostly_disturbed(found: Sequence[Measurement]) -> bool:
    """Whether others used the CPUs while most of them were made, so that what is forecast by them is disturbed too."""
    return 2 * sum(m.disturbed for m in found) > len(found)
