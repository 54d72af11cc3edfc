"""Counts of hardware and software events while an op runs; for every event that cannot be counted, the reason."""

from threadcast.collector.counters.events import EVENTS, Event
from threadcast.collector.counters.perf_event import CounterGroup, CounterStatus, availability

__all__ = ["EVENTS", "CounterGroup", "CounterStatus", "Event", "availability"]
