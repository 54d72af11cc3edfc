"""The page of machines that have measurements, each drawn core by core."""

from __future__ import annotations

from dataclasses import dataclass

from flask import render_template
from markupsafe import Markup

from threadcast.core import Machine
from threadcast.service.dashboard.frame import MeasuredMachine, blueprint, known_machines

CELL, GAP, GROUP_GAP = 12, 3, 10
"""Sizes in units of the drawing: a core, the gap between cores, and the gap between cache groups."""
ROW = 560
"""Width in units of the drawing after which a new row begins."""


@dataclass(frozen=True, slots=True)
class Card:
    """The contents of a machine's card; `clock` is the highest clock rate as text."""

    measured: MeasuredMachine
    sockets: int
    nodes: int
    clock: str
    drawing: Markup


@blueprint.get("/machines")
def machines() -> str:
    """The page with a card for every machine."""
    return render_template("dashboard/machines.html", cards=[_card(known) for known in known_machines()])


def _card(measured: MeasuredMachine) -> Card:
    cores = measured.machine.cores
    clocks = [core.max_hz for core in cores if core.max_hz]
    clock = "–" if not clocks else f"{max(clocks) / 1e9:.3g} GHz"
    return Card(
        measured, len({c.socket for c in cores}), len({c.node for c in cores}), clock, drawing(measured.machine)
    )


def drawing(machine: Machine) -> Markup:
    """Return an image of the cores as squares, those of a cache group side by side, in the colour of their socket."""
    socket = {core.id: core.socket for core in machine.cores}
    x = y = 0
    wide = 0
    parts = []
    for group in machine.groups:
        width = len(group) * (CELL + GAP)
        if x and x + width > ROW:
            x, y = 0, y + CELL + GROUP_GAP
        for core in group:
            if x + CELL > ROW:
                x, y = 0, y + CELL + GAP
            parts.append(
                Markup('<rect class="core tone-{}" x="{}" y="{}" width="{}" height="{}" rx="2"/>').format(
                    socket[core] % 10, x, y, CELL, CELL
                )
            )
            x += CELL + GAP
            wide = max(wide, x)
        x += GROUP_GAP - GAP
    label = f"{len(machine)} cores in {len(machine.groups)} cache group{'s' if len(machine.groups) > 1 else ''}"
    return Markup(
        '<svg class="topology" width="{0}" height="{1}" viewBox="0 0 {0} {1}" role="img" aria-label="{2}">{3}</svg>'
    ).format(wide, y + CELL, label, Markup("").join(parts))
