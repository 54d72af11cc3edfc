"""What `benchmarks/many_cores.py` keeps of itself: results as they come, time divided among parts, thread counts."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from threadcast.core.errors import InvalidInput


def thread_counts(text: str, cores: int) -> tuple[int, ...]:
    """The thread counts that `text` lists ("1,2,4,8"), ascending, each once; without text powers of two, and all cores.

    InvalidInput where one is no number from 1 to the number of cores.
    """
    if not text.strip():
        return tuple(sorted({2**power for power in range(cores.bit_length()) if 2**power <= cores} | {cores}))
    found = set()
    for part in text.split(","):
        if not part.strip().isdecimal() or not 1 <= int(part) <= cores:
            raise InvalidInput(f"thread count {part.strip()!r} must be a number from 1 to the {cores} usable cores")
        found.add(int(part))
    return tuple(sorted(found))


def by_value(counts: Sequence[int], cores: int) -> tuple[int, ...]:
    """All thread counts from 1 to `cores`: those of `counts` first, then others, each far from those before it."""
    order = list(counts)
    left = [count for count in range(1, cores + 1) if count not in order]
    while left:
        order.append(max(left, key=lambda count: min((abs(count - known) for known in order), default=0)))
        left.remove(order[-1])
    return tuple(order)


class Results:
    """Lines of JSON, each written out before the next unit begins; a line that a killed process tore is left out.

    Every line has a `part` and a `key`; a run that goes on where another stopped asks `has` what is there already.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        torn = path.exists() and path.stat().st_size and not path.read_bytes().endswith(b"\n")
        if torn:
            with path.open("a", encoding="utf-8") as file:
                file.write("\n")

    def read(self) -> list[dict[str, Any]]:
        """All whole lines, in the order in which they were written."""
        return list(self._lines())

    def has(self, part: str, key: str) -> bool:
        """Whether this unit has a result."""
        return any((line["part"], line["key"]) == (part, key) for line in self._lines())

    def add(self, part: str, key: str, **facts: Any) -> None:
        """Append one result; it is on the disk when this returns."""
        line = json.dumps({"part": part, "key": key, **facts})
        with self._path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
            file.flush()
            os.fsync(file.fileno())

    def _lines(self) -> Iterator[dict[str, Any]]:
        if not self._path.exists():
            return
        for text in self._path.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                line = json.loads(text)
            except json.JSONDecodeError:
                continue
            if isinstance(line, dict) and {"part", "key"} <= line.keys():
                yield line


@dataclass(slots=True)
class Budget:
    """Divides what is left of `budget_s` among the parts still to come, by weight: what one leaves, others get."""

    budget_s: float
    weights: Mapping[str, float]
    """By part, in the order of their turns."""
    clock: Callable[[], float] = time.monotonic
    began_s: float = field(init=False)

    def __post_init__(self) -> None:
        if not self.budget_s > 0:
            raise InvalidInput(f"budget_s={self.budget_s!r} must be a positive number of seconds")
        self.began_s = self.clock()

    @property
    def left_s(self) -> float:
        """Seconds left, at least 0."""
        return max(self.began_s + self.budget_s - self.clock(), 0.0)

    def share_s(self, part: str) -> float:
        """Seconds that this part may take if it begins now."""
        names = list(self.weights)
        later = names[names.index(part) :]
        return self.left_s * self.weights[part] / sum(self.weights[name] for name in later)


@dataclass(slots=True)
class Turns:
    """Says whether the next unit of a part ends in time: units are expected to take as long as the longest so far."""

    end_s: float
    first_s: float
    """What the first unit is expected to take."""
    clock: Callable[[], float] = time.monotonic
    _longest_s: float = 0.0
    _since_s: float | None = None

    def next(self) -> bool:
        """Whether another unit may begin; it begins with this call."""
        now_s = self.clock()
        if self._since_s is not None:
            self._longest_s = max(self._longest_s, now_s - self._since_s)
        may = now_s + (self._longest_s or self.first_s) <= self.end_s
        self._since_s = now_s if may else None
        return may
