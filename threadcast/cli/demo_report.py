"""The demo's page: gains, errors of each model's forecasts, curves, and timelines: predicted and of a traced step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

from threadcast.cli.charts import CurvePlot, curve_plot
from threadcast.cli.model_table import regret
from threadcast.core import OpGraph, Plan, Trace
from threadcast.core.figures import duration, percent, significant
from threadcast.core.gains import Gain
from threadcast.drawing.html_page import html_page, html_table
from threadcast.drawing.timeline_svg import kinds_of, painted, timeline

if TYPE_CHECKING:
    from threadcast.models.judgement import Row
    from threadcast.runtime.tuner.guard import Verdict


@dataclass(frozen=True, slots=True)
class RunReport:
    """One workload: its plan, the trace of its run, and the step times side by side."""

    name: str
    graph: OpGraph
    plan: Plan
    trace: Trace
    default_step_s: float
    planned_step_s: float
    verdict: Verdict
    """The gain of the plan, with its interval, and which of both the guard keeps."""
    plots: Sequence[CurvePlot]
    disturbed: bool = False
    """Whether others used the CPUs in the steps that count."""
    interval: str = "95 % interval"
    forecast_disturbed: bool = False
    """Whether others used the CPUs while most of its ops were measured."""

    @property
    def why_default(self) -> str:
        """Why the guard keeps the default, where it does; else empty."""
        kept = self.verdict.kept == "default"
        return f"{self.name} keeps the default: the plan was {self.verdict.against('it')}." if kept else ""

    @property
    def predicted(self) -> str:
        """The predicted time of a step."""
        return "disturbed" if self.forecast_disturbed else duration(self.plan.makespan_s)


_MODEL_COLUMNS = (
    ("accuracy", "accuracy %", 100), ("r2", "R2", 1), ("regret_mean", "regret, mean %", 100),
    ("regret_p95", "regret, 95th percentile %", 100), ("cost", "cost %", 100), ("fit_s", "fit s", 1),
    ("predict_us", "us a curve", 1),
)  # fmt: skip
_STEP_COLUMNS = (
    "network", "ops", "default", "planned", "gain, interval", "predicted", "lower bound", "guard keeps",
)  # fmt: skip


def page(
    *, verdict: str, machine: str, runs: Sequence[RunReport], models: Sequence[Row], remark: str,
    facts: Sequence[str],
) -> str:  # fmt: skip
    """The whole report as one HTML file without links to other files. `models` are evaluation rows; `remark` says why
    there are none."""
    body = [
        "<h1>threadcast: what the demo measured</h1>",
        f"<p><strong>{escape(verdict)}</strong></p>",
        f"<p class=note>{escape(machine)}. Times are medians of interleaved steps on this machine.</p>",
        "<ul>" + "".join(f"<li>{escape(fact)}</li>" for fact in facts) + "</ul>",
        "<h2>Step times</h2>",
        html_table(_STEP_COLUMNS, [_step_row(run) for run in runs]),
        "<p class=note>Default: eager PyTorch with all threads. Lower bound: no schedule of these ops, each alone "
        "as fast as it was measured, is shorter. Gain: the median of the ratios of neighbouring steps. The guard keeps "
        f"the plan where it was faster beyond doubt. {escape(' '.join(run.why_default for run in runs))}</p>",
        "<h2>How well each model forecasts</h2>",
        *(_model_table(models) if models else [f"<p class=note>{escape(remark)}</p>"]),
    ]
    for run in runs:
        body += _section(run.name.replace(" ", "-"), _run_section(run))
    return html_page("threadcast demo", body)


def _step_row(run: RunReport) -> list[str]:
    return [
        run.name, f"{len(run.graph):,}", duration(run.default_step_s), duration(run.planned_step_s), str(run.verdict),
        run.predicted, "disturbed" if run.forecast_disturbed else duration(run.plan.lower_bound_s),
        run.verdict.kept,
    ]  # fmt: skip


def _model_table(models: Sequence[Row]) -> list[str]:
    """The models, and below the table why accuracies are negative."""
    how = (
        "<p class=note>One network left out: the model learns on the others, then sees only the samples it "
        "asked for. Accuracy is 1 - mean(|predicted - measured| / measured) over the cases it did not see; regret is "
        "the time lost by running an op at the thread count that the model chose. Cost is by how much "
        f"{models[0].steps:,} runs at these thread counts, and measuring the samples, take longer than these runs at "
        "the best ones; the model that costs least is on top and serves. Bold: may be as accurate as the best.</p>"
    )
    table, *reasons = _models_html(models, _MODEL_COLUMNS)
    if not reasons:
        return [how, table]
    return [how, table, "<details><summary>Why accuracies are negative</summary>", *reasons, "</details>"]


def _models_html(rows: Sequence[Row], columns: Sequence[tuple[str, str, float]]) -> list[str]:
    """The rows as a table, and below it why accuracies are negative, where some are; `columns` are fields of a
    row, titles, and factors by which values are multiplied."""
    cells = []
    for row in rows:
        values = [getattr(row, field) for field, _, _ in columns]
        figures = [
            regret(row) if field == "regret_mean" else _figure(value, by)
            for value, (field, _, by) in zip(values, columns, strict=True)
        ]
        cells.append([row.model, f"{row.samples:.3g}", *figures])
    bold = [i for i, row in enumerate(rows) if row.as_good_as_best]
    titles = ["model", "cases", *(title for _, title, _ in columns)]
    reasons = (row for row in rows if row.worse_than_zero)
    return [
        html_table(titles, cells, bold=bold),
        *(f"<p class=note>{escape(f'{_name(row)}: {row.worse_than_zero}')}</p>" for row in reasons),
    ]


def _figure(value: float | Gain | None, by: float) -> str:
    if value is None or isinstance(value, Gain):
        return str(value or "-")
    return percent(value) if by == 100 else significant(by * value) if by != 1 or value >= 0 else "<0"


def _name(row: Row) -> str:
    return f"{row.model}, {row.samples:.3g} samples"


def _section(name: str, body: Sequence[str]) -> list[str]:
    return [f'<section id="{escape(name)}">', *body, "</section>"]


def _run_section(run: RunReport) -> list[str]:
    kinds = kinds_of(run.graph)
    paints, legend = painted(run.plan, kinds)
    span_s = max(run.plan.makespan_s, run.trace.makespan_s)
    return [
        f"<h2>{escape(run.name)}</h2>",
        f"<p class=note>{_median_beside_predicted(run)}</p>",
        legend,
        f"<h3>Predicted: {duration(run.plan.makespan_s)} by {escape(run.plan.policy)}</h3>",
        timeline(run.plan, kinds, span_s=span_s, paints=paints),
        f"<h3>One traced step: {duration(run.trace.makespan_s)}</h3>",
        timeline(run.trace, kinds, span_s=span_s, paints=paints),
        "<h3>Curves of its heaviest operations: line predicted, dots measured, threads to the right</h3>",
        '<div class="curves">' + "".join(curve_plot(plot) for plot in run.plots) + "</div>",
    ]


def _median_beside_predicted(run: RunReport) -> str:
    median, predicted_s = f"The median planned step took {duration(run.planned_step_s)}", run.plan.makespan_s
    if run.forecast_disturbed:
        return f"{median}. Others used the cores while its operations were measured: the prediction says little."
    return f"{median}, {run.planned_step_s / predicted_s:.2f}x of the prediction." if predicted_s else f"{median}."
