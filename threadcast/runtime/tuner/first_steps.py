"""What a step may do wrong: the first ones by each plan are compared with eager PyTorch, and what raises is set back.

Looks of training steps run aside: what they give is dropped, and what they change is set back.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from statistics import median
from typing import Any

import torch
from torch import Tensor

from threadcast.capture.graph.captured import Captured
from threadcast.core.errors import in_one_line
from threadcast.core.signal_handlers import Failure
from threadcast.runtime.check.shadow import Judged, Ran, Shadowed, checked_step
from threadcast.runtime.plans.curves_in_step import WARM_UP, LookSchedule
from threadcast.runtime.plans.variant import MemoryFormat
from threadcast.runtime.tuner.candidate import CandidateId, Kind, Run
from threadcast.runtime.tuner.looks import Look

_MOST = 4
"""Steps by a plan that are compared at most, where none shows whether its results are right. A convention: branches
that begin with zeros, and gradients after a first update, tell from the second step on. Whether a step shows it depends
on eager PyTorch alone, so that once so many have not, only one step by each further plan is compared."""

Runner = CandidateId | Look
"""What runs a step: a candidate, or a look at a graph's operators."""

_logger = logging.getLogger("threadcast")


class Draws:
    """The state of PyTorch's generator before a call, which draws numbers where it is `random`.

    What runs instead of a call that has failed draws the numbers that the call would have drawn.
    """

    __slots__ = ("_before",)

    def __init__(self, *, random: bool) -> None:
        self._before = torch.default_generator.get_state() if random else None

    def set_back(self) -> None:
        """Let the generator draw the same numbers once more."""
        if self._before is not None:
            torch.default_generator.set_state(self._before)


class BeforeRun:
    """The random state before a run by a graph, and copies of what the run writes to before an operator raises.

    An operator that raises because of values has all other writes of the graph wait for it, such as the optimizer's
    (`capture.graph.dependencies`), so the copies are of running statistics and their like. `take` makes them anew
    before each run, `set_back` writes them back.
    """

    def __init__(self, captured: Captured) -> None:
        self._captured = captured
        self._held = [captured.held[slot] for slot in captured.early if slot in captured.held]
        self._tensors, self._copies = self._held, _like(self._held)
        self._draws = Draws(random=False)
        self.takes = captured.random or bool(captured.early)
        """Whether there is anything to take note of."""

    def take(self, arguments: tuple[Any, ...]) -> None:
        """Take note of the state before a run on these arguments."""
        self._draws = Draws(random=self._captured.random)
        if not self._captured.early:
            return
        if len(self._held) < len(self._captured.early):
            given = self._captured.written_early(arguments)
            self._tensors, self._copies = [*self._held, *given], [*self._copies[: len(self._held)], *_like(given)]
        with torch.no_grad():
            torch._foreach_copy_(self._copies, self._tensors)

    def suffices(self, error: Exception) -> bool:
        """Whether all that a run which has raised this error may have changed can be set back.

        Where memory runs out, any operator raises, also in the midst of an optimizer's update.
        """
        captured = self._captured
        if captured.written == captured.early:
            return True
        return captured.raises and not isinstance(error, MemoryError) and "allocat" not in str(error)

    def set_back(self) -> None:
        """Set all back to what it was when it was taken."""
        self._draws.set_back()
        if self._captured.early:
            with torch.no_grad():  # by then they may be in another order in memory
                torch._foreach_copy_(self._tensors, self._copies)
        self.forget()

    def forget(self) -> None:
        """Keep no arguments alive."""
        self._tensors, self._copies = self._held, self._copies[: len(self._held)]


def _like(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Empty tensors for copies of these. Those of inference mode could not be written to outside of it."""
    with torch.inference_mode(False) if torch.is_inference_mode_enabled() else nullcontext():
        return [torch.empty_like(tensor.detach()) for tensor in tensors]


class TimedRun:
    """Runs a step, once or several times, and records when it began and how many seconds each run took."""

    def __init__(self, run: Run, clock: Callable[[], float]) -> None:
        self._run, self._clock = run, clock
        self.started_s = 0.0
        """When the last run began."""
        self.runs_s: list[float] = []
        """Seconds of each run."""
        self.raised: str | None = None
        """What a run raised, in words."""

    def __call__(self, *arguments: Any) -> Any:
        self.started_s = self._clock()
        try:
            result, seconds = self._run(*arguments)
        except Exception as error:
            self.raised = in_one_line(error)
            raise
        self.runs_s.append(self._clock() - self.started_s if seconds is None else seconds)
        return result

    @property
    def seconds(self) -> float:
        """Median seconds of the runs, of which the first counts only where there is no other; 0 where there is none."""
        return median(self.runs_s[WARM_UP:] or self.runs_s or [0.0])


def looks_aside(shadowed: Shadowed) -> bool:
    """Return whether looks run aside: at training steps, as comparing all that these change takes as long as many."""
    return shadowed.optimizer is not None


class FirstSteps:
    """Runs steps, and compares those whose results are not known yet with eager PyTorch's.

    `shadowed` says how PyTorch runs a step; with None nothing is compared. Results are known once a step has shown
    something (`telling.tells`), or after `_MOST` steps. `looks` says how often a look runs its step.
    `ran` returns the plan that ran the last step, `in_order` runs a step by PyTorch in channels last.
    """

    def __init__(
        self, shadowed: Shadowed | None, looks: LookSchedule, *, ran: Callable[[], Ran | None] = lambda: None,
        in_order: Run | None = None,
    ) -> None:  # fmt: skip
        self._shadowed, self._ran, self._in_order, self._judged = shadowed, ran, in_order, Judged()
        self.aside = shadowed is not None and looks_aside(shadowed)
        """Whether looks run aside: all that they change is set back, and eager PyTorch runs the caller's step."""
        self.looks = looks
        self.comparable = True
        """Whether memory was large enough to compare the last step that was to be compared."""
        self._silent = 0
        """Number of compared steps in a row that have not shown whether results are right."""
        self._left: dict[Runner, int] = {}
        """How many more steps of what was compared with PyTorch are compared at most."""

    def run(
        self, runner: Runner, step: TimedRun, arguments: tuple[Any, ...], captured: Captured
    ) -> tuple[Any, str | None]:
        """Run `step`, a step by `runner`; return the result, and in words how the results differ from eager's.

        None where they do not differ, or are known. If they were compared, or `step` ran aside, the result is eager's,
        as where memory is too small for that, which the words say (`comparable`).
        """
        self.comparable = True
        aside = self.runs_aside(runner)
        if self._shadowed is None or not self.compares(runner):
            return step(*arguments), None
        reason = self._shadowed.too_large(arguments, captured)
        if reason is not None:
            self.comparable = False
            return self._shadowed.eager(*arguments), f"they cannot be compared: {reason}"
        if aside:
            return self._run_aside(self._shadowed, step, arguments, captured)
        checked = checked_step(
            self._shadowed, step, arguments, captured, ran=self._ran, judged=self._judged,
            in_order=lambda: self._in_order if is_ordered(runner) else None,
        )  # fmt: skip
        if checked.raised and captured.raises:  # which says nothing of what it gives where it does not
            return checked.result, str(checked.difference)
        over = checked.tells or checked.difference is not None
        most = 1 if self._silent >= _MOST else _MOST
        self._silent = 0 if checked.tells else self._silent + 1
        self._left[runner] = left = 0 if over else self._left.get(runner, most) - 1
        if not over and not left:
            _logger.info("%s: results of %d steps were constant or not finite, and showed little", runner, most)
        return checked.result, None if checked.difference is None else str(checked.difference)

    def compares(self, runner: Runner) -> bool:
        """Whether eager PyTorch runs the step too, so that what the runner raises is no answer."""
        return self._shadowed is not None and (self.runs_aside(runner) or self._is_first(runner))

    def runs_aside(self, runner: Runner) -> bool:
        """Whether the step is a look that runs aside, so that eager PyTorch runs the caller's step."""
        return self.aside and isinstance(runner, Look)

    def _run_aside(
        self, shadowed: Shadowed, step: TimedRun, arguments: tuple[Any, ...], captured: Captured
    ) -> tuple[Any, str | None]:
        """Run all steps of a look, set all back that they have changed, and return eager PyTorch's result.

        With it, in words, what a step raised.
        """
        start = shadowed.state(arguments, captured)
        try:
            with Failure() as failure:  # the caller's step is still to come
                while len(step.runs_s) <= WARM_UP or len(step.runs_s) < self.looks.runs(step.seconds):
                    if step.runs_s:
                        start.restore()
                    step(*arguments)
        finally:
            start.restore()
        return shadowed.eager(*arguments), f"the step: {failure}" if failure.error else None

    def forget(self, runner: Runner) -> None:
        """Compare again what runs so."""
        self._left.pop(runner, None)

    def _is_first(self, runner: Runner) -> bool:
        differs = isinstance(runner, Look) or runner.kind in {Kind.PLAN, Kind.EAGER}
        return differs and self._left.get(runner, _MOST) > 0


def is_ordered(runner: Runner) -> bool:
    """Return whether what runs a step has images and weights in channels last."""
    variant = runner.variant
    memory_format = variant.memory_format if variant is not None else getattr(runner, "memory_format", None)
    return memory_format is MemoryFormat.CHANNELS_LAST
