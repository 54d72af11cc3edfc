"""Counts a program's progress by the lines that it prints, which pass through unchanged."""

from __future__ import annotations

import fcntl
import os
import re
import select
import stat
import termios
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Self

from threadcast.core.errors import InvalidInput

_LONGEST = 1 << 16
"""Bytes of a line that are looked at, and that are read at once."""


def progress_pattern(text: str) -> re.Pattern[bytes]:
    """Return the pattern; InvalidInput where it is none, or has several groups."""
    try:
        found = re.compile(os.fsencode(text))
    except re.error as error:
        raise InvalidInput(f"progress-regex={text!r} is no regular expression: {error}") from None
    if found.groups > 1:
        raise InvalidInput(f"progress-regex={text!r} has {found.groups} groups; one is the count, (?:...) is none")
    return found


@dataclass(slots=True)
class LineProgress:
    """Counts the lines that match a pattern, or, where that has a group, by how much the number in it has grown.

    A number that falls begins anew: the next epoch's.
    """

    pattern: re.Pattern[bytes]
    count: float = 0.0
    _last: float | None = None
    _rest: bytes = field(default=b"")

    def feed(self, data: bytes) -> None:
        """Count what `data` completes; a line ends with a line feed or a carriage return."""
        *lines, self._rest = re.split(rb"[\r\n]", self._rest[-_LONGEST:] + data)
        for line in lines:
            if (found := self.pattern.search(line)) is not None:
                self._add(found)

    def _add(self, found: re.Match[bytes]) -> None:
        if not self.pattern.groups:
            self.count += 1
            return
        with suppress(ValueError):  # no number, or nothing
            now = float((found[1] or b"").replace(b",", b""))
            last, self._last = self._last, now
            self.count += 0.0 if last is None else now - last if now >= last else now


class Passage:
    """Reads what a program prints: out of the file that it prints to, or on its way to a terminal or another program.

    `between` puts it between this process's stdout and whatever this process becomes; then `take` what has come.
    """

    def __init__(self, source: int, sink: int | None, progress: LineProgress) -> None:
        self.source: int | None = source
        self._sink, self.progress = sink, progress

    @classmethod
    def between(cls, progress: LineProgress) -> Self:
        """Make one of this process's stdout."""
        if stat.S_ISREG(os.fstat(1).st_mode):
            source = os.open("/proc/self/fd/1", os.O_RDONLY)
            appends = fcntl.fcntl(1, fcntl.F_GETFL) & os.O_APPEND
            os.lseek(source, *((0, os.SEEK_END) if appends else (os.lseek(1, 0, os.SEEK_CUR), os.SEEK_SET)))
            return cls(source, None, progress)
        sink = os.dup(1)
        if os.isatty(1):
            source, end = os.openpty()
            settings = termios.tcgetattr(end)
            settings[1] &= ~termios.OPOST  # it comes to the real one unchanged, which does that
            termios.tcsetattr(end, termios.TCSANOW, settings)
            termios.tcsetwinsize(end, termios.tcgetwinsize(1))
        else:
            source, end = os.pipe()
        os.dup2(end, 1)
        os.close(end)
        return cls(source, sink, progress)

    @property
    def files(self) -> tuple[int, ...]:
        """The files that are open for it."""
        return tuple(file for file in (self.source, self._sink) if file is not None)

    def close(self) -> None:
        """Close its files: whoever prints to it gets SIGPIPE, and whoever reads what was printed an end."""
        for file in self.files:
            os.close(file)
        self.source = self._sink = None

    @property
    def passes(self) -> bool:
        """Whether what the program prints comes through here, so that it must be taken."""
        return self._sink is not None

    def take(self) -> None:
        """Pass on and count what has come; `close` once nothing more can come through here, or nobody reads it."""
        while data := self._read():
            self.progress.feed(data)
            if self._sink is not None:
                self._pass_on(self._sink, data)
                return
        if self.passes:
            self.close()

    def _read(self) -> bytes:
        try:
            return b"" if self.source is None else os.read(self.source, _LONGEST)
        except OSError:  # a terminal whose last user has ended
            return b""

    def _pass_on(self, sink: int, data: bytes) -> None:
        while data:
            try:
                data = data[os.write(sink, data) :]
            except BlockingIOError:  # a pipe or terminal that others have made so, and is full
                select.select([], [sink], [])
            except OSError:
                self.close()
                return

    def hold_open(self, ended: int) -> None:
        """Hold the files open for a process that takes what comes, until it has ended, or one of the two ends has.

        `ended` is the reading end of a pipe that this process alone has open for writing.
        """
        poll, files = select.poll(), self.files if self.passes else ()
        for file in (ended, *files):
            poll.register(file, 0)  # tells of the other end's end alone
        while all(file != ended for file, _ in poll.poll()):
            for file in files:
                poll.unregister(file)
            files = ()
            self.close()

    def follow_size(self) -> bool:
        """Give the program's terminal, if it has one, the size of the real one; return whether it had another."""
        with suppress(OSError, termios.error):
            if self.source is not None and self._sink is not None:
                size = termios.tcgetwinsize(self._sink)
                if size != termios.tcgetwinsize(self.source):
                    termios.tcsetwinsize(self.source, size)
                    return True
        return False
