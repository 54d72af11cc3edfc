"""The report of what scheduling a graph can gain at most, and why not more."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from threadcast.core.figures import duration, significant

SCALES = 1.2
"""Speed-up from the fewest to the most threads that an op's curve offers, from which on it counts as scaling: below it
all further cores together add less than a fifth of the first one's work. Chosen, not tuned."""

HELPFUL_GAIN = 1.05
"""Gain from which on scheduling is said to help: less drowns in the errors of forecasts. Chosen, not tuned."""


class Limit(StrEnum):
    """What keeps schedules from being shorter."""

    CRITICAL_PATH = "critical path"
    """Ops wait for each other, whatever the cores."""
    UNSCALED = "ops do not scale"
    """The critical path too, and most of it is in ops to which threads do not help."""
    CORES = "cores"
    """There is more work than cores can do at once."""
    TOO_SMALL = "too small"
    """Ops are so short that handing them over takes back what a schedule gains."""


@dataclass(frozen=True, slots=True)
class Reach:
    """How short schedules of one graph can be, in seconds.

    `work_s`, `path_s`: the sum of all ops and the longest path, each op on the fewest threads it offers.
    `fastest_work_s`, `fastest_path_s`: with every op at its own fastest count; the sum is what one op after the
    other takes so. `uniform_s`: one op after the other at `uniform_width`, the best single count. `bound_s`: no
    schedule is shorter. `unscaled_share`: part of `fastest_work_s` in ops of a speed-up below `SCALES`.
    """

    ops: int
    work_s: float
    path_s: float
    fastest_work_s: float
    fastest_path_s: float
    uniform_width: int
    uniform_s: float
    bound_s: float
    unscaled_share: float

    @property
    def parallelism(self) -> float:
        """Work over critical path on the fewest threads: how many ops can run at once on average."""
        return _ratio(self.work_s, self.path_s)

    @property
    def fastest_parallelism(self) -> float:
        """Work over critical path at each op's fastest count."""
        return _ratio(self.fastest_work_s, self.fastest_path_s)

    @property
    def at_most(self) -> float:
        """The most that any schedule can gain over one op after the other at the best single thread count."""
        return _ratio(self.uniform_s, self.bound_s)

    @property
    def side_by_side_at_most(self) -> float:
        """The most that running ops side by side can gain over one after the other, each at its own best count."""
        return _ratio(self.fastest_work_s, self.bound_s)

    def to_json(self) -> dict[str, Any]:
        """Return all figures, the derived ones too, as JSON values."""
        return {
            **asdict(self), "parallelism": self.parallelism, "fastest_parallelism": self.fastest_parallelism,
            "at_most": self.at_most, "side_by_side_at_most": self.side_by_side_at_most,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Holder:
    """An op on which the bound depends: without the op's time the bound is `falls_s` lower.

    The bound is the larger of critical path and area here, not the relaxation's. `narrow_s`: its seconds on the fewest
    threads; `fastest_s`, `threads`: its fastest. `on_path`: whether it lies on a longest path.
    """

    id: str
    kind: str
    falls_s: float
    narrow_s: float
    fastest_s: float
    threads: int
    on_path: bool


@dataclass(frozen=True, slots=True)
class Ceiling:
    """What scheduling can gain at most and why not more.

    `without_split`: the same for the backward pass as one op an operator; None where that is not known.
    `path_unscaled_share`: part of the critical path in ops that do not scale. `helps`: whether any schedule can gain
    `HELPFUL_GAIN` over the best single thread count and more than handing ops over costs.
    """

    reach: Reach
    without_split: Reach | None
    path_unscaled_share: float
    holders: tuple[Holder, ...]
    limit: Limit
    helps: bool

    @property
    def side_by_side_helps(self) -> bool:
        """Whether running ops beside each other can, beyond giving each its own thread count."""
        return self.helps and self.reach.side_by_side_at_most >= HELPFUL_GAIN

    def verdict(self) -> str:
        """Return in a sentence or two whether scheduling can help, by how much at most, and what limits the gain."""
        reach = self.reach
        if not reach.bound_s:
            return "No: no op takes time."
        at_most, beside = f"{significant(reach.at_most)}x", f"{significant(reach.side_by_side_at_most)}x"
        if self.side_by_side_helps:
            return (
                f"Yes, up to {at_most} over one op after another at the best single thread count, "
                f"at most {beside} of it by running ops side by side. {self._reason()}"
            )
        if self.helps:
            return (
                f"By giving each op its own thread count, up to {at_most} over the best single one; hardly by running "
                f"ops side by side (at most {beside}). {self._reason()}"
            )
        return f"No, at most {at_most} over one op after another at the best single thread count. {self._reason()}"

    def _reason(self) -> str:
        if self.limit is Limit.TOO_SMALL:
            return "The ops are so short that handing them to other cores takes that back."
        if self.limit is Limit.CORES:
            busy = self.reach.at_most < HELPFUL_GAIN
            return "The cores are the limit" + (": one op after another keeps them busy already." if busy else ".")
        path = f"The critical path is the limit: {duration(self.reach.fastest_path_s)} with every op at its fastest"
        if self.limit is Limit.UNSCALED:
            return f"{path}, {self.path_unscaled_share:.0%} of it in ops that do not scale to all cores."
        return f"{path}."

    def to_json(self) -> dict[str, Any]:
        """Return the whole report as JSON values."""
        return {
            "helps": self.helps, "side_by_side_helps": self.side_by_side_helps, "limit": self.limit.value,
            "with_split": self.reach.to_json(),
            "without_split": None if self.without_split is None else self.without_split.to_json(),
            "path_unscaled_share": self.path_unscaled_share,
            "holders": [asdict(holder) for holder in self.holders],
        }  # fmt: skip


def _ratio(over: float, under: float) -> float:
    return over / under if under > 0 else 1.0
