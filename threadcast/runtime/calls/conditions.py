"""The conditions around a call, and in its model, under which PyTorch runs it, of whichever kind it is."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from threadcast.capture.guards.unsupported import has_cached_weights
from threadcast.runtime.calls.autocast import autocast_contexts, keeps_casts
from threadcast.runtime.calls.fallback import (
    ANOMALIES,
    AUTOCAST_STEP,
    BREAKS,
    CACHED,
    LONG_AUTOCAST,
    SAVED_BY_HOOKS,
    Fallback,
    saves_by_hooks,
    why_no_inputs,
)
from threadcast.runtime.watching.model import Observation, Watch


class CallConditions:
    """Tells which calls of a watched model PyTorch must run; `trains`: calls are training steps with an optimizer.

    It is asked before each call, of which some conditions are those of the call before.
    """

    def __init__(self, watch: Watch, *, trains: bool) -> None:
        self._watch, self._trains = watch, trains
        self._casts = 0, 0
        """The last autocast context around a call, and the versions of the weights at its first call."""

    def why_not_by_graph(self, leaves: Iterable[Any], observed: Observation, *, now: bool) -> Fallback | None:
        """Return why PyTorch runs a call with these leaves of its arguments; None where a graph may.

        `now`: the call only tells what would run it, and does not run.
        """
        reason = why_no_inputs(leaves)
        if reason is None and keeps_casts():
            reason = self._why_other_casts(now=now)
        if reason is None and observed.unsteady is not None:
            reason = f"{observed.unsteady}{BREAKS}"
        if self._trains and not torch.is_grad_enabled():
            reason = "gradients are switched off, by torch.no_grad() or torch.inference_mode()"
        if torch.is_anomaly_enabled() and torch.is_anomaly_check_nan_enabled():  # models may take gradients, too
            reason = ANOMALIES
        if has_cached_weights():
            reason = CACHED
        if torch.is_grad_enabled() and saves_by_hooks():
            reason = SAVED_BY_HOOKS
        if reason is None and observed.hooked is not None:
            why = f"there are hooks on {observed.hooked}, which a captured step does not call{BREAKS}"
            return Fallback(why, hooks=True)
        return None if reason is None else Fallback(reason)

    def _why_other_casts(self, *, now: bool) -> str | None:
        """Why a graph would cast the weights at another time than eager PyTorch does; None where both are equal.

        In one autocast context PyTorch casts a weight once. Graphs cast in each call, and leave no cast to later calls.
        """
        if self._trains:
            return AUTOCAST_STEP
        if now:
            return None
        context, versions = autocast_contexts().number(), self._watch.versions
        if self._casts[0] != context:
            self._casts = context, versions
        return None if self._casts[1] == versions else LONG_AUTOCAST
