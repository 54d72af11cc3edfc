"""The section of docs/figures/papers.md: the papers' tables beside the simulated Xeon Phi's."""

from __future__ import annotations

from figures.study import Row, Study, by, table


def _tables(rows: list[Row]) -> str:
    parts = []
    for (title, mean_off), found in by(rows, "title", "mean_off").items():
        if found[0]["table"] == "table_1_ms":
            parts.append(f"**{title}.** Off by {mean_off} on average.")
            continue
        columns, lines = list(dict.fromkeys(row["column"] for row in found)), []
        for (case,), own in by((row for row in found if not row["case"].startswith("r2")), "case").items():
            cells = {row["column"]: f"{row['simulated']} ({row['paper']})" for row in own}
            lines.append([case, *(cells.get(column, "") for column in columns)])
        parts.append(f"**{title}.** Off by {mean_off} on average.\n\n{table(['', *columns], lines)}")
    return "\n\n".join(parts)


PAPER_TABLES = Study(
    "paper_tables", "papers",
    ("table", "title", "mean_off", "column", "case", "simulated", "paper", "off"), _tables,
)  # fmt: skip


_OF_TABLE_IV = ("gradient_boosting", "k_neighbors", "ols", "passive_aggressive", "theil_sen")


def _protocol(rows: list[Row]) -> str:
    shown = {("simulated", "linear", "4"): "seconds", ("simulated", "log", "4"): "logarithms",
             ("recorded", "linear", "1"): "recorded, 1 sample"}  # fmt: skip
    lines = []
    for (model,), found in by(rows, "model").items():
        if model in _OF_TABLE_IV:
            continue
        accuracy = {(row["machine"], row["scale"], row["samples"]): row["accuracy"] for row in found}
        values = [accuracy.get(key, "") for key in shown]
        lines.append([model, *(f"{100 * float(value):.0f} %" if value else "" for value in values)])
    return table(["accuracy, 4 samples", *shown.values()], lines)


PROTOCOL = Study(
    "paper_protocol", "papers",
    ("machine", "scale", "samples", "model", "accuracy", "r2", "regret", "ops", "learned_ops"), _protocol,
)  # fmt: skip
STUDIES = (PAPER_TABLES, PROTOCOL)
