"""The sections of docs/figures/planner.md: how close plans come to the best, and what planning takes."""

from __future__ import annotations

from statistics import fmean, median

from figures.study import Row, Study, by, least_to_most, numbers, table

BASELINES = (
    "sequential", "manual_grid", "strategies_1_2", "strategies_1_2_3", "strategies", "critical_path", "cpa",
    "mcpa", "lp_rounding", "ios",
)  # fmt: skip


def _networks(rows: list[Row]) -> str:
    shown = ("search", "sequential", "strategies", "critical_path", "mcpa", "ios")
    machines = [(cores, found) for (cores,), found in by(rows, "cores").items()]
    lines = [
        [cores, *(f"{fmean(found):.2f}" if (found := numbers(own, name)) else "" for name in shown),
         f"{max(numbers(own, 'search')):.3f}", f"{median(numbers(own, 'planned_s')):.1f}"]
        for cores, own in machines
    ]  # fmt: skip
    return table(["cores", *shown, "search, worst", "planned in, s"], lines)


NETWORKS = Study(
    "planner_networks", "planner",
    ("network", "ops", "cores", "limit", "work_over_path", "search", *BASELINES, "planned_s"), _networks,
)  # fmt: skip


def _over(rows: list[Row]) -> str:
    columns = ("baseline", "mean", "worst", "wrong_curves_mean", "wrong_curves_worst")
    left_out = ("strategies_1_2", "strategies_1_2_3")
    lines = ([row[column] for column in columns] for row in rows if row["baseline"] not in left_out)
    head = ["search over", "mean", "worst", "wrong curves", "worst"]
    return table(head, lines)


OVER = Study(
    "planner_over_baselines", "planner",
    ("baseline", "mean", "worst", "wide_mean", "longer", "wrong_curves_mean", "wrong_curves_worst"), _over, NETWORKS,
)  # fmt: skip


def _small(rows: list[Row]) -> str:
    worst = [row for row in rows if row["what"].startswith("over CP-SAT's")]
    return table(["what", "value"], ([row["what"], row["value"]] for row in rows if row not in worst[1:]))


SMALL = Study("planner_small", "planner", ("what", "value"), _small, NETWORKS)


def _scale(rows: list[Row]) -> str:
    lines = [
        [ops, cores, max(found, key=lambda row: float(row["seconds"]))["seconds"],
         max(found, key=lambda row: float(row["peak_mb"]))["peak_mb"],
         *(f"{fmean(numbers(found, name)):.3f}" for name in ("plan", "critical_path", "sequential"))]
        for (ops, cores), found in by(rows, "ops", "cores").items()
    ]  # fmt: skip
    return table(["ops", "cores", "seconds, most", "MB, most", "plan", "critical_path", "sequential"], lines)


SCALE = Study(
    "planner_scale", "planner",
    ("graph", "ops", "cores", "cases", "seconds", "cpu_s", "peak_mb", "plan", "critical_path", "sequential"), _scale,
)  # fmt: skip


def _quick(rows: list[Row]) -> str:
    lines = [
        [ops, cores, *(f"{fmean(numbers(found, name)):.2f}" for name in ("quick_s", "auto_s")),
         *(f"{fmean(numbers(found, name)):.4f}" for name in ("quick_plan", "plan"))]
        for (ops, cores), found in by(rows, "ops", "cores").items()
    ]  # fmt: skip
    return table(["ops", "cores", "quick, s", "auto, s", "quick plan", "auto's"], lines)


QUICK = Study(
    "planner_quick", "planner",
    ("graph", "ops", "cores", "quick_s", "auto_s", "quick_plan", "plan", "critical_path", "sequential"), _quick, SCALE,
)  # fmt: skip


def _kept(rows: list[Row]) -> str:
    shown = {"teams": "teams", "in_memory_mb": "MB in memory", "plan_mb": "MB as JSON",
             "half_mb": "MB for half of the cores", "compressed_mb": "MB of that compressed"}  # fmt: skip
    said = ", ".join(f"{least_to_most(rows, column)} {what}" for column, what in shown.items())
    return f"Plans of {rows[0]['ops']} ops on {rows[0]['cores']} cores: {said}."


KEPT = Study(
    "planner_kept", "planner",
    ("graph", "ops", "cores", "teams", "in_memory_mb", "plan_mb", "half_mb", "compressed_mb"), _kept, SCALE,
)  # fmt: skip
STUDIES = (NETWORKS, OVER, SMALL, SCALE, QUICK, KEPT)
