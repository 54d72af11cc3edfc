"""The page of measured ops of a machine, which the database searches, filters, sorts and divides into pages."""

from __future__ import annotations

from dataclasses import dataclass

from flask import render_template, request

from threadcast.service.context import context
from threadcast.service.dashboard.frame import blueprint, chosen_machine, known_machines, whole_number
from threadcast.store.browsing import SORTS, OpFilter, OpLine, Position

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
    page, last = whole_number("page", default=1, low=1, high=10**6), "last" in request.args
    after, before = (request.args.get(name, "")[:MAX_TEXT] for name in ("after", "before"))
    lines, total, page = _page(which, sort, ascending, Position(before or after, bool(before) or last), page)
    return render_template(
        "dashboard/ops.html", known=known, machine=machine, which=which, lines=lines, total=total, page=page,
        pages=-(-total // PAGE), first=(page - 1) * PAGE + 1, columns=COLUMNS, sort=sort, ascending=ascending,
        kinds=sorted(line.kind for line in here.store.browse.kinds(which.machine)),
        networks=[name for name, _ in here.store.browse.networks()],
        most_s=max((line.best_s for line in lines), default=0.0),
    )  # fmt: skip


def _page(which: OpFilter, sort: str, ascending: bool, at: Position, page: int) -> tuple[list[OpLine], int, int]:
    """The lines of a page, the number of all matching ops, and the page's number.

    Links carry a page's number, which is only shown: ops that were measured meanwhile may have moved the page.
    """

    def lines_at(at: Position, limit: int) -> tuple[list[OpLine], int]:
        return context().store.browse.ops(which, sort=sort, descending=not ascending, at=at, limit=limit)

    lines, total = lines_at(at, PAGE)
    pages = max(-(-total // PAGE), 1)
    if at == Position(before=True):  # the last page, which may be shorter
        return lines[-(total - (pages - 1) * PAGE) :], total, pages
    if not at.op or (at.before and len(lines) < PAGE):
        return (lines_at(Position(), PAGE)[0] if at.op else lines), total, 1
    return lines, total, min(max(page, 1 if at.before else 2), pages)
