"""The choice between float32 and bfloat16 for one kind of calls: the caller's own calls check and time both."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import Enum
from statistics import median
from typing import Any, Literal
from weakref import WeakSet

from torch import Tensor
from torch.utils import _pytree as pytree

from threadcast.runtime.check.limits import shares
from threadcast.runtime.tuner import events as to
from threadcast.runtime.tuner.budget import Budget
from threadcast.runtime.tuner.guard import Verdict
from threadcast.runtime.tuner.rounds import Rounds
from threadcast.runtime.tuner.tournament import Tournament

TOLERANCE = 0.05
"""Largest difference between results in bfloat16 and float32, as a share of the largest number of the tensor. A number
in bfloat16 is rounded by 0.004 of itself. A convention."""
GAP = 1e-4
"""Numbers that are smaller than this share of all others are compared by themselves, as those beside a mask of -1e9."""
CHECKS = 3
"""Calls that run in both types before any result in bfloat16 is returned. A convention."""
RECHECK = 1_000
"""Calls in bfloat16 after which one runs in both types again. A convention."""

Type = Literal["float32", "bfloat16"]


class Way(Enum):
    """How the next call runs."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    BOTH = "both"
    """In float32, whose result is returned, and in bfloat16, to compare the results."""


@dataclass(slots=True)
class TypeReport:
    """Which type runs the calls of one kind, and how far results in bfloat16 were from those in float32."""

    runs: Type | None = None
    """The type; None while it is still being found out."""
    reason: str = ""
    """Why bfloat16 does not run the calls; empty where it does, or is only slower."""
    largest_difference: float | None = None
    """The largest difference seen, as a share of the largest number of the tensor; None where none was compared."""
    tolerance: float = TOLERANCE
    verdict: Verdict | None = None
    """What the comparison of both by time said: `gain` is float32's time over bfloat16's."""

    def __str__(self) -> str:
        said: list[str] = [self.runs or "comparing types"]
        if self.verdict is not None:
            said.append(f"bfloat16 {self.verdict.against('float32')}")
        if self.largest_difference is not None:
            said.append(f"differs by up to {self.largest_difference:.2g} (allowed {self.tolerance:g})")
        return ", ".join([*said, *([self.reason] if self.reason else [])])


class TypeChoice(Rounds):
    """Decides for one kind of calls, from what the caller reports of each, which type runs them.

    bfloat16 is a candidate once it is known what runs float32 fastest: it is prepared by `CHECKS` calls in both types,
    and by those in which it learns, and then compared. `budget` counts calls in bfloat16; others count themselves.
    """

    def __init__(self, report: TypeReport | None = None, *, budget: Budget | None = None) -> None:
        super().__init__(Tournament(Way.FLOAT32), budget or Budget())
        self.report = report or TypeReport()
        self.checks = CHECKS
        """Calls that have to run in both types before the next one in bfloat16."""
        self.compared_ways: WeakSet[object] = WeakSet()
        """Backends whose results in bfloat16 have been compared with float32's since anything changed."""
        self._float32_s: deque[float] = deque(maxlen=9)
        self._what: to.Run | to.RunStage | None = None
        """What the tournament has chosen for the call that comes; None where it was not asked."""
        self._settled = False
        """Whether nothing is left to learn of calls in bfloat16."""
        self._since_check = 0

    def next_way(self) -> Way:
        """Return how the next call runs."""
        self._what = None
        if self.report.runs is None and self.checks and self.tournament.comparison is not None:
            self.break_off()
        elif self.report.runs is None:
            self._what = self.next()
            if self._what.key is Way.FLOAT32:
                return Way.FLOAT32
        if self.report.runs == "float32":
            return Way.FLOAT32
        return Way.BOTH if self.checks else Way.BFLOAT16

    def ran_float32(self, *, started_s: float, seconds: float, settled: bool) -> None:
        """Report a call in float32 alone; `settled`: nothing is left to learn about it."""
        self._float32_s.append(seconds)
        self._ran(to.Ran(started_s, seconds, seconds))
        if settled:
            self.offer(self.checks * seconds)

    def offer(self, cost_s: float = 0.0) -> None:
        """Have bfloat16 tried, which is expected to cost so much at first, once: float32 has learned all it can."""
        if self.report.runs is None and Way.BFLOAT16 not in self.tournament.entrants:
            self.tell(to.Offered(Way.BFLOAT16, cost_s=cost_s, alone=True))  # backends may run either

    def compared(self, difference: float, why: str = "", *, seconds: float = 0.0) -> None:
        """Report how far both results of a call were apart, which took `seconds` in bfloat16; `why` names anything else
        that differed."""
        self.checks = max(0, self.checks - 1)
        self._since_check = 0
        self.budget.charge(seconds)
        self.report.largest_difference = max(difference, self.report.largest_difference or 0.0)
        if why or not difference <= self.report.tolerance:
            self.keep_float32(why or f"results differ by {difference:.2g} of the largest number")
        elif isinstance(self._what, to.RunStage):
            self._staged(seconds)

    def ran_bfloat16(self, *, started_s: float, seconds: float, settled: bool) -> None:
        """Report a call in bfloat16 alone; `settled`: nothing is left to learn about it."""
        self._since_check += 1
        if self._since_check >= RECHECK:
            self.checks = max(self.checks, 1)
        if self.report.runs == "bfloat16":
            return
        self._settled = settled
        float32_s = median(self._float32_s or [seconds])
        self.budget.ran(seconds, eager_s=float32_s)
        self._ran(to.Ran(started_s, seconds, seconds))
        if isinstance(self._what, to.RunStage):
            self._staged(max(0.0, seconds - float32_s))

    def compared_way(self, way: object, difference: float, why: str = "") -> bool:
        """Report how far a backend's first result in bfloat16 was from float32's; return whether it is near enough."""
        if why or not difference <= self.report.tolerance:
            return False
        self.report.largest_difference = max(difference, self.report.largest_difference or 0.0)
        self.compared_ways.add(way)
        return True

    def begin_anew(self) -> None:
        """Check and learn bfloat16 once more, as at first."""
        self.tournament = Tournament(Way.FLOAT32, baseline_s=list(self._float32_s))
        self.report.runs, self.report.verdict, self.checks, self._settled = None, None, CHECKS, False
        self._what = None
        self.compared_ways.clear()

    def written(self) -> None:
        """Report that weights were written to: the next call in bfloat16 is compared."""
        self.compared_ways.clear()
        if self.report.runs != "float32":
            self.checks = max(self.checks, 1)

    def keep_float32(self, reason: str) -> None:
        """Run in float32 from here on."""
        self.report.runs, self.report.reason = "float32", reason
        self.budget.learns(False)

    def prepare(self, key: to.Key) -> None:
        """Check and learn in the next calls."""
        self.tell(to.Staged(key, to.Place.CALL))

    def carry_out(self, instruction: to.Instruction) -> None:
        """Take note of the verdict."""
        if isinstance(instruction, to.Compared) and self.report.runs is None:
            self.report.verdict = instruction.verdict
            self.report.runs = "bfloat16" if instruction.verdict.kept == "plan" else "float32"
            self.budget.learns(False)

    def _ran(self, event: to.Ran) -> None:
        if self._what is not None and self.report.runs is None:
            self.tell(event)
            self.do()

    def _staged(self, cost_s: float) -> None:
        """Tell how far bfloat16 is prepared, of which the next call is expected to cost so much."""
        if self.checks or not self._settled:
            self.tell(to.Staged(Way.BFLOAT16, to.Place.CALL, cost_s))
        else:
            self.tell(to.Ready(Way.BFLOAT16))


def largest_difference(precise: Any, rough: Any) -> tuple[float, str]:
    """Return the largest difference between two nested results, as a share of the largest number of its tensor, or of
    its group there (`largest_of_groups`), and a text that names anything else that differs, such as integers."""
    wanted, structure = pytree.tree_flatten(precise)
    found, other = pytree.tree_flatten(rough)
    if structure != other:
        return 0.0, "results are nested otherwise in bfloat16"
    largest = 0.0
    for one, two in zip(wanted, found, strict=True):
        if not isinstance(one, Tensor) or not isinstance(two, Tensor):
            if type(one) is not type(two) or one != two:
                return largest, f"a result is {one!r} in float32 and {two!r} in bfloat16"[:200]
            continue
        if (one.shape, one.dtype) != (two.shape, two.dtype):
            return largest, f"a result is {two.dtype} of shape {tuple(two.shape)}, not {one.dtype} {tuple(one.shape)}"
        if not (one.is_floating_point() or one.is_complex()):
            if not one.equal(two):
                return largest, f"{int((one != two).sum())} of {one.numel()} {one.dtype} results differ"
            continue
        if one.numel():
            largest = max(largest, float(shares(one, two, gap=GAP).max()))
    return largest, ""
