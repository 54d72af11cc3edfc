"""Functions that all pages use: the blueprint, the chosen machine, numbers as text, and errors as pages."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from apiflask import APIBlueprint
from flask import Response, make_response, render_template, request, url_for
from markupsafe import Markup, escape

from threadcast.core import Affinity, Case, Machine
from threadcast.core.errors import NotFound, ThreadcastError
from threadcast.core.figures import duration as ascii_duration
from threadcast.core.figures import percent as percent_text
from threadcast.core.figures import significant
from threadcast.service.context import context
from threadcast.service.documents import asked_machine
from threadcast.service.problems import Problem, unexpected

_HEAD, _ROW = re.compile(r"<th\b[^>]*>(.*?)</th>", re.DOTALL), re.compile(r"<tr\b.*?</tr>", re.DOTALL)
_CELL = re.compile(r"<t[hd]\b")
blueprint = APIBlueprint("dashboard", __name__, enable_openapi=False)


@dataclass(frozen=True, slots=True)
class MeasuredMachine:
    """A machine, and the number of ops, of their cases, and of samples that were measured on it."""

    machine: Machine
    ops: int
    cases: int
    samples: int


def known_machines() -> list[MeasuredMachine]:
    """Return every machine of the store, the one with most measured ops first."""
    store = context().store
    counts = store.browse.ops_by_machine()
    known = [MeasuredMachine(machine, *counts.get(machine.fingerprint, (0, 0, 0))) for machine in store.machines()]
    return sorted(known, key=lambda k: (-k.ops, k.machine.fingerprint))


def chosen_machine(known: list[MeasuredMachine]) -> Machine | None:
    """Return the machine that the query names, else the first of `known`; None where nothing was measured.

    Problem for a name that no machine has (`asked_machine`).
    """
    if wanted := request.args.get("machine", ""):
        return asked_machine(wanted, context().stored, where="query")
    return known[0].machine if known else None


def with_query(**changes: Any) -> str:
    """Return the address of this page with some query parameters changed; None removes one."""
    query: dict[str, Any] = {**request.args.to_dict(flat=False), **changes}
    view = {name: value for name, value in (request.view_args or {}).items() if name not in query}
    given = {name: value for name, value in query.items() if value not in (None, "", [""])}
    return url_for(str(request.endpoint), **view, **given)


def whole_number(name: str, *, default: int, low: int, high: int) -> int:
    """Return a query parameter as a number from `low` to `high`; the default where it is not a number."""
    text = request.args.get(name, "")
    return min(max(int(text), low), high) if text.isascii() and text.isdigit() and len(text) < 10 else default


def duration(seconds: float) -> str:
    """Return seconds as text with a suitable unit, "1.25 ms", with a no-break space."""
    return ascii_duration(seconds).replace(" us", " µs").replace(" ", "\N{NO-BREAK SPACE}")


def case_text(case: Case) -> str:
    """Return a case in words; the affinity is named only where it is `spread`."""
    spread = ", spread" if case.affinity is Affinity.SPREAD else ""
    return f"{case.threads} thread{'' if case.threads == 1 else 's'}{spread}"


def percent(share: float | None) -> str:
    """A share as text, as `figures.percent` writes it; a dash where there is none."""
    return "–" if share is None or not math.isfinite(share) else f"{percent_text(share)} %"


def ratio(value: float | None) -> str:
    """A factor as text, "1.25x"; a dash where there is none."""
    return "–" if value is None or not math.isfinite(value) else f"{significant(value)}x"


def figure(value: float | None) -> str:
    """A number as text to three significant digits; a dash where there is none."""
    return "–" if value is None else significant(value)


def moment(time: str) -> str:
    """An ISO 8601 time as text to the minute; any other text is returned unchanged."""
    try:
        return datetime.fromisoformat(time).strftime("%Y-%m-%d %H:%M")
    except ValueError:
        return time


def headed(table: Markup) -> Markup:
    """The head and the body of a table, each cell with what its column is called as `data-head`: where there is no room
    for columns, the style sheet shows that before the cell."""
    head, end, body = str(table).partition("</thead>")
    names = [escape(Markup(name).striptags().rstrip(" ↑↓")) for name in _HEAD.findall(head)]

    def with_heads(row: re.Match[str]) -> str:
        of_cells = iter(names)
        return _CELL.sub(lambda cell: f'{cell[0]} data-head="{next(of_cells, "")}"', row[0])

    return Markup(head + end + _ROW.sub(with_heads, body))


@blueprint.record_once
def _prepare(state: Any) -> None:
    filters = {
        "duration": duration,
        "percent": percent,
        "ratio": ratio,
        "figure": figure,
        "moment": moment,
        "case": case_text,
        "headed": headed,
    }
    state.app.jinja_env.filters.update(filters)
    state.app.jinja_env.globals["with_query"] = with_query
    state.app.jinja_env.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}


@blueprint.errorhandler(NotFound)
def _missing(error: NotFound) -> Response:
    return _refusal(404, str(error))


@blueprint.errorhandler(Problem)
def _problem(problem: Problem) -> Response:
    response = _refusal(problem.status, problem.detail)
    response.headers.extend(problem.headers or {})  # a challenge for a key, or when to come again
    return response


@blueprint.errorhandler(ThreadcastError)
def _failed(error: ThreadcastError) -> Response:
    """The page does not show the error, which may name paths and addresses of this machine; the log has it."""
    unexpected(error, 503)
    return _refusal(503, "The store or the models cannot be read at the moment; the server's log says why.")


def _refusal(status: int, why: str) -> Response:
    return make_response(render_template("dashboard/refused.html", status=status, why=why), status)
