"""A plan or a trace as an SVG image for pages: one track for each core; hovering over an op shows its numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

from threadcast.core.figures import duration
from threadcast.core.graph import OpGraph
from threadcast.core.plan import Plan, Trace

WIDTH = 1000.0  # user units; pages scale it
TRACK_HEIGHT, TRACK_GAP, LABEL_WIDTH, LINE_HEIGHT = 26.0, 4.0, 90.0, 14.0

COLOURS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#997700", "#994455", "#004488", "#77aadd")
"""Paul Tol's bright and high-contrast schemes, which colour-blind people can distinguish."""


def colours_of(kinds: Sequence[str]) -> dict[str, str]:
    """A colour for each kind: a different one for each of the first kinds, grey for the rest."""
    return {kind: COLOURS[i] if i < len(COLOURS) else "#999999" for i, kind in enumerate(kinds)}


def timeline(
    schedule: Plan | Trace, graph: OpGraph, *, span_s: float, colours: Mapping[str, str],
    track_height: float = TRACK_HEIGHT,
) -> str:  # fmt: skip
    """An image with one track for each core, from 0 to `span_s` seconds; an op is drawn on each of its cores.

    Where tracks are lower than text is high, some of them are labelled.
    """
    kinds = {op_id: op.kind for op_id, op in zip(graph.ids, graph.ops)}
    cores = sorted({core for placement in schedule.ops for core in placement.cores})
    rows = {core: i for i, core in enumerate(cores)}
    scale = (WIDTH - LABEL_WIDTH) / span_s if span_s > 0 else 0.0
    step = track_height + TRACK_GAP * min(1.0, track_height / TRACK_HEIGHT)
    labelled = max(1, math.ceil(2 * LINE_HEIGHT / step)) if step < LINE_HEIGHT else 1
    parts = []
    for core, row in rows.items():
        y = row * step
        if row % labelled == 0:
            parts.append(f'<text x="0" y="{y + min(17.0, max(track_height + 4, 10.0)):.0f}">core {core}</text>')
        parts.append(
            f'<rect class="track" x="{LABEL_WIDTH}" y="{y:.1f}" width="{WIDTH - LABEL_WIDTH}" height="{track_height}"/>'
        )
    for placed in schedule.ops:
        kind = kinds.get(placed.id, "?")
        when = f"{duration(placed.duration_s)} at {duration(placed.start_s)}"
        tooltip = f"{placed.id} ({kind}), {placed.threads} threads, {when}"
        x, width = LABEL_WIDTH + placed.start_s * scale, max(placed.duration_s * scale, 0.3)
        height = track_height / 2 if placed.hardware_thread else track_height
        for core in placed.cores:
            y = rows[core] * step + (track_height / 2 if placed.hardware_thread else 0)
            parts.append(
                f'<rect x="{x:.2f}" y="{y:.1f}" width="{width:.2f}" height="{height:.1f}" '
                f'fill="{colours.get(kind, "#999999")}"><title>{escape(tooltip)}</title></rect>'
            )
    height = len(cores) * step + 18
    parts.append(f'<text x="{LABEL_WIDTH}" y="{height - 4:.0f}">0</text>')
    parts.append(f'<text x="{WIDTH}" y="{height - 4:.0f}" text-anchor="end">{duration(span_s)}</text>')
    return f'<svg class="timeline" viewBox="0 0 {WIDTH:.0f} {height:.0f}" role="img">{"".join(parts)}</svg>'


def colours_by_time(schedule: Plan | Trace, graph: OpGraph) -> tuple[dict[str, str], str]:
    """Return a colour for each kind of op, those that take most time first, and the legend of ten kinds as HTML."""
    by_kind: dict[str, float] = {}
    kinds = dict(zip(graph.ids, (op.kind for op in graph.ops)))
    for placed in schedule.ops:
        by_kind[kinds[placed.id]] = by_kind.get(kinds[placed.id], 0.0) + placed.duration_s
    ordered = sorted(by_kind, key=by_kind.__getitem__, reverse=True)
    colours = colours_of(ordered)
    legend = "".join(
        f'<span class=key><span class=swatch style="background:{colours[kind]}"></span>{escape(kind)}</span> '
        for kind in ordered[:10]
    )
    return colours, f"<p>{legend}</p>"
