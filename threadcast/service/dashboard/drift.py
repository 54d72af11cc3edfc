"""Whether what is measured still is what the model says: observed over predicted, over time, by kind of op."""

from __future__ import annotations

import statistics
import threading
from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, cast

from flask import current_app, render_template

from threadcast.core import Machine, Measurement, Op
from threadcast.core.errors import ArtefactError, ModelError, NotFound
from threadcast.models.base import PerformanceModel
from threadcast.service.context import context
from threadcast.service.dashboard.charts import Chart, Line, wants_log
from threadcast.service.dashboard.frame import blueprint, chosen_machine, known_machines

NEWEST = 1_000
"""Measurements of a machine that are looked at, the newest ones: what models forecast in some tenths of a second."""
KINDS = 6
"""Kinds with a line of their own, those with most measurements."""
STEPS = 30
"""Points of a line, at most."""
_STEPS_S = (1, 5, 15, 60, 300, 900, 3600, 6 * 3600, 86_400, 7 * 86_400, 30 * 86_400)
KEPT = 8
EXTENSION = "threadcast-dashboard-drift"


@dataclass(frozen=True, slots=True)
class Seen:
    """One measurement beside its forecast."""

    time: float
    kind: str
    ratio: float
    within: bool
    """Whether it lies in the forecast's 90 % interval."""


@dataclass(frozen=True, slots=True)
class Drifted:
    """A kind's measurements beside their forecasts: the median ratio and its 10th and 90th percentile."""

    kind: str
    count: int
    median: float
    low: float
    high: float
    within: float


@dataclass(frozen=True, slots=True)
class Report:
    """What was measured since a version was registered, beside what it said before."""

    version: str
    since: str
    seen: tuple[Seen, ...]
    untimed: int
    problem: str = ""


class KeptReports:
    """The last reports by version, machine and newest measurement; safe to use from threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[tuple[str, str, int], Report] = OrderedDict()

    def get(self, key: tuple[str, str, int]) -> Report | None:
        """The report, if it is still there."""
        with self._lock:
            return self._kept.get(key)

    def put(self, key: tuple[str, str, int], report: Report) -> None:
        """Keep a report in place of the oldest."""
        with self._lock:
            self._kept[key] = report
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)


@blueprint.record_once
def _prepare(state: Any) -> None:
    state.app.extensions[EXTENSION] = KeptReports()


@blueprint.get("/drift")
def drift() -> str:
    """The drift of the model that answers, on one machine."""
    known = known_machines()
    machine = chosen_machine(known)
    report = _report(machine) if machine else None
    seen = report.seen if report else ()
    kinds = [kind for kind, _ in Counter(s.kind for s in seen).most_common()]
    lines = [drifted("all", seen)] if seen else []
    lines += [drifted(kind, [s for s in seen if s.kind == kind]) for kind in kinds]
    return render_template(
        "dashboard/drift.html", known=known, machine=machine, report=report, lines=lines, limit=NEWEST,
        default=context().models.default, chart=chart_of(seen, kinds[:KINDS]) if seen else None,
    )  # fmt: skip


def _report(machine: Machine) -> Report | None:
    """None where no model answers."""
    here = context()
    try:
        model, version = here.models.get()
        since = here.models.registry.manifest(version).created
    except (NotFound, ArtefactError):
        return None
    kept = cast(KeptReports, current_app.extensions[EXTENSION])
    key = version, machine.fingerprint, here.store.browse.newest_id(machine.fingerprint)
    report = kept.get(key)
    if report is None:
        report = _compared(model, version, since, machine)
        kept.put(key, report)
    return report


def _compared(model: PerformanceModel, version: str, since: str, machine: Machine) -> Report:
    """What the version says from the measurements that there were when it was registered, beside the later ones."""
    store, start = context().store, _seconds(since) or 0.0
    newest = store.browse.newest(machine, limit=NEWEST)
    later = [m for m in newest if (time := _time(m)) is not None and time > start]
    ops = {m.op.key: m.op for m in later}
    before: dict[str, list[Measurement]] = {key: [] for key in ops}
    for m in store.measurements(machine=machine.fingerprint, keys=ops) if ops else ():
        if (_time(m) or 0.0) <= start:
            before[m.op.key].append(m)
    untimed = sum(_time(m) is None for m in newest)
    try:
        seen = compare(model, list(ops.values()), before, later, machine) if ops else ()
    except ModelError as error:
        return Report(version, since, (), untimed, str(error))
    return Report(version, since, tuple(seen), untimed)


def compare(
    model: PerformanceModel,
    ops: Sequence[Op],
    before: dict[str, list[Measurement]],
    later: Iterable[Measurement],
    machine: Machine,
) -> Iterable[Seen]:
    """Each later measurement beside the forecast for its case; cases that the machine does not have are left out."""
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
            yield Seen(_time(m) or 0.0, m.op.kind, m.seconds / predicted, within)


def drifted(kind: str, seen: Sequence[Seen]) -> Drifted:
    """The ratios of one kind in a line."""
    ratios = sorted(s.ratio for s in seen)
    low, high = (ratios[round(share * (len(ratios) - 1))] for share in (0.1, 0.9))
    within = sum(s.within for s in seen) / len(seen)
    return Drifted(kind, len(seen), statistics.median(ratios), low, high, within)


def chart_of(seen: Sequence[Seen], kinds: Sequence[str]) -> Chart:
    """Medians by time: of all ops, with a band of the middle 80 %, and of each kind."""
    first, last = min(s.time for s in seen), max(s.time for s in seen)
    step = next((s for s in _STEPS_S if (last - first) / s <= STEPS), _STEPS_S[-1])
    times = sorted({s.time // step * step for s in seen})

    def at(of: Sequence[Seen]) -> dict[float, Drifted]:
        found: dict[float, list[Seen]] = {}
        for s in of:
            found.setdefault(s.time // step * step, []).append(s)
        return {time: drifted("", listed) for time, listed in found.items()}

    every = at(seen)
    marks: Any = "" if len(times) > 1 else "dots"
    lines = [
        Line(
            "all", tuple(every[t].median for t in times), 0, tuple(every[t].low for t in times),
            tuple(every[t].high for t in times), marks,
        )
    ]  # fmt: skip
    for tone, kind in enumerate(kinds, start=1):
        own = at([s for s in seen if s.kind == kind])
        lines.append(Line(kind, tuple(own[t].median if t in own else None for t in times), tone, marks=marks))
    found = [v for line in lines for v in (*line.values, *line.low, *line.high) if v is not None]
    return Chart(
        "observed over predicted by time", tuple(times), tuple(lines), "time, UTC", "observed / predicted", "x",
        y_log=wants_log(found), time=True,
    )  # fmt: skip


def _time(measurement: Measurement) -> float | None:
    return _seconds(str(measurement.conditions.get("time", "")))


def _seconds(text: str) -> float | None:
    """Seconds since 1970 of an ISO 8601 time, which is UTC where it does not say."""
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        return None
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()
