"""Timelines and curves as SVG text that a page embeds; pointing at an op or a point tells its numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from threadcast.cli.output import duration
from threadcast.core import Curve, OpGraph, Plan, Trace

WIDTH = 1000.0  # user units; pages scale it
TRACK_HEIGHT, TRACK_GAP, LABEL_WIDTH = 26.0, 4.0, 90.0

COLOURS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#997700", "#994455", "#004488", "#77aadd")
"""Paul Tol's bright and high-contrast schemes, which the colour-blind can tell apart."""


def colours_of(kinds: Sequence[str]) -> dict[str, str]:
    """A colour for each kind, the first ones distinct; grey for the rest."""
    return {kind: COLOURS[i] if i < len(COLOURS) else "#999999" for i, kind in enumerate(kinds)}


def timeline(schedule: Plan | Trace, graph: OpGraph, *, span_s: float, colours: Mapping[str, str]) -> str:
    """One track a core from 0 to `span_s` seconds; co-running ops lie on different tracks."""
    kinds = {op_id: op.kind for op_id, op in zip(graph.ids, graph.ops)}
    cores = sorted({core for placement in schedule.ops for core in placement.cores})
    rows = {core: i for i, core in enumerate(cores)}
    scale = (WIDTH - LABEL_WIDTH) / span_s if span_s > 0 else 0.0
    step = TRACK_HEIGHT + TRACK_GAP
    parts = []
    for core, row in rows.items():
        y = row * step
        parts.append(f'<text x="0" y="{y + 17:.0f}">core {core}</text>')
        parts.append(
            f'<rect class="track" x="{LABEL_WIDTH}" y="{y:.0f}" width="{WIDTH - LABEL_WIDTH}" height="{TRACK_HEIGHT}"/>'
        )
    for placed in schedule.ops:
        kind = kinds.get(placed.id, "?")
        when = f"{duration(placed.duration_s)} at {duration(placed.start_s)}"
        told = f"{placed.id} ({kind}), {placed.threads} threads, {when}"
        x, width = LABEL_WIDTH + placed.start_s * scale, max(placed.duration_s * scale, 0.3)
        height = TRACK_HEIGHT / 2 if placed.hardware_thread else TRACK_HEIGHT
        for core in placed.cores:
            y = rows[core] * step + (TRACK_HEIGHT / 2 if placed.hardware_thread else 0)
            parts.append(
                f'<rect x="{x:.2f}" y="{y:.0f}" width="{width:.2f}" height="{height:.0f}" '
                f'fill="{colours.get(kind, "#999999")}"><title>{escape(told)}</title></rect>'
            )
    height = len(cores) * step + 18
    parts.append(f'<text x="{LABEL_WIDTH}" y="{height - 4:.0f}">0</text>')
    parts.append(f'<text x="{WIDTH}" y="{height - 4:.0f}" text-anchor="end">{duration(span_s)}</text>')
    return f'<svg class="timeline" viewBox="0 0 {WIDTH:.0f} {height:.0f}" role="img">{"".join(parts)}</svg>'


@dataclass(frozen=True, slots=True)
class CurvePlot:
    """What one small plot shows: a model's curve with its band, and measured seconds by thread count."""

    title: str
    curve: Curve
    measured: Mapping[int, float]


def curve_plot(plot: CurvePlot, *, width: float = 240.0, height: float = 150.0) -> str:
    """Seconds over threads, from zero; the band is the model's 90 % interval, the dots are measurements."""
    left, bottom, top = 46.0, 22.0, 22.0
    curve = plot.curve
    threads = sorted({case.threads for case in curve.cases} | set(plot.measured))
    highest = max([*curve.high.tolist(), *plot.measured.values()]) or 1.0
    most = max(threads[-1] - 1, 1)

    def x(count: int) -> float:
        return left + (count - 1) / most * (width - left - 12)

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
    ticks = "".join(
        f'<text x="{x(count):.1f}" y="{height - 6:.0f}" text-anchor="middle">{count}</text>'
        for count in {threads[0], threads[len(threads) // 2], threads[-1]}
    )
    return (
        f'<svg class="curve" viewBox="0 0 {width:.0f} {height:.0f}" role="img">'
        f'<text x="4" y="14" class="title">{escape(plot.title)}</text>'
        f'<polygon class="band" points="{" ".join([*upper, *lower])}"/><polyline class="line" points="{line}"/>{dots}'
        f'<line class="axis" x1="{left}" y1="{y(0):.1f}" x2="{width}" y2="{y(0):.1f}"/>{ticks}'
        f'<text x="{left - 4}" y="{y(highest) + 4:.1f}" text-anchor="end">{duration(highest, 2)}</text>'
        f'<text x="{left - 4}" y="{y(0):.1f}" text-anchor="end">0</text></svg>'
    )
