"""Curves, bars and lines as SVG text for pages; hovering over a point shows its numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from threadcast.core import Curve
from threadcast.core.figures import duration
from threadcast.core.timeline_svg import WIDTH, colours_of


@dataclass(frozen=True, slots=True)
class CurvePlot:
    """The content of one small plot: a model's curve with its interval, measured seconds by thread count, and the true
    seconds where a simulator gives them. `logarithmic`: both axes, for curves that fall over many threads."""

    title: str
    curve: Curve
    measured: Mapping[int, float]
    true: Curve | None = None
    logarithmic: bool = False


def curve_plot(plot: CurvePlot, *, width: float = 240.0, height: float = 150.0) -> str:
    """An image of seconds over threads: the band is the 90 % interval, dots are measurements, dashes true times.

    Seconds start from zero where the axes are not logarithmic.
    """
    left, bottom, top = 46.0, 22.0, 28.0
    curve = plot.curve
    threads = sorted({case.threads for case in curve.cases} | set(plot.measured))
    true = {} if plot.true is None else _fastest(plot.true)
    every = [*curve.low.tolist(), *curve.high.tolist(), *plot.measured.values(), *true.values()]
    lowest, highest = (min(every) if plot.logarithmic else 0.0), max(every) or 1.0

    def share(value: float, low: float, high: float) -> float:
        if plot.logarithmic and low < high:
            return math.log(value / low) / math.log(high / low)
        return (value - low) / max(high - low, 1e-300)

    def x(count: int) -> float:
        return left + share(count, 1, max(threads[-1], 2)) * (width - left - 12)

    def y(seconds: float) -> float:
        return height - bottom - share(seconds, lowest, highest) * (height - bottom - top)

    best: dict[int, int] = {}
    for i, case in enumerate(curve.cases):
        if case.threads not in best or curve.seconds[i] < curve.seconds[best[case.threads]]:
            best[case.threads] = i
    order = [best[count] for count in sorted(best)]
    upper = [f"{x(curve.cases[i].threads):.1f},{y(curve.high[i]):.1f}" for i in order]
    lower = [f"{x(curve.cases[i].threads):.1f},{y(curve.low[i]):.1f}" for i in reversed(order)]
    line = " ".join(f"{x(curve.cases[i].threads):.1f},{y(curve.seconds[i]):.1f}" for i in order)
    dashes = " ".join(f"{x(count):.1f},{y(seconds):.1f}" for count, seconds in sorted(true.items()))
    dots = "".join(
        f'<circle cx="{x(count):.1f}" cy="{y(seconds):.1f}" r="3.5">'
        f"<title>measured: {duration(seconds)} at {count} threads</title></circle>"
        for count, seconds in plot.measured.items()
    )
    middle = 8 if plot.logarithmic and threads[-1] > 16 else threads[len(threads) // 2]
    ticks = "".join(
        f'<text x="{x(count):.1f}" y="{height - 6:.0f}" text-anchor="middle">{count}</text>'
        for count in sorted({threads[0], middle, threads[-1]})
    )
    base = height - bottom
    return (
        f'<svg class="curve" viewBox="0 0 {width:.0f} {height:.0f}" role="img">'
        f'<text x="4" y="12" class="title">{escape(plot.title)}</text>'
        f'<polygon class="band" points="{" ".join([*upper, *lower])}"/><polyline class="line" points="{line}"/>'
        + (f'<polyline class="true" points="{dashes}"/>' if dashes else "")
        + f'{dots}<line class="axis" x1="{left}" y1="{base:.1f}" x2="{width}" y2="{base:.1f}"/>{ticks}'
        f'<text x="{left - 4}" y="{y(highest) + 4:.1f}" text-anchor="end">{duration(highest, 2)}</text>'
        f'<text x="{left - 4}" y="{base:.1f}" text-anchor="end">{duration(lowest, 2) if lowest else 0}</text></svg>'
    )


def _fastest(curve: Curve) -> dict[int, float]:
    """The least seconds of the curve at each thread count."""
    found: dict[int, float] = {}
    for case, seconds in zip(curve.cases, curve.seconds.tolist(), strict=True):
        found[case.threads] = min(seconds, found.get(case.threads, math.inf))
    return found


def bars(rows: Sequence[tuple[str, float, float]], *, unit: str) -> str:
    """An image with a horizontal bar for each row (label, value, upper end of a whisker), from zero, in `unit`."""
    step, label_width = 22.0, 230.0
    highest = max([max(value, upper) for _, value, upper in rows] or [0.0]) or 1.0
    scale = (WIDTH - label_width - 90) / highest
    parts = []
    for i, (label, value, upper) in enumerate(rows):
        y = i * step
        tooltip = f"{label}: {value:.3g} {unit}, up to {upper:.3g} {unit}"
        end = label_width + max(value, upper) * scale
        parts.append(
            f"<g><title>{escape(tooltip)}</title>"
            f'<text x="0" y="{y + 14:.0f}">{escape(label)}</text>'
            f'<rect x="{label_width}" y="{y + 3:.0f}" width="{max(value * scale, 1):.1f}" height="14" fill="#4477aa"/>'
            f'<line class="axis" x1="{label_width}" x2="{label_width + upper * scale:.1f}" y1="{y + 10:.0f}" '
            f'y2="{y + 10:.0f}"/><text x="{end + 6:.1f}" y="{y + 14:.0f}">{value:.3g} {escape(unit)}</text></g>'
        )
    return f'<svg viewBox="0 0 {WIDTH:.0f} {len(rows) * step:.0f}" role="img">{"".join(parts)}</svg>'


def lines(series: Mapping[str, Sequence[tuple[float, float]]], *, x_label: str, y_label: str) -> str:
    """An image with a line for each name through its (x, y) points; empty without points.

    x is drawn by its rank, so that 1, 4 and 16 are equally far apart.
    """
    left, bottom, top, right, height = 56.0, 34.0, 12.0, 240.0, 340.0
    values = sorted({x for points in series.values() for x, _ in points})
    found = [y for points in series.values() for _, y in points]
    if not found:
        return ""
    low, high = min(found), max(found)
    span = (high - low) or 1.0
    place = {x: left + (i + 0.5) * (WIDTH - left - right) / len(values) for i, x in enumerate(values)}
    colours = colours_of(list(series))

    def at(y: float) -> float:
        return height - bottom - (y - low) / span * (height - bottom - top)

    parts = [
        f'<line class="axis" x1="{left}" y1="{height - bottom}" x2="{WIDTH - right}" y2="{height - bottom}"/>',
        *(f'<text x="{place[x]:.1f}" y="{height - 18}" text-anchor="middle">{x:g}</text>' for x in values),
        f'<text x="{(left + WIDTH - right) / 2:.0f}" y="{height - 3}" text-anchor="middle">{escape(x_label)}</text>',
        f'<text x="{left - 6}" y="{at(high) + 4:.1f}" text-anchor="end">{high:.3g}</text>',
        f'<text x="{left - 6}" y="{at(low) + 4:.1f}" text-anchor="end">{low:.3g}</text>',
        f'<text x="{left - 6}" y="{(at(low) + at(high)) / 2:.1f}" text-anchor="end">{escape(y_label)}</text>',
    ]
    for rank, (name, points) in enumerate(series.items()):
        path = " ".join(f"{place[x]:.1f},{at(y):.1f}" for x, y in points)
        dots = "".join(
            f'<circle cx="{place[x]:.1f}" cy="{at(y):.1f}" r="3.5" style="fill:{colours[name]}">'
            f"<title>{escape(name)}: {y:.4g} at {x:g}</title></circle>"
            for x, y in points
        )
        legend_y = top + 14 * rank + 8
        parts.append(
            f'<polyline points="{path}" fill="none" stroke="{colours[name]}" stroke-width="2"/>{dots}'
            f'<circle cx="{WIDTH - right + 16}" cy="{legend_y - 4:.0f}" r="4" style="fill:{colours[name]}"/>'
            f'<text x="{WIDTH - right + 26}" y="{legend_y:.0f}">{escape(name)}</text>'
        )
    tall = max(height, top + 14 * len(series) + 8)
    return f'<svg viewBox="0 0 {WIDTH:.0f} {tall:.0f}" role="img">{"".join(parts)}</svg>'
