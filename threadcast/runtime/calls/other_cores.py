"""What runs calls while a model has other cores than it was measured on."""

from __future__ import annotations

from threadcast.runtime.calls.fallback import Fallback
from threadcast.runtime.calls.table import CallTable
from threadcast.runtime.plans.model_cores import ModelCores
from threadcast.runtime.tuner.tuning import Tuning

_NOT_MEASURED = Fallback("it has other cores than it was measured on, and they may go as soon as they came")


def runner_on_other_cores(
    found: Tuning | Fallback | None, cores: ModelCores, table: CallTable
) -> Tuning | Fallback | None:
    """Return what runs a call on the `cores` of now, where `found` runs it on those that it was measured on.

    None where all calls in `table` are to be measured anew on the cores of now, which have stayed for long enough.
    """
    if isinstance(found, Fallback):
        return found
    follows = found is not None and found.follows
    if follows and not cores.has_more:
        return found
    others_follow = any(tuning.follows for tuning in table.tunings)
    if cores.unchanged and (cores.has_more or not others_follow):
        return None
    return found if follows else _NOT_MEASURED
