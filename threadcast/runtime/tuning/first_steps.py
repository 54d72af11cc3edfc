"""Compares the results of the first step by each plan, and in each other memory format, with eager PyTorch's."""

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

_logger = logging.getLogger("threadcast")


class FirstSteps:
    """Runs steps, and compares those whose results are not known yet with eager PyTorch's.

    `shadowed` says how PyTorch runs a step; with None nothing is compared.
    """

    def __init__(self, shadowed: Shadowed | None) -> None:
        self._shadowed = shadowed
        self._known: set[ContenderId | SearchStep] = set()
        """What was compared with PyTorch, or was too large to be compared."""

    def run(self, runner: Runner, step: Run, arguments: tuple[Any, ...], captured: Captured) -> tuple[Any, str | None]:
        """Run `step`, a step by `runner`; return the result, and in words how the results differ from eager's.

        None where they do not differ or were not compared. If they were compared, the result is eager's.
        """
        if self._shadowed is None or not self._is_first(runner):
            return step(*arguments), None
        reason = self._shadowed.too_large(arguments, captured)
        if reason is not None:
            self._known.add(_identity(runner))
            _logger.warning("the results of %s are not compared with PyTorch's: %s", _identity(runner), reason)
            return step(*arguments), None
        result, difference = checked_step(self._shadowed, step, arguments, captured)
        self._known.add(_identity(runner))
        return result, None if difference is None else str(difference)

    def forget(self, variant: Variant, *, search: bool) -> None:
        """Compare again what runs by the plan of `variant`, or with `search` by the plans of its search."""
        if search:
            self._known = {one for one in self._known if isinstance(one, ContenderId) or one.variant != variant}
        else:
            self._known.discard(plan_of(variant))

    def _is_first(self, runner: Runner) -> bool:
        identity = _identity(runner)
        differs = isinstance(identity, SearchStep) or identity.kind in {Kind.PLAN, Kind.EAGER}
        return differs and identity not in self._known


def _identity(runner: Runner) -> ContenderId | SearchStep:
    """Identifies what runs the step. A step while a plan is being made counts as one of the plan that runs it."""
    if isinstance(runner, ContenderStep):
        return runner.contender
    return SearchStep(runner.variant, runner.step.by) if isinstance(runner.step, Meanwhile) else runner
