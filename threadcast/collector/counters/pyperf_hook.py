"""Counters in the metadata of pyperf's runs: `python -m pyperf timeit --hook threadcast_counters "..."`.

The metadata of each run get `threadcast_<event>`: the mean count over the run's values, each of which runs the
statement `loops` times. Where the processor has too few counters for all events at once, each value counts some of
them, in turn. Events that were not counted are listed, with the reason, in `threadcast_unavailable`.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from types import TracebackType
from typing import Any

from pyperf._hooks import HookBase, HookError  # pyperf documents these names for hooks and has no public module

from threadcast.collector.counters.availability import list_unavailable
from threadcast.collector.counters.passes import plan_counting
from threadcast.collector.counters.thread_counters import ThreadCounters


class CountersHook(HookBase):  # type: ignore[misc]
    """Counts the events of every thread of pyperf's worker while the benchmark runs.

    In each worker pyperf creates one hook for the warm-ups and one for the values, enters it around every value, and
    calls `teardown` at the end. Where no event can be counted it raises HookError, which ends the benchmark with its
    message.
    """

    def __init__(self) -> None:
        self._plan = plan_counting()
        self._totals: dict[str, float] = {}
        self._counted: dict[str, int] = {}
        self._unavailable = self._plan.unavailable
        self._values = 0
        if not self._plan.names:
            raise HookError(f"no event can be counted: {'; '.join(sorted(set(self._unavailable.values())))}")

    def __enter__(self) -> None:
        # a new one, so that threads started since are counted
        self._counters = ThreadCounters(self._plan, first=self._values)
        self._counters.__enter__()
        self._counters.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        counts = self._counters.stop()
        self._values += 1
        self._unavailable |= self._counters.unavailable
        self._counters.__exit__(kind, error, trace)
        for name, count in counts.items():
            if count is not None:
                self._totals[name] = self._totals.get(name, 0.0) + count
                self._counted[name] = self._counted.get(name, 0) + 1

    def teardown(self, metadata: MutableMapping[str, Any]) -> None:
        """Write the mean counts, and the reasons for missing ones, into the run's metadata."""
        for name, total in self._totals.items():
            metadata[f"threadcast_{name}"] = total / self._counted[name]
        missing = dict.fromkeys(set(self._plan.names) - set(self._totals), "too few values to count all events in turn")
        if unavailable := missing | self._unavailable:
            metadata["threadcast_unavailable"] = list_unavailable(unavailable)
