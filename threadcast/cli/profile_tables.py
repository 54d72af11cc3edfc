"""What `threadcast profile` prints: a document for --json, and its tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from statistics import median
from typing import TYPE_CHECKING, Any

from threadcast.cli.output import table
from threadcast.collector.busy import load_document
from threadcast.core.figures import duration, percent

if TYPE_CHECKING:
    from threadcast.capture.graph.captured import Captured
    from threadcast.collector.busy import LoadWatch
    from threadcast.collector.campaign_report import CampaignReport
    from threadcast.collector.timing import Goal
    from threadcast.core import Case, CurveTable, Machine, OpGraph

SHOWN_OPS = 10


def case_row(
    captured: Captured, report: CampaignReport, machine: Machine, case: Case, goal: Goal, curves: CurveTable | None,
    watch: LoadWatch,
) -> dict[str, Any]:  # fmt: skip
    """The step timed in this case, once more if others disturbed it, beside the sum of its ops alone.

    `curves` are those of the graph's distinct ops, forecast where they were not measured; without them the sum is None
    unless all were measured.
    """
    from threadcast.collector.steps import lone_sum_s, time_step

    for _ in range(2):
        watch.recent()
        step = time_step(captured.run, machine, case, goal=goal)
        load = watch.recent()
        disturbed = load is not None and load.disturbs
        if not disturbed:
            break
    step_s = median(sample.seconds for sample in step.samples)
    forecast = [key for key, found in report.observed.items() if all(m.case != case for m in found)]
    sum_s = lone_sum_s(captured.graph, report.observed, case)
    if sum_s is None and curves is not None:
        runs = Counter(op.key for op in captured.graph.ops)
        at_case = curves.seconds[:, curves.cases.index(case)]
        sum_s = float(sum(runs[key] * seconds for key, seconds in zip(captured.graph.distinct_ops(), at_case)))
    return {
        "threads": case.threads, "affinity": case.affinity.value, "ops_alone_s": sum_s, "step_s": step_s,
        "ratio": None if sum_s is None else sum_s / step_s, "step_converged": step.converged,
        "disturbed": disturbed,
        "forecast_ops": len(forecast),
    }  # fmt: skip


def summary(graph: OpGraph, report: CampaignReport, machine: Machine) -> dict[str, Any]:
    """Counts and shares of a campaign."""
    found = [measurement for known in report.observed.values() for measurement in known]
    converged = sum(bool(measurement.conditions.get("converged")) for measurement in found)
    legal = len(report.observed) * len(machine.cases())
    return {
        "ops": len(graph), "distinct_ops": len(report.observed), "measured": report.measured,
        "reused": report.reused, "failed": dict(report.failed),
        "converged_share": converged / len(found) if found else None, "timing_s": report.elapsed_s,
        **_load(report, len(found)), "disturbed_cases": report.disturbed, "repeated": report.repeated,
        "legal_cases": legal, "measured_share": _measured_cases(report) / legal if legal else None,
        "expected_regret": report.expected.step if report.expected else None,
        "expected_regret_mean": report.expected.mean if report.expected else None,
        "checked_ops": report.checked.ops if report.checked else 0,
        "checked_regret_mean": report.checked.mean if report.checked else None, "drift": report.drift,
    }  # fmt: skip


def _load(report: CampaignReport, cases: int) -> dict[str, Any]:
    what = f"times in {report.disturbed} of {cases} cases ({report.repeated} were measured again)"
    document = load_document(report.load, disturbed=report.disturbed > 0, what=what)
    return document if report.load or report.measured else document | {"load": None}


def _measured_cases(report: CampaignReport) -> int:
    return sum(len({m.case for m in known}) for known in report.observed.values())


def choice_rows(graph: OpGraph, report: CampaignReport) -> list[dict[str, Any]]:
    """The chosen case of each distinct op, those with most time in a step first."""
    runs = Counter(op.key for op in graph.ops)
    rows = [
        {
            "op": key, "runs": runs[key], "threads": choice.case.threads, "affinity": choice.case.affinity.value,
            "seconds_s": choice.seconds,
            "source": "measured" if any(m.case == choice.case for m in report.observed[key]) else "forecast",
            "measured_cases": len({m.case for m in report.observed[key]}), "expected_regret": choice.expected_regret,
        }
        for key, choice in report.choices.items()
    ]  # fmt: skip
    return sorted(rows, key=lambda row: -row["runs"] * row["seconds_s"])


def shown(document: dict[str, Any]) -> list[Any]:
    """The document as text and tables."""
    share = document["converged_share"]
    lines = [
        f"{document['graph']} on {document['machine']}",
        f"{document['ops']} ops, {document['distinct_ops']} distinct: {document['measured']} measurements in "
        f"{duration(document['timing_s'])}, {document['reused']} known before, {len(document['failed'])} ops failed"
        + ("" if share is None else f"; {share:.0%} within the tolerance"),
        *([document["load"]] if document["load"] else []),
    ]
    if document["model"] is not None:
        lines.append(_decided(document))
    columns = ["threads", "affinity", "ops_alone_s", "step_s", "ratio"]
    if document["model"] is not None:
        columns.append("forecast_ops")
    tables = [table([name.replace("_ops", " ops") if name == "forecast_ops" else name for name in columns],
                    [["disturbed" if row["disturbed"] and column == "ratio" else row[column] for column in columns]
                     for row in document["cases"]])]  # fmt: skip
    if document["choices"]:
        tables.append(_choice_table(document["choices"]))
    return [*lines, *tables]


def _decided(document: dict[str, Any]) -> str:
    """A sentence on what the model decided by."""
    share, step, mean = (document[key] for key in ("measured_share", "expected_regret", "expected_regret_mean"))
    text = f"by {document['model']}: {100 * share:.3g} % of {document['legal_cases']} cases measured, the rest forecast"
    if step is not None:
        text += f"; expected regret of the step {percent(step, 2)} %, mean of the ops {percent(mean, 2)} %"
    if document["checked_regret_mean"] is not None:
        text += f", {percent(document['checked_regret_mean'], 2)} % on a check of {document['checked_ops']} ops"
    return text


def _choice_table(rows: Sequence[dict[str, Any]]) -> Any:
    columns = ("op", "runs", "case", "seconds_s", "source", "regret %")
    cells = [
        [
            row["op"], row["runs"], f"{row['threads']} {row['affinity']}", row["seconds_s"], row["source"],
            percent(row["expected_regret"]),
        ]
        for row in rows[:SHOWN_OPS]
    ]  # fmt: skip
    more = f" of {len(rows)}" if len(rows) > SHOWN_OPS else ""
    return table(
        columns,
        cells,
        title=f"the {min(len(rows), SHOWN_OPS)} ops{more} with most time, and their expected regret",
        unneeded=(("source",), ("runs",)),
    )
