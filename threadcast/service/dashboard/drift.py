"""The page of drift: the ops of a machine whose times have changed."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from flask import render_template

from threadcast.core import Machine
from threadcast.service.context import context
from threadcast.service.dashboard.frame import blueprint, chosen_machine, known_machines
from threadcast.store.recent import MOST_OPS

MOST_CHANGES = 20
"""Most changed ops in the table."""
DATED_S = 1e9
"""Times before this one, of 2001, are numbers of undated measurements."""


@dataclass(frozen=True, slots=True)
class ChangeLine:
    """An op that changed; `day` is a day in UTC, "undated" where its measurements do not say when they were made."""

    key: str
    kind: str
    day: str
    ratio: float
    series: int


@blueprint.get("/drift")
def drift() -> str:
    """The ops that have changed on one machine, the last ones first."""
    known = known_machines()
    machine = chosen_machine(known)
    changes = _changes(machine) if machine else []
    return render_template("dashboard/drift.html", known=known, machine=machine, changes=changes, witnesses=MOST_OPS)


def _changes(machine: Machine) -> list[ChangeLine]:
    newest = context().stored.changes(machine.fingerprint).newest[:MOST_CHANGES]
    return [ChangeLine(one.key, one.kind, _day(one.time_s), one.ratio, one.series) for one in newest]


def _day(time_s: float) -> str:
    return datetime.fromtimestamp(time_s, UTC).date().isoformat() if time_s > DATED_S else "undated"
