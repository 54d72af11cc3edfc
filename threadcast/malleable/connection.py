"""What the arbiter keeps of one connection."""

from __future__ import annotations

from threadcast.malleable.channel import Channel
from threadcast.malleable.placement import CoreIds
from threadcast.malleable.process_watch import ProcessWatch


class Connection:
    """One connection to the arbiter: a process once it has joined. A process may connect twice."""

    def __init__(self, channel: Channel, process: int, number: int) -> None:
        self.channel, self.process = channel, process
        self.name, self.title = f"{process}.{number}", ""
        self.watch = ProcessWatch(process)
        self.order, self.cores = 0, CoreIds()
        """The last order that it was sent."""
        self.ordered_s: float | None = None
        """When it was sent an order that it has not confirmed."""
        self.on_time: bool | None = None
        """What it was last told of its deadline."""
