"""Compares the results of the first steps by each plan, and in each other memory format, with eager PyTorch's."""

from __future__ import annotations

import logging
from typing import Any

from threadcast.capture.capture import Captured
from threadcast.runtime.plans.variant import Variant
from threadcast.runtime.tuning.contender import Run
from threadcast.runtime.tuning.contender_id import ContenderId, Kind, plan_of
from threadcast.runtime.tuning.instructions import ContenderStep, Runner, SearchStep
from threadcast.runtime.tuning.plan_search import Meanwhile
from threadcast.runtime.verification.shadow import Shadowed, checked_step

_MOST = 4
"""Steps by a plan that are compared at most, where none shows whether its results are right. A convention: branches
that begin with zeros, and gradients after a first update, tell from the second step on."""

_logger = logging.getLogger("threadcast")


class FirstSteps:
    """Runs steps, and compares those whose results are not known yet with eager PyTorch's.

    `shadowed` says how PyTorch runs a step; with None nothing is compared. Results are known once a step has shown
    something (`telling.tells`), or after `_MOST` steps.
    """

    def __init__(self, shadowed: Shadowed | None) -> None:
        self._shadowed = shadowed
        self._left: dict[ContenderId | SearchStep, int] = {}
        """How many more steps of what was compared with PyTorch are compared at most."""

    def run(self, runner: Runner, step: Run, arguments: tuple[Any, ...], captured: Captured) -> tuple[Any, str | None]:
        """Run `step`, a step by `runner`; return the result, and in words how the results differ from eager's.

        None where they do not differ, or are known. If they were compared, the result is eager's, as where memory is
        too small to compare them: `step` is not run then.
        """
        if self._shadowed is None or not self._is_first(runner):
            return step(*arguments), None
        reason = self._shadowed.too_large(arguments, captured)
        if reason is not None:
            return self._shadowed.eager(*arguments), f"they cannot be compared: {reason}"
        checked, identity = checked_step(self._shadowed, step, arguments, captured), _identity(runner)
        over = checked.tells or checked.difference is not None
        self._left[identity] = left = 0 if over else self._left.get(identity, _MOST) - 1
        if not over and not left:
            _logger.info("%s: results of %d steps were constant or not finite, and showed little", identity, _MOST)
        return checked.result, None if checked.difference is None else str(checked.difference)

    def forget(self, variant: Variant, *, search: bool) -> None:
        """Compare again what runs by the plan of `variant`, or with `search` by the plans of its search."""
        if search:
            kept = (one for one in self._left if isinstance(one, ContenderId) or one.variant != variant)
            self._left = {one: self._left[one] for one in kept}
        else:
            self._left.pop(plan_of(variant), None)

    def _is_first(self, runner: Runner) -> bool:
        identity = _identity(runner)
        differs = isinstance(identity, SearchStep) or identity.kind in {Kind.PLAN, Kind.EAGER}
        return differs and self._left.get(identity, _MOST) > 0


def _identity(runner: Runner) -> ContenderId | SearchStep:
    """Identifies what runs the step. A step while a plan is being made counts as one of the plan that runs it."""
    if isinstance(runner, ContenderStep):
        return runner.contender
    return SearchStep(runner.variant, runner.step.by) if isinstance(runner.step, Meanwhile) else runner
