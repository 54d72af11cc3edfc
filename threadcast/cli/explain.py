"""The ceiling of `threadcast plan --explain` as text."""

from __future__ import annotations

from collections.abc import Callable

from rich.console import RenderableType

from threadcast.cli.output import table
from threadcast.core.figures import duration, significant
from threadcast.scheduler.bounds.ceiling import SCALES, Ceiling, Holder, Reach

_ROWS: tuple[tuple[str, Callable[[Reach], str]], ...] = (
    ("ops", lambda reach: f"{reach.ops:,}"),
    ("work on the fewest threads", lambda reach: duration(reach.work_s)),
    ("  critical path", lambda reach: duration(reach.path_s)),
    ("  work over critical path", lambda reach: significant(reach.parallelism)),
    ("work with each op at its fastest", lambda reach: duration(reach.fastest_work_s)),
    ("  critical path", lambda reach: duration(reach.fastest_path_s)),
    ("  work over critical path", lambda reach: significant(reach.fastest_parallelism)),
    (f"  in ops that do not scale (below {SCALES:g}x)", lambda reach: f"{reach.unscaled_share:.1%}"),
    ("one op at a time, best single count", lambda reach: f"{duration(reach.uniform_s)} at {reach.uniform_width}"),
    ("no schedule is below", lambda reach: duration(reach.bound_s)),
    ("gain over the best single count, at most", lambda reach: f"{significant(reach.at_most)}x"),
    ("  by running ops side by side, at most", lambda reach: f"{significant(reach.side_by_side_at_most)}x"),
)

_HOLDERS = "by how much the bound falls if an op takes no time"


def explained(limits: Ceiling) -> list[RenderableType]:
    """The parts to print: the verdict as a sentence, the figures, the ops that determine the makespan."""
    figures = table(("ceiling", ""), [(name, show(limits.reach)) for name, show in _ROWS])
    total_s = limits.reach.bound_s or 1.0
    holders = [
        (_name(at), f"{duration(at.fastest_s)} at {at.threads}", at.falls_s, f"{at.falls_s / total_s:.1%}")
        for at in limits.holders
    ]
    return [
        f"Can scheduling help? {limits.verdict()}",
        figures,
        table(("op", "fastest", "falls_s", "of it"), holders, title=_HOLDERS),
    ]


def _name(op: Holder) -> str:
    """The op's id, with its kind where the id does not begin with it."""
    return op.id if op.kind.partition("_")[0] in op.id else f"{op.id} ({op.kind})"
