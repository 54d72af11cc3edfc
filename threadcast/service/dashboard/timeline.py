"""Draws a plan or a trace with one strip for each core, which is stretched to the width of the page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from markupsafe import Markup

from threadcast.core import Placement, Plan, Trace
from threadcast.service.dashboard.frame import duration

WIDTH, TRACK = 1000.0, 24.0
NARROWEST = 1.0
"""Narrowest block, in units of WIDTH. Shorter ops in a row are drawn as one: a step has thousands of them."""
MANY = "several"


@dataclass(frozen=True, slots=True)
class Strip:
    """The ops of one core, as an image."""

    label: str
    image: Markup


@dataclass(slots=True)
class _Block:
    start: float
    finish: float
    kind: str
    tooltip: str
    ops: int = 1


def strips(schedule: Plan | Trace, kinds: Mapping[str, str], tones: Mapping[str, int], *, span_s: float) -> list[Strip]:
    """One strip for each core that runs an op, from 0 to `span_s` seconds.

    `kinds` are the ops' kinds by op id, `tones` the number of a colour by kind; other kinds are grey.
    """
    rows: dict[tuple[int, int], list[Placement]] = {}
    for placed in schedule.ops:
        for core in placed.cores:
            if placed.duration_s:
                rows.setdefault((core, placed.hardware_thread), []).append(placed)
    scale = WIDTH / span_s if span_s > 0 else 0.0
    drawn_strips = []
    for (core, thread), placements in sorted(rows.items()):
        label = f"core {core}" + (f", hardware thread {thread}" if thread else "")
        blocks = _blocks(placements, kinds, scale)
        image = Markup(
            '<svg class="strip" viewBox="0 0 {} {}" preserveAspectRatio="none" role="img" aria-label="{}">{}</svg>'
        ).format(f"{WIDTH:g}", f"{TRACK:g}", f"{label}: {len(placements)} ops", Markup("").join(_drawn(blocks, tones)))
        drawn_strips.append(Strip(label, image))
    return drawn_strips


def _blocks(placements: Iterable[Placement], kinds: Mapping[str, str], scale: float) -> list[_Block]:
    blocks: list[_Block] = []
    for op in placements:
        kind = kinds.get(op.id, "?")
        start, finish = op.start_s * scale, op.finish_s * scale
        last = blocks[-1] if blocks else None
        if last and finish - last.start < NARROWEST and start - last.finish < NARROWEST / 2:
            last.finish, last.ops = max(last.finish, finish), last.ops + 1
            last.kind = kind if kind == last.kind else MANY
            last.tooltip = f"{last.ops} short ops, {kind if kind == last.kind else 'of several kinds'}"
            continue
        threads = f"{op.threads} thread{'s' if op.threads > 1 else ''}"
        tooltip = f"{op.id} ({kind}), {threads}, {duration(op.duration_s)} from {duration(op.start_s)}"
        blocks.append(_Block(start, finish, kind, tooltip))
    return blocks


def _drawn(blocks: Iterable[_Block], tones: Mapping[str, int]) -> Iterable[Markup]:
    for block in blocks:
        tone = f"tone-{tones[block.kind]}" if block.kind in tones else "tone-rest"
        yield Markup('<rect class="{}" x="{:.2f}" width="{:.2f}" y="0" height="{:g}"><title>{}</title></rect>').format(
            tone, block.start, max(block.finish - block.start, NARROWEST / 2), TRACK, block.tooltip
        )
