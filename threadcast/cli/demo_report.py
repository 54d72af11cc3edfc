"""The demo's page: gains, errors of each model's forecasts, curves, and predicted and actual timelines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from threadcast.cli.charts import CurvePlot, colours_of, curve_plot, timeline
from threadcast.cli.html_page import html_page, html_table
from threadcast.core import OpGraph, Plan, Trace
from threadcast.core.figures import duration, significant


@dataclass(frozen=True, slots=True)
class RunReport:
    """One workload: its plan, the trace of its run, and the step times side by side."""

    name: str
    graph: OpGraph
    plan: Plan
    trace: Trace
    default_step_s: float
    planned_step_s: float
    spread: str
    """95 % interval of the ratio of default to planned step time, as text."""
    kept: str
    """The faster of the two, which the guard keeps: "plan" or "default"."""
    plots: Sequence[CurvePlot]


_STEP_COLUMNS = (
    "network", "ops", "default", "planned", "gain", "predicted", "lower bound", "95 % interval of gain", "guard keeps",
)  # fmt: skip


def page(*, machine: str, runs: Sequence[RunReport], models: Sequence[dict[str, Any]], facts: Sequence[str]) -> str:
    """The whole report as one HTML file without links to other files. `models` are evaluation rows."""
    body = [
        "<h1>threadcast: what the demo measured</h1>",
        f"<p class=note>{escape(machine)}. Times are medians of interleaved steps on this machine.</p>",
        "<ul>" + "".join(f"<li>{escape(fact)}</li>" for fact in facts) + "</ul>",
        "<h2>Step times</h2>",
        html_table(_STEP_COLUMNS, [_step_row(run) for run in runs]),
        "<p class=note>Default: eager PyTorch with all threads. Lower bound: no schedule of these ops, each alone "
        "as fast as it was measured, is shorter. The guard keeps the plan where it was faster beyond doubt.</p>",
        "<h2>How well each model forecasts</h2>",
        "<p class=note>Leave one network out: the model learns on the other networks, then sees only the samples it "
        "asked for. Accuracy is 1 - mean(|predicted - measured| / measured) over the cases it did not see; regret is "
        "the time lost by running an op at the thread count that the model chose.</p>",
        _model_table(models),
    ]
    for run in runs:
        body += _run_section(run)
    return html_page("threadcast demo", body)


def _step_row(run: RunReport) -> list[str]:
    gain = f"{run.default_step_s / run.planned_step_s:.2f}x"
    return [
        run.name, f"{len(run.graph):,}", duration(run.default_step_s), duration(run.planned_step_s), gain,
        duration(run.plan.makespan_s), duration(run.plan.lower_bound_s), run.spread, run.kept,
    ]  # fmt: skip


def _model_table(models: Sequence[dict[str, Any]]) -> str:
    columns = ["model", "samples", "accuracy", "r2", "regret_mean", "regret_p95", "fit_s", "predict_us"]
    rows = []
    for row in models:
        numbers = [row.get(column) for column in columns[1:]]
        rows.append([str(row["model"]), *("-" if n is None or n != n else significant(float(n)) for n in numbers)])
    return html_table(columns, rows)


def _run_section(run: RunReport) -> list[str]:
    by_kind: dict[str, float] = {}
    kinds = dict(zip(run.graph.ids, (op.kind for op in run.graph.ops)))
    for placed in run.plan.ops:
        by_kind[kinds[placed.id]] = by_kind.get(kinds[placed.id], 0.0) + placed.duration_s
    ordered = sorted(by_kind, key=by_kind.__getitem__, reverse=True)
    colours = colours_of(ordered)
    span_s = max(run.plan.makespan_s, run.trace.makespan_s)
    legend = "".join(
        f'<span class=key><span class=swatch style="background:{colours[kind]}"></span>{escape(kind)}</span> '
        for kind in ordered[:10]
    )
    return [
        f"<h2>{escape(run.name)}</h2>",
        f"<p>{legend}</p>",
        f"<h3>Predicted: {duration(run.plan.makespan_s)} by {escape(run.plan.policy)}</h3>",
        timeline(run.plan, run.graph, span_s=span_s, colours=colours),
        f"<h3>Actual: {duration(run.trace.makespan_s)}</h3>",
        timeline(run.trace, run.graph, span_s=span_s, colours=colours),
        "<h3>Curves of its heaviest operations: line predicted, dots measured, threads to the right</h3>",
        '<div class="curves">' + "".join(curve_plot(plot) for plot in run.plots) + "</div>",
    ]
