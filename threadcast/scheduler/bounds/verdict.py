"""The ceiling report in a sentence or two."""

from __future__ import annotations

from threadcast.core.figures import duration, significant
from threadcast.scheduler.bounds.speedup_bound import WORTH, Ceiling, Limit


def verdict(report: Ceiling) -> str:
    """Whether scheduling can help, by how much at most, and what it is that ends or prevents the gain."""
    reach = report.reach
    if not reach.bound_s:
        return "No: no op takes time."
    at_most, beside = f"{significant(reach.at_most)}x", f"{significant(reach.side_by_side_at_most)}x"
    if report.side_by_side_helps:
        return (
            f"Yes, up to {at_most} over one op after another at the best single thread count, "
            f"at most {beside} of it by running ops side by side. {_reason(report)}"
        )
    if report.helps:
        return (
            f"By giving each op its own thread count, up to {at_most} over the best single one; hardly by running "
            f"ops side by side (at most {beside}). {_reason(report)}"
        )
    return f"No, at most {at_most} over one op after another at the best single thread count. {_reason(report)}"


def _reason(report: Ceiling) -> str:
    reach, share = report.reach, f"{report.path_unscaled_share:.0%}"
    if report.limit is Limit.TOO_SMALL:
        return "The ops are so short that handing them to other cores takes that back."
    if report.limit is Limit.CORES:
        busy = reach.at_most < WORTH
        return "The cores are the limit" + (": one op after another keeps them busy already." if busy else ".")
    path = f"The critical path is the limit: {duration(reach.fastest_path_s)} with every op at its fastest"
    if report.limit is Limit.UNSCALED:
        return f"{path}, {share} of it in ops that do not scale to all cores."
    return f"{path}."
