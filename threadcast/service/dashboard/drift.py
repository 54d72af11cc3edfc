"""The page of drift: measured over predicted seconds, by time of measurement and by kind of op."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple, cast

from flask import current_app, render_template

from threadcast.core import Machine, Measurement, Op
from threadcast.core.errors import ArtefactError, ModelError, NotFound
from threadcast.core.measurement_time import made_at, read_time
from threadcast.models.base import PerformanceModel
from threadcast.prediction.lru_cache import LruCache
from threadcast.service.context import context
from threadcast.service.dashboard.charts import Chart, Line, wants_log
from threadcast.service.dashboard.frame import blueprint, chosen_machine, known_machines
from threadcast.store.recent import MOST_OPS

NEWEST = 1_000
"""Number of a machine's newest measurements that are used: forecasting them takes some tenths of a second."""
KINDS = 6
"""Number of kinds of op with a line of their own, those with most measurements."""
INTERVALS = 30
"""Most intervals of time in a line."""
_INTERVALS_S = (1, 5, 15, 60, 300, 900, 3600, 6 * 3600, 86_400, 7 * 86_400, 30 * 86_400)
MOST_REPORTS = 8
"""Number of reports in the cache."""
MOST_CHANGES = 20
"""Most changed ops in the table."""
DATED_S = 1e9
"""Times before this one, of 2001, are numbers of undated measurements."""
EXTENSION = "threadcast-dashboard-drift"


@dataclass(frozen=True, slots=True)
class Point:
    """A measurement compared with its forecast."""

    time: float
    """Seconds since 1970."""
    kind: str
    ratio: float
    """Measured over predicted seconds."""
    within: bool
    """Whether the measured time lies in the forecast's 90 % interval."""


@dataclass(frozen=True, slots=True)
class KindDrift:
    """The ratios of one kind of op: median, 10th and 90th percentile, and the share within the 90 % intervals."""

    kind: str
    count: int
    median: float
    low: float
    high: float
    within: float


@dataclass(frozen=True, slots=True)
class DriftReport:
    """The measurements since a model version was registered, compared with its predictions from the earlier ones.

    `since` is the time of registration in ISO 8601. `untimed` is the number of measurements that do not say when they
    were made and are left out. `problem` says why nothing could be predicted.
    """

    version: str
    since: str
    points: tuple[Point, ...]
    untimed: int
    problem: str = ""


class DriftReportId(NamedTuple):
    """Everything that determines a report."""

    version: str
    machine: str
    """Fingerprint."""
    newest: int
    """Number of the machine's newest measurement."""


@blueprint.record_once
def _prepare(state: Any) -> None:
    state.app.extensions[EXTENSION] = LruCache[DriftReportId, DriftReport](MOST_REPORTS)


@blueprint.get("/drift")
def drift() -> str:
    """The drift of the default model on one machine, and the ops that have changed there."""
    known = known_machines()
    machine = chosen_machine(known)
    report = _report(machine) if machine else None
    points = report.points if report else ()
    kinds = [kind for kind, _ in Counter(s.kind for s in points).most_common()]
    lines = [summary("all", points)] if points else []
    lines += [summary(kind, [s for s in points if s.kind == kind]) for kind in kinds]
    return render_template(
        "dashboard/drift.html", known=known, machine=machine, report=report, lines=lines, limit=NEWEST,
        changes=_changes(machine) if machine else (), witnesses=MOST_OPS,
        default=context().models.default, chart=chart_of(points, kinds[:KINDS]) if points else None,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class ChangeLine:
    """An op that changed; `day` is a day in UTC, "undated" where its measurements do not say when they were made."""

    key: str
    kind: str
    day: str
    ratio: float
    series: int


def _changes(machine: Machine) -> list[ChangeLine]:
    newest = context().stored.changes(machine.fingerprint).newest[:MOST_CHANGES]
    return [ChangeLine(one.key, one.kind, _day(one.time_s), one.ratio, one.series) for one in newest]


def _day(time_s: float) -> str:
    return datetime.fromtimestamp(time_s, UTC).date().isoformat() if time_s > DATED_S else "undated"


def _report(machine: Machine) -> DriftReport | None:
    """Return the report on the default model; None where there is none."""
    here = context()
    try:
        model, version = here.models.get()
        since = here.models.registry.manifest(version).created
    except (NotFound, ArtefactError):
        return None
    reports = cast(LruCache[DriftReportId, DriftReport], current_app.extensions[EXTENSION])
    key = DriftReportId(version, machine.fingerprint, here.store.browse.newest_id(machine.fingerprint))
    report = reports.get(key)
    if report is None:
        report = _compared(model, version, since, machine)
        reports.put(key, report)
    return report


def _compared(model: PerformanceModel, version: str, since: str, machine: Machine) -> DriftReport:
    """Compare measurements since the version was registered with its predictions from the earlier measurements."""
    store, registered = context().store, read_time(since)
    start = 0.0 if registered is None else registered.timestamp()
    newest = store.browse.newest(machine, limit=NEWEST)
    later = [m for m in newest if (time := _time(m)) is not None and time > start]
    ops = {m.op.key: m.op for m in later}
    before: dict[str, list[Measurement]] = {key: [] for key in ops}
    for m in store.measurements(machine=machine.fingerprint, keys=ops) if ops else ():
        if (_time(m) or 0.0) <= start:
            before[m.op.key].append(m)
    untimed = sum(_time(m) is None for m in newest)
    try:
        points = tuple(compare(model, list(ops.values()), before, later, machine)) if ops else ()
    except ModelError as error:
        return DriftReport(version, since, (), untimed, str(error))
    return DriftReport(version, since, points, untimed)


def compare(
    model: PerformanceModel,
    ops: Sequence[Op],
    before: dict[str, list[Measurement]],
    later: Iterable[Measurement],
    machine: Machine,
) -> Iterable[Point]:
    """Yield a point for each later measurement; cases that the machine does not have are left out.

    `before` are by op key the measurements that the model is given.
    """
    cases = machine.cases()
    table = model.predict_many(ops, [before[op.key] for op in ops], cases, machine=machine)
    row = {op.key: i for i, op in enumerate(ops)}
    column = {case: i for i, case in enumerate(cases)}
    for m in later:
        if m.case not in column:
            continue
        at = row[m.op.key], column[m.case]
        predicted = float(table.seconds[at])
        if predicted > 0:
            within = bool(table.low[at] <= m.seconds <= table.high[at])
            yield Point(_time(m) or 0.0, m.op.kind, m.seconds / predicted, within)


def summary(kind: str, points: Sequence[Point]) -> KindDrift:
    """Return the summary of the ratios of these points, which are of one kind."""
    ratios = sorted(s.ratio for s in points)
    low, high = (ratios[round(share * (len(ratios) - 1))] for share in (0.1, 0.9))
    within = sum(s.within for s in points) / len(points)
    return KindDrift(kind, len(points), statistics.median(ratios), low, high, within)


def chart_of(points: Sequence[Point], kinds: Sequence[str]) -> Chart:
    """Return the chart of median ratios over time: of all ops, with a band of the middle 80 %, and of each kind."""
    first, last = min(s.time for s in points), max(s.time for s in points)
    interval_s = next((s for s in _INTERVALS_S if (last - first) / s <= INTERVALS), _INTERVALS_S[-1])
    times = sorted({s.time // interval_s * interval_s for s in points})

    def at(of: Sequence[Point]) -> dict[float, KindDrift]:
        found: dict[float, list[Point]] = {}
        for s in of:
            found.setdefault(s.time // interval_s * interval_s, []).append(s)
        return {time: summary("", listed) for time, listed in found.items()}

    every = at(points)
    marks: Any = "" if len(times) > 1 else "dots"
    lines = [
        Line(
            "all", tuple(every[t].median for t in times), 0, tuple(every[t].low for t in times),
            tuple(every[t].high for t in times), marks,
        )
    ]  # fmt: skip
    for tone, kind in enumerate(kinds, start=1):
        own = at([s for s in points if s.kind == kind])
        lines.append(Line(kind, tuple(own[t].median if t in own else None for t in times), tone, marks=marks))
    found = [v for line in lines for v in (*line.values, *line.low, *line.high) if v is not None]
    return Chart(
        "observed over predicted by time", tuple(times), tuple(lines), "time, UTC", "observed / predicted", "x",
        y_log=wants_log(found), time=True,
    )  # fmt: skip


def _time(measurement: Measurement) -> float | None:
    made = made_at(measurement)
    return None if made is None else made.timestamp()
