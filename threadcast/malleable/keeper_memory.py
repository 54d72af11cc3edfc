"""What a keeper leaves to the one that comes where it is killed."""

from __future__ import annotations

import json
import os
from contextlib import suppress

from threadcast.core.sysfs import format_cpus, parse_cpus
from threadcast.malleable.limits import Cores
from threadcast.malleable.messages import resize_of


class KeeperMemory:
    """The masks that a program was given, and what `threadcast resize` asked of it, in a file that forks share.

    `given` are the masks, which others change, `requested` the argument of the last resize. What `save` writes, `load`
    reads in whatever was forked from the process that made this.
    """

    def __init__(self) -> None:
        self.given = set[frozenset[int]]()
        self.requested: int | Cores | None = None
        self._file = os.memfd_create("threadcast-keeper")
        self._saved = b""

    def load(self) -> None:
        """Take over what was saved."""
        with suppress(ValueError):  # nothing, or its writer was killed meanwhile
            saved = json.loads(os.pread(self._file, os.fstat(self._file).st_size, 0).partition(b"\n")[0])
            self.given.update(mask for text in saved["given"] if (mask := parse_cpus(text)) is not None)
            self.requested = resize_of(saved)

    def save(self) -> None:
        """Save what has changed."""
        given = sorted(map(format_cpus, self.given))
        now = json.dumps({"given": given, "resize": self.requested}).encode() + b"\n"
        if now != self._saved:
            os.pwrite(self._file, now, 0)
            self._saved = now

    def request(self, cores: int | Cores | None) -> None:
        """Remember what was asked for."""
        self.requested = cores
        self.save()
