"""The generic events of Linux that are counted, with their names in measurements.

Each processor counts the nearest event that it has. Numbers are those of `include/uapi/linux/perf_event.h`, which never
change.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, Self

from threadcast.collector.counters.core_pmus import CorePmu

HARDWARE, SOFTWARE, HARDWARE_CACHE = 0, 1, 3
"""Values of `perf_event_attr.type`."""


@dataclass(frozen=True, slots=True)
class Event:
    """One event that can be counted; `type` and `config` are the kernel's numbers of it.

    `in_kernel`: the event happens while the kernel runs, so that a count without the kernel would always be 0.
    Hardware events are counted in user mode only, which needs no privilege up to perf_event_paranoid 2 and leaves out
    the work of interrupts.
    """

    name: str
    type: int
    config: int
    in_kernel: bool = False

    @property
    def kind(self) -> Literal["hardware", "software"]:
        """Whether the processor ("hardware") or the kernel ("software") counts the event."""
        return "software" if self.type == SOFTWARE else "hardware"

    def on(self, pmu: CorePmu | None) -> Self:
        """The event as this kind of core counts it; itself where all cores are alike (None) or the kernel counts it.

        The kernel's type of the unit that counts goes into the upper 32 bits of `config` (PERF_PMU_TYPE_SHIFT).
        """
        return self if pmu is None or self.kind == "software" else replace(self, config=self.config | pmu.type << 32)


def _cache(cache: int, *, miss: bool) -> int:
    return cache | 0 << 8 | int(miss) << 16  # 0 << 8: loads


_L1D, _LAST_LEVEL = 0, 2

EVENTS: tuple[Event, ...] = (
    Event("cycles", HARDWARE, 0),
    Event("instructions", HARDWARE, 1),
    Event("cache_references", HARDWARE, 2),
    Event("cache_misses", HARDWARE, 3),
    Event("branches", HARDWARE, 4),
    Event("branch_misses", HARDWARE, 5),
    Event("stalled_cycles_frontend", HARDWARE, 7),
    Event("stalled_cycles_backend", HARDWARE, 8),
    Event("l1d_loads", HARDWARE_CACHE, _cache(_L1D, miss=False)),
    Event("l1d_load_misses", HARDWARE_CACHE, _cache(_L1D, miss=True)),
    Event("llc_loads", HARDWARE_CACHE, _cache(_LAST_LEVEL, miss=False)),
    Event("task_clock_ns", SOFTWARE, 1),
    Event("page_faults", SOFTWARE, 2),
    Event("context_switches", SOFTWARE, 3, in_kernel=True),
    Event("cpu_migrations", SOFTWARE, 4, in_kernel=True),
)
"""All events that are counted around an op, hardware events first."""
