"""Counts of hardware and software events while an op runs, with the reason for every one that cannot be read."""

from threadcast.collector.counters.events import EVENTS, Event
from threadcast.collector.counters.perf_event import CounterGroup, CounterStatus, availability

__all__ = ["EVENTS", "CounterGroup", "CounterStatus", "Event", "availability"]
