"""Curves as SVG text for pages; hovering over a point shows its numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from html import escape

from threadcast.core import Curve
from threadcast.core.figures import duration


@dataclass(frozen=True, slots=True)
class CurvePlot:
    """The content of one small plot: a model's curve with its interval, and measured seconds by thread count."""

    title: str
    curve: Curve
    measured: Mapping[int, float]


def curve_plot(plot: CurvePlot, *, width: float = 240.0, height: float = 150.0) -> str:
    """An image of seconds over threads: the band is the 90 % interval, dots are measurements; seconds from zero."""
    left, bottom, top = 46.0, 22.0, 28.0
    curve = plot.curve
    threads = sorted({case.threads for case in curve.cases} | set(plot.measured))
    every = [*curve.low.tolist(), *curve.high.tolist(), *plot.measured.values()]
    highest = max(every) or 1.0

    def x(count: int) -> float:
        return left + (count - 1) / (max(threads[-1], 2) - 1) * (width - left - 12)

    def y(seconds: float) -> float:
        return height - bottom - seconds / highest * (height - bottom - top)

    best: dict[int, int] = {}
    for i, case in enumerate(curve.cases):
        if case.threads not in best or curve.seconds[i] < curve.seconds[best[case.threads]]:
            best[case.threads] = i
    order = [best[count] for count in sorted(best)]
    upper = [f"{x(curve.cases[i].threads):.1f},{y(curve.high[i]):.1f}" for i in order]
    lower = [f"{x(curve.cases[i].threads):.1f},{y(curve.low[i]):.1f}" for i in reversed(order)]
    line = " ".join(f"{x(curve.cases[i].threads):.1f},{y(curve.seconds[i]):.1f}" for i in order)
    dots = "".join(
        f'<circle cx="{x(count):.1f}" cy="{y(seconds):.1f}" r="3.5">'
        f"<title>measured: {duration(seconds)} at {count} threads</title></circle>"
        for count, seconds in plot.measured.items()
    )
    middle = threads[len(threads) // 2]
    ticks = "".join(
        f'<text x="{x(count):.1f}" y="{height - 6:.0f}" text-anchor="middle">{count}</text>'
        for count in sorted({threads[0], middle, threads[-1]})
    )
    base = height - bottom
    return (
        f'<svg class="curve" viewBox="0 0 {width:.0f} {height:.0f}" role="img">'
        f'<text x="4" y="12" class="title">{escape(plot.title)}</text>'
        f'<polygon class="band" points="{" ".join([*upper, *lower])}"/><polyline class="line" points="{line}"/>'
        f'{dots}<line class="axis" x1="{left}" y1="{base:.1f}" x2="{width}" y2="{base:.1f}"/>{ticks}'
        f'<text x="{left - 4}" y="{y(highest) + 4:.1f}" text-anchor="end">{duration(highest, 2)}</text>'
        f'<text x="{left - 4}" y="{base:.1f}" text-anchor="end">0</text></svg>'
    )
