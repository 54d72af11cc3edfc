"""What the arbiter remembers of a connection."""

from __future__ import annotations

import os

from threadcast.core.errors import InvalidInput
from threadcast.malleable.channel import Channel
from threadcast.malleable.placement import CoreIds
from threadcast.malleable.process_watch import ProcessWatch


class Connection:
    """A connection to the arbiter, which stands for a process once that has joined. A process may connect twice.

    `process` is the process's number, first that of the one that connects; `name` is unique among connections, `title`
    is for people.
    """

    def __init__(self, channel: Channel, process: int, number: int) -> None:
        self.channel, self.process = channel, process
        self.name, self.title = f"{process}.{number}", ""
        self.is_kept = False
        """Whether it stands for a process that knows nothing of it, and is kept on its cores from outside."""
        self.watch = ProcessWatch(process)
        self.order, self.cores = 0, CoreIds()
        """Number and core ids of the last order that was sent to it."""
        self.ordered_s: float | None = None
        """When the last order was sent, in seconds of the arbiter's clock; None once it is confirmed."""
        self.learning = ""
        """What its optimised steps are still learning, as it said last."""

    def stand_for(self, process: int) -> None:
        """Stand for another process of the same user's; InvalidInput where it is none."""
        try:
            owners = {os.stat(f"/proc/{one}").st_uid for one in (self.process, process)}
        except OSError as error:
            raise InvalidInput(f"process={process}: there is none") from error
        if len(owners) > 1:
            raise InvalidInput(f"process={process} is another user's")
        self.process, self.watch, self.is_kept = process, ProcessWatch(process), True

    def __str__(self) -> str:
        return f"{self.process} ({self.title})"
