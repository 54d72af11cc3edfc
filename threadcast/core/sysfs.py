"""Reading the small files of /proc and /sys: None, never an error, for a file that is missing, unreadable or
garbled."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

from threadcast.core.errors import InvalidInput

MAX_CPU = 1 << 16
"""A CPU number above this means that the file is garbled; Linux can be built for at most 8,192."""


def require_linux(what: str) -> None:
    """Raise InvalidInput where `what`, which needs /proc and affinity masks, cannot work."""
    if sys.platform != "linux":
        raise InvalidInput(f"{what} needs Linux, whose /proc and affinity masks it uses; this is {sys.platform}")


def read_text(path: Path | str) -> str | None:
    """The stripped text of a file; None if it cannot be read."""
    try:
        with open(path, "rb", buffering=0) as file:  # limits are read five times a second beside the work
            return file.readall().decode().strip()
    except (OSError, UnicodeDecodeError):
        return None


def read_int(path: Path | str) -> int | None:
    """The whole number that is the file's only content; None where it is not one, or the file cannot be read."""
    try:
        return int(read_text(path) or "")
    except ValueError:
        return None


def read_cpus(path: Path | str) -> frozenset[int] | None:
    """The CPUs that a file lists; None where it cannot be read or lists none."""
    return parse_cpus(read_text(path) or "")


def numbered(folder: Path, prefix: str) -> list[tuple[int, Path]]:
    """The entries of `folder` named `prefix` and a number ("cpu0", "cpu1"), by number."""
    try:
        names = [path.name for path in folder.iterdir()]
    except OSError:
        return []
    found = [(name.removeprefix(prefix), name) for name in names if name.startswith(prefix)]
    return sorted((int(number), folder / name) for number, name in found if number.isdecimal())


def parse_cpus(text: str) -> frozenset[int] | None:
    """The CPUs of a kernel list such as "0-3,8"; None where it is empty or garbled."""
    cpus: set[int] = set()
    try:
        for part in text.split(",") if text else ():
            first, _, last = part.partition("-")
            start, stop = int(first), int(last or first)
            if not 0 <= start <= stop < MAX_CPU:
                return None
            cpus.update(range(start, stop + 1))
    except ValueError:
        return None
    return frozenset(cpus) or None


def format_cpus(cpus: Iterable[int]) -> str:
    """The kernel's list form of these CPUs: "0-3,8"."""
    runs: list[list[int]] = []
    for cpu in sorted(cpus):
        if runs and cpu == runs[-1][-1] + 1:
            runs[-1][1:] = [cpu]
        else:
            runs.append([cpu])
    return ",".join("-".join(map(str, run)) for run in runs)
