"""The page of measured ops of a machine, which the database searches, filters, sorts and divides into pages."""

from __future__ import annotations

from dataclasses import dataclass

from flask import render_template, request

from threadcast.service.context import context
from threadcast.service.dashboard.frame import blueprint, chosen_machine, known_machines, whole_number
from threadcast.store.browsing import SORTS, OpFilter

PAGE = 50
"""Number of ops on a page."""
MAX_TEXT = 200


@dataclass(frozen=True, slots=True)
class Column:
    """A column by which the table can be sorted; `name` and `hint` are shown, `sort` is its name in the query."""

    sort: str
    name: str
    hint: str


COLUMNS = (
    Column("kind", "kind", "what the op does"),
    Column("best_s", "fastest", "median time in its fastest case"),
    Column("speedup", "speed-up", "time on the fewest threads measured over its fastest"),
    Column("all_threads", "all threads", "time on the most threads measured over its fastest: 1x is best"),
    Column("samples", "samples", "timed batches"),
)


@blueprint.get("/ops")
def ops() -> str:
    """One page of the measured ops."""
    here = context()
    known = known_machines()
    machine = chosen_machine(known)
    sort = request.args.get("sort", "")
    sort = sort if sort in SORTS else "best_s"
    ascending = request.args.get("order") == "up"
    which = OpFilter(
        machine.fingerprint if machine else "", text=request.args.get("q", "")[:MAX_TEXT],
        kind=request.args.get("kind", ""), network=request.args.get("network", ""),
    )  # fmt: skip
    page = whole_number("page", default=1, low=1, high=10**6)
    lines, total = here.store.browse.ops(
        which, sort=sort, descending=not ascending, offset=(page - 1) * PAGE, limit=PAGE
    )
    return render_template(
        "dashboard/ops.html", known=known, machine=machine, which=which, lines=lines, total=total, page=page,
        pages=-(-total // PAGE), first=(page - 1) * PAGE + 1, columns=COLUMNS, sort=sort, ascending=ascending,
        kinds=sorted(line.kind for line in here.store.browse.kinds(which.machine)),
        networks=[name for name, _ in here.store.browse.networks()],
        most_s=max((line.best_s for line in lines), default=0.0),
    )  # fmt: skip
