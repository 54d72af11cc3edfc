"""The page of `threadcast compare --html`: every model in one table, and plots of it."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from threadcast.cli.charts import bars, lines
from threadcast.cli.model_table import regret, said
from threadcast.core.figures import percent, significant
from threadcast.core.gains import Gain
from threadcast.core.html_page import html_page, html_table

if TYPE_CHECKING:
    from threadcast.models.evaluation import Evaluation
    from threadcast.models.judgement import Row

COLUMNS = (
    ("accuracy", "accuracy %", 100), ("within_10", "within 10 %, %", 100), ("coverage_90", "in 90 % interval, %", 100),
    ("regret_mean", "regret %", 100), ("cost", "cost %", 100), ("call_us", "forecast \u03bcs", 1),
)  # fmt: skip
"""The columns after the model and its samples: (field of a row, title, factor by which its value is multiplied)."""

DETAILS = (
    ("r2", "R2", 1), ("regret_p95", "regret, 95th percentile %", 100),
    ("speedup_over_all", "times as fast as all threads", 1),
    ("speedup_with_model_time", "with a forecast in each run", 1),
    ("fit_s", "fit s", 1), ("predict_us", "a curve of many \u03bcs", 1), ("unusable", "ops lost", 1),
)  # fmt: skip

_ROOMY = {
    "within_10", "coverage_90", "call_us", "r2", "regret_p95", "fit_s", "predict_us", "unusable",
    "speedup_with_model_time",
}  # fmt: skip
"""Fields whose columns a phone does not show."""


def comparison_page(evaluation: Evaluation, *, title: str) -> str:
    """The rows of `evaluation` as an HTML page; `title` says how the models were compared."""
    from threadcast.models.judgement import ranked

    rows = ranked(evaluation.rows)
    by_regret = sorted((row for row in rows if row.regret_mean is not None), key=lambda row: row.regret_mean or 0.0)
    plots = (
        ("Accuracy by samples", lines(_by_samples(rows), x_label="samples", y_label="%")),
        ("Regret: mean, and 95th percentile as a line",
         bars([(_name(row), 100 * (row.regret_mean or 0.0), 100 * (row.regret_p95 or 0.0)) for row in by_regret],
              unit="%")),
    )  # fmt: skip
    body = [
        f"<h1>Models {escape(title)}</h1>",
        f"<p><strong>{escape(said(evaluation.lead))}</strong></p>",
        "<p class=note>Each model sees only the cases that it asked for, of ops that it has not learned from. "
        "Accuracy is 1 - mean(|forecast - measured| / measured) over the other cases; models in bold may be as "
        "accurate as the best (paired bootstrap over ops). Regret is how much longer than the best case the chosen one "
        f"takes, with its standard error. Cost is by how much {rows[0].steps:,} runs of the ops at the chosen cases, "
        f"and measuring the samples, take longer than these runs at the best cases.{escape(_context(rows))}</p>",
        *(f"<p><strong>{escape(doubt)}</strong></p>" for doubt in evaluation.odd_units),
        *models_html(rows),
        "<h2>Speed-ups and times</h2>",
        *models_html(rows, DETAILS)[:1],
        *(f'<h2>{name}</h2><div class="scroll plot" tabindex="0">{plot}</div>' for name, plot in plots),
    ]
    folds = dict.fromkeys(row.fold for row in evaluation.by_fold)
    for fold in folds if len(folds) > 1 else ():
        body += [f"<h2>{escape(fold)}</h2>", *models_html([row for row in evaluation.by_fold if row.fold == fold])]
    return html_page(f"threadcast: models {title}", body)


def models_html(rows: Sequence[Row], columns: Sequence[tuple[str, str, float]] = COLUMNS) -> list[str]:
    """The rows as a table, and below it why accuracies are negative, where some are; `columns` as in `COLUMNS`."""
    cells = []
    for row in rows:
        values = [getattr(row, field) for field, _, _ in columns]
        figures = [
            regret(row) if field == "regret_mean" else _figure(value, by)
            for value, (field, _, by) in zip(values, columns, strict=True)
        ]
        cells.append([row.model, f"{row.samples:.3g}", *figures])
    bold = [i for i, row in enumerate(rows) if row.as_good_as_best]
    return [
        html_table(
            ["model", "cases", *(title for _, title, _ in columns)],
            cells,
            bold=bold,
            roomy=[i for i, (field, _, _) in enumerate(columns, start=2) if field in _ROOMY],
        ),
        *(f"<p class=note>{escape(f'{_name(row)}: {row.worse_than_zero}')}</p>" for row in rows if row.worse_than_zero),
    ]


def _figure(value: float | Gain | None, by: float) -> str:
    if value is None or isinstance(value, Gain):
        return str(value or "-")
    return percent(value) if by == 100 else significant(by * value) if by != 1 or value >= 0 else "<0"


def _by_samples(rows: Sequence[Row]) -> dict[str, list[tuple[float, float]]]:
    """Accuracy in percent, none below 0, of each model by its mean number of samples."""
    found: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        if row.accuracy is not None:
            found.setdefault(row.model, []).append((round(row.samples, 1), max(100 * row.accuracy, 0.0)))
    return {name: sorted(points) for name, points in found.items()}


def _name(row: Row) -> str:
    return f"{row.model}, {row.samples:.3g} samples"


def _context(rows: Sequence[Row]) -> str:
    judged = [row for row in rows if row.regret_all_threads is not None]
    if not judged or judged[0].regret_all_threads is None:
        return ""
    said = f" Always taking all threads has a mean regret of {percent(judged[0].regret_all_threads)} %."
    floor = judged[0].noise_floor
    return said if floor is None else f"{said} One half of the samples tells the other with {100 * floor:.4g} %."
