"""Counts of hardware and software events while an op runs; for every event that cannot be counted, the reason."""

from threadcast.collector.counters.availability import CounterStatus, availability
from threadcast.collector.counters.events import EVENTS, Event
from threadcast.collector.counters.passes import CountingPlan, plan_counting
from threadcast.collector.counters.thread_counters import ThreadCounters

__all__ = [
    "EVENTS", "CounterStatus", "CountingPlan", "Event", "ThreadCounters", "availability", "plan_counting",
]  # fmt: skip
