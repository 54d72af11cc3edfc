"""The report of how much scheduling a graph can gain at most, and what limits the gain."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from threadcast.core.figures import duration, significant

SCALES = 1.2
"""An op counts as scaling if the most threads that its curve offers are at least this many times as fast as the fewest.
Below, all further cores together add less than a fifth of the first one's work. A chosen value, not a tuned one."""

HELPFUL_GAIN = 1.05
"""Smallest gain for which scheduling is said to help; forecasts are not precise enough for less. Chosen, not tuned."""


class Limit(StrEnum):
    """The reason why schedules cannot be shorter."""

    CRITICAL_PATH = "critical path"
    """Ops wait for each other, however many cores there are."""
    UNSCALED = "ops do not scale"
    """The critical path is the limit, and most of it is in ops that do not become faster with more threads."""
    CORES = "cores"
    """There is more work than cores can do at once."""
    TOO_SMALL = "too small"
    """Ops are so short that handing them to other cores costs as much as a schedule gains."""


@dataclass(frozen=True, slots=True)
class Reach:
    """How short schedules of a graph can be, in seconds.

    `work_s` and `path_s`: the sum of all ops' times and the longest path, with each op at the fewest threads that it
    offers. `fastest_work_s` and `fastest_path_s`: the same with each op at its fastest count. `uniform_s`: all ops one
    after the other at `uniform_width`, the best single thread count. `bound_s`: no schedule is shorter.
    `unscaled_share`: the part of `fastest_work_s` in ops whose speed-up is below `SCALES`.
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
        """Return all figures, including the derived ones, as JSON values."""
        return {
            **asdict(self), "parallelism": self.parallelism, "fastest_parallelism": self.fastest_parallelism,
            "at_most": self.at_most, "side_by_side_at_most": self.side_by_side_at_most,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Holder:
    """An op on which the bound depends: if the op took no time, the bound would be `falls_s` seconds lower.

    The bound here is the larger of critical path and area, not the LP's. `narrow_s`: the op's seconds on its fewest
    threads. `fastest_s` and `threads`: its fastest time, and the count for it. `on_path`: whether it lies on a longest
    path.
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
    """How much scheduling can gain at most, and what limits the gain.

    `path_unscaled_share`: the part of the critical path in ops that do not scale. `holders`: the ops on which the bound
    depends most. `helps`: whether a schedule can gain at least `HELPFUL_GAIN` over the best single thread count, and
    more than handing ops to other cores costs.
    """

    reach: Reach
    path_unscaled_share: float
    holders: tuple[Holder, ...]
    limit: Limit
    helps: bool

    @property
    def side_by_side_helps(self) -> bool:
        """Whether running ops side by side can gain more than giving each op its own best thread count."""
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
            "reach": self.reach.to_json(),
            "path_unscaled_share": self.path_unscaled_share,
            "holders": [asdict(holder) for holder in self.holders],
        }  # fmt: skip


def _ratio(over: float, under: float) -> float:
    return over / under if under > 0 else 1.0
