"""Which of the measurements that are to be stored count for forecasts, and why others do not."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from threadcast.core import Measurement
from threadcast.core.measurement_time import date_s
from threadcast.service.stored_documents import StoredDocuments
from threadcast.store.case_figures import UNSAID, rank_of
from threadcast.store.holding import why_not_held

LOOKED_AT = 32
"""Most ops of a request of which all that is stored is read: comparing the times of one takes some milliseconds."""

_PERHAPS = (
    "its caches were not as in the times that are forecast, or these are newer, so it may not count; "
    f"that was looked at for the first {LOOKED_AT} such ops of the request"
)


def counted(measured: Sequence[Measurement], stored: StoredDocuments, *, now_s: float) -> dict[str, Any]:
    """The members `counted` and `uncounted` of the answer to measurements that are stored at `now_s`, in seconds since
    1970.

    All that is stored of an op is read only where some of its new measurements may not count: because their caches were
    not as in a step, or they are older than others of their case; and of the first `LOOKED_AT` such ops alone.
    """
    by_op: dict[tuple[str, str], list[Measurement]] = {}
    for one in measured:
        by_op.setdefault((one.machine.fingerprint, one.op.key), []).append(replace(one, stored_s=now_s))
    reasons: dict[str, list[str]] = {}
    for machine in dict.fromkeys(machine for machine, _ in by_op):
        of_machine = {key: found for (fingerprint, key), found in by_op.items() if fingerprint == machine}
        newest = stored.newest(machine=machine, keys=of_machine)
        doubtful = [key for key, found in of_machine.items() if _may_not_count(found, newest)]
        for key in doubtful[LOOKED_AT:]:
            reasons.setdefault(_PERHAPS, []).extend([key] * len(of_machine[key]))
        del doubtful[LOOKED_AT:]
        before: dict[str, list[Measurement]] = {key: [] for key in doubtful}
        for one in stored.measurements(machine=machine, keys=doubtful):
            before[one.op.key].append(one)
        for key in doubtful:
            for why in filter(None, why_not_held([*before[key], *of_machine[key]])[len(before[key]) :]):
                reasons.setdefault(why, []).append(key)
    uncounted = [{"measurements": len(keys), "op": keys[0], "detail": why} for why, keys in reasons.items()]
    number = len(measured) - sum(map(len, reasons.values()))
    return {"counted": number, **({"uncounted": uncounted} if uncounted else {})}


def _may_not_count(found: Sequence[Measurement], newest: Mapping[tuple[str, int, str], tuple[int, float]]) -> bool:
    """Whether new measurements of one op may not count, by what is known of its cases (`Store.newest`) or by one
    another."""
    if len({one.case for one in found}) < len(found):
        return True
    for one in found:
        least, newest_s = newest.get((one.op.key, one.case.threads, one.case.affinity.value), (UNSAID, math.nan))
        made_s = date_s(one.conditions.get("time"), one.stored_s)
        if least < rank_of(one.conditions.get("cache")) < UNSAID or (made_s is not None and made_s < newest_s):
            return True
    return False
