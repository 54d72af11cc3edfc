"""A plan or a trace as an SVG image for pages: one track for each core; hovering over an op shows its numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from html import escape

from threadcast.core.figures import duration
from threadcast.core.graph import OpGraph
from threadcast.core.plan import Placement, Plan, Trace

WIDTH = 1000.0  # user units; pages scale it
TRACK_HEIGHT, TRACK_GAP, LABEL_WIDTH = 26.0, 4.0, 90.0

COLOURS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#997700", "#994455", "#004488", "#77aadd")
"""Paul Tol's bright and high-contrast schemes, which colour-blind people can distinguish."""


REST = 'fill="#999999"'
"""The paint of kinds that have no colour of their own."""

NARROWEST = 0.3
"""Narrowest block, in user units. Shorter ops in a row are drawn as one: a step may have thousands of them."""


@dataclass(slots=True)
class _Block:
    """What is drawn on one core from `start` to `finish` (user units): an op, or `ops` short ones."""

    start: float
    finish: float
    kind: str
    tooltip: str
    half: bool
    """Whether it runs on a second hardware thread."""
    ops: int = 1


def kinds_of(graph: OpGraph) -> dict[str, str]:
    """The kind of each op of the graph by its id."""
    return {op_id: op.kind for op_id, op in zip(graph.ids, graph.ops, strict=True)}


def timeline(
    schedule: Plan | Trace, kinds: Mapping[str, str], *, span_s: float, paints: Mapping[str, str], rest: str = REST
) -> str:  # fmt: skip
    """An image with one track for each core, from 0 to `span_s` seconds; an op is drawn on each of its cores.

    `kinds` are those of ops by id; `paints` the attribute that paints a kind, `rest` that of all others. Who does not
    see the image is told what it shows.
    """
    cores = sorted({core for placement in schedule.ops for core in placement.cores})
    scale = (WIDTH - LABEL_WIDTH) / span_s if span_s > 0 else 0.0
    step, half = TRACK_HEIGHT + TRACK_GAP, TRACK_HEIGHT / 2
    parts = []
    for row, core in enumerate(cores):
        y = row * step
        parts.append(f'<text x="0" y="{y + 17:.0f}">core {core}</text>')
        parts.append(
            f'<rect class="track" x="{LABEL_WIDTH}" y="{y:.1f}" width="{WIDTH - LABEL_WIDTH}" height="{TRACK_HEIGHT}"/>'
        )
        parts += [
            f'<rect x="{LABEL_WIDTH + block.start:.2f}" y="{y + half * block.half:.1f}" '
            f'width="{max(block.finish - block.start, NARROWEST):.2f}" height="{half * (2 - block.half):.1f}" '
            f"{paints.get(block.kind, rest)}><title>{escape(block.tooltip)}</title></rect>"
            for block in _blocks((op for op in schedule.ops if core in op.cores), kinds, scale)
        ]
    height = len(cores) * step + 18
    parts.append(f'<text x="{LABEL_WIDTH}" y="{height - 4:.0f}">0</text>')
    parts.append(f'<text x="{WIDTH}" y="{height - 4:.0f}" text-anchor="end">{duration(span_s)}</text>')
    what = f"{_counted(len(schedule.ops), 'op')} on {_counted(len(cores), 'core')}, over {duration(span_s)}"
    label = f'role="img" aria-label="Timeline of {what}"'
    return f'<svg class="timeline" viewBox="0 0 {WIDTH:.0f} {height:.0f}" {label}>{"".join(parts)}</svg>'


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _blocks(placements: Iterable[Placement], kinds: Mapping[str, str], scale: float) -> list[_Block]:
    blocks: list[_Block] = []
    for op in placements:
        kind, half = kinds.get(op.id, "?"), op.hardware_thread > 0
        start, finish = op.start_s * scale, op.finish_s * scale
        last = blocks[-1] if blocks else None
        if last and finish - last.start < NARROWEST and start - last.finish < NARROWEST / 2 and half == last.half:
            last.finish, last.ops = max(last.finish, finish), last.ops + 1
            last.kind = kind if kind == last.kind else ""
            last.tooltip = f"{last.ops} short ops, {last.kind or 'of several kinds'}"
            continue
        threads = _counted(op.threads, "thread")
        tooltip = f"{op.id} ({kind}), {threads}, {duration(op.duration_s)} from {duration(op.start_s)}"
        blocks.append(_Block(start, finish, kind, tooltip, half))
    return blocks


def kinds_by_time(schedules: Iterable[Plan | Trace], kinds: Mapping[str, str]) -> list[str]:
    """The kinds of these ops, those that take most time first."""
    by_kind: dict[str, float] = {}
    for placed in (op for schedule in schedules for op in schedule.ops):
        kind = kinds.get(placed.id, "?")
        by_kind[kind] = by_kind.get(kind, 0.0) + placed.duration_s
    return sorted(by_kind, key=by_kind.__getitem__, reverse=True)


def painted(schedule: Plan | Trace, kinds: Mapping[str, str]) -> tuple[dict[str, str], str]:
    """Return the paint of each kind of op that has a colour, those that take most time, and their legend as HTML."""
    colours = dict(zip(kinds_by_time([schedule], kinds), COLOURS, strict=False))
    legend = "".join(
        f'<span class=key><span class=swatch style="background:{colour}"></span>{escape(kind)}</span> '
        for kind, colour in colours.items()
    )
    return {kind: f'fill="{colour}"' for kind, colour in colours.items()}, f"<p>{legend}</p>"
