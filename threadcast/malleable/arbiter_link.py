"""A process's connection to the arbiter: it joins, reports changes, and receives the cores that the process gets."""

from __future__ import annotations

import logging
import selectors
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from threadcast.core.errors import FormatError, NotFound, ServiceUnavailable
from threadcast.malleable.channel import Channel
from threadcast.malleable.limits import Cores
from threadcast.malleable.messages import Bounds, order_of
from threadcast.malleable.sockets import connect

REPORT_S = 0.5
"""Seconds between reports of steps by a process that has all cores that it may use; others report at every `look`."""
LEARNING_S = 1.0
"""Seconds between reports of what the process is still learning, which changes with every call."""
CONNECT_S = 0.1
"""Longest wait in seconds for a connection to the arbiter."""
REFUSED_S, LONGEST_REFUSED_S = 1.0, 30.0
"""Seconds until the next attempt to join after the arbiter refused this process: first value, and limit of its doubling
at each further refusal."""

_logger = logging.getLogger("threadcast.malleable")


@dataclass(frozen=True, slots=True)
class Terms:
    """What a process asks of an arbiter; for weight, least and most number of cores see `division.Claim`."""

    name: str = ""
    weight: float = 1.0
    least: int = 1
    most: int | None = None
    process: int | None = None
    """Number of the process that joins; None: of this one."""


class ArbiterLink:
    """Keeps a connection to the arbiter that listens at `path`, and to any arbiter that listens there later.

    `steps()` returns how many steps this process has made; `expected()` returns the steps a second that it expects, by
    number of cores; `learning()` returns in words what its optimised steps are still learning. `assigned` is called
    with the cores of each order, and returns the cores that are then in use. When the arbiter goes away, the process
    keeps its cores.
    """

    def __init__(
        self, path: Path, terms: Terms, selector: selectors.BaseSelector, *, steps: Callable[[], float],
        expected: Callable[[], Mapping[int, float]], assigned: Callable[[Cores], Cores],
        learning: Callable[[], str] = str, now: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._path, self._terms, self._selector = path, terms, selector
        self._steps, self._expected, self._assigned, self._now = steps, expected, assigned, now
        self._learning, self._sent_learning, self._learning_from_s = learning, "", 0.0
        self._channel: Channel | None = None
        self._refused_s, self._join_from_s = 0.0, 0.0
        self._sent_bounds: Bounds | None = None
        self._sent_rates: Mapping[int, float] = {}
        self._sent_steps: float | None = None
        self._report_from_s = 0.0

    @property
    def is_joined(self) -> bool:
        """Whether there is a connection to an arbiter."""
        return self._channel is not None

    def look(self, bounds: Bounds, holds: Cores, *, has_all: bool) -> None:
        """Join the arbiter if there is one and it is time to, and send it what has changed. Call this regularly.

        `holds` are the cores that an arbiter assigned (empty: none did). `has_all`: whether the process has all cores
        that it may use.
        """
        if self._channel is None and self._now() >= self._join_from_s:
            self._join(bounds, holds)
        if self._channel is None:
            return
        if bounds != self._sent_bounds:
            self._sent_bounds = bounds
            self._send({"bounds": bounds.to_json()})
        if (rates := self._expected()) != self._sent_rates:
            self._sent_rates = rates
            self._send({"progress": {str(cores): rate for cores, rate in rates.items()}})
        if self._now() >= self._learning_from_s and (learning := self._learning()) != self._sent_learning:
            self._sent_learning, self._learning_from_s = learning, self._now() + LEARNING_S
            self._send({"learning": learning})
        if self._now() >= self._report_from_s and (steps := self._steps()) != self._sent_steps:
            self._sent_steps, self._report_from_s = steps, self._now() + (REPORT_S if has_all else 0.0)
            self._send({"steps": steps})

    def hear(self) -> None:
        """Act on the messages that the arbiter has sent: orders and refusals."""
        if self._channel is None:
            return
        try:
            for message in self._channel.receive():
                if "error" in message:
                    self._refused_s = min(max(2 * self._refused_s, REFUSED_S), LONGEST_REFUSED_S)
                    self._join_from_s = self._now() + self._refused_s
                    _logger.warning("the arbiter refuses this process: %s", message["error"])
                    continue
                order = order_of(message)
                self._send({"holds": self._assigned(order.holds), "order": order.order})
                self._refused_s = 0.0
        except (OSError, FormatError):
            self.close()

    def close(self) -> None:
        """Close the connection to the arbiter, if there is one; a later `look` joins again."""
        if self._channel is not None:
            self._selector.unregister(self._channel)
            self._channel.close()
            self._channel = None
            self._sent_steps, self._report_from_s, self._sent_rates = None, 0.0, {}
            self._sent_learning, self._learning_from_s = "", 0.0

    def abandon(self) -> None:
        """Close a forked child's copy of the socket; the parent's connection stays open."""
        if self._channel is not None:
            self._channel.close()

    def _join(self, bounds: Bounds, holds: Cores) -> None:
        try:
            self._channel = Channel(connect(self._path, CONNECT_S))
        except (NotFound, ServiceUnavailable):
            return
        self._selector.register(self._channel, selectors.EVENT_READ, self.hear)
        self._sent_bounds = bounds
        asked = {"name": self._terms.name, "weight": self._terms.weight, "holds": holds, **bounds.to_json()}
        self._send({"join": asked if self._terms.process is None else {**asked, "process": self._terms.process}})

    def _send(self, message: dict[str, Any]) -> None:
        if self._channel is None:
            return
        try:
            self._channel.send(message)
        except BlockingIOError:
            self.close()
        except OSError:
            return  # it has gone, and may have said why: that is heard next, then the end
        if self._channel is not None and self._channel.has_unsent:  # it does not read
            self.close()
