"""The sections of docs/figures/forecasts.md: how well models, intervals, campaigns and changes do."""

from __future__ import annotations

from statistics import median

from figures.study import Row, Study, by, numbers, span, table


def _ranged(*columns: str) -> tuple[str, ...]:
    """Each column with the least and the most over seeds."""
    return tuple(name for column in columns for name in (column, f"{column}_low", f"{column}_high"))


_SHOWN = ("learned_curve", "static_xgboost", "patient_climb, log", "hill_climb, interval 4", "overhead_law")


def _models(rows: list[Row]) -> str:
    lines, regressors = [], ""
    for (part, all_threads), found in by(rows, "part", "regret_all_threads").items():
        if part.startswith("Table IV"):
            regressors = f"**{part}**, accuracy:\n\n{_by_samples(found)}"
            continue
        own = [row for row in found if row["model"].startswith(_SHOWN)]
        firsts = [f"{part.partition(', a fifth')[0]} ({all_threads})", *[""] * (len(own) - 1)]
        lines += [
            [first, row["model"].partition(" (")[0], row["samples"], row["accuracy"], row["coverage_90"], row["regret"],
             row["regret_p95"]]
            for first, row in zip(firsts, own, strict=True)
        ]  # fmt: skip
    head = ["set (regret of all threads)", "model", "samples", "accuracy", "holds", "regret", "p95"]
    return f"{table(head, lines, empty='')}\n\n{regressors}"


def _by_samples(rows: list[Row]) -> str:
    counts = list(dict.fromkeys(round(float(row["samples"])) for row in rows))
    found: dict[str, list[str]] = {}
    for row in rows:
        found.setdefault(row["model"].partition(",")[0], []).append(row["accuracy"])
    return table(["model, samples", *counts], ([name, *accuracies] for name, accuracies in found.items()))


MODELS = Study(
    "models", "forecasts",
    ("part", "regret_all_threads", "noise_floor", "model", "unusable", "seeds", "samples",
     *_ranged("accuracy", "within_10", "coverage_90", "regret", "regret_p95", "speedup_over_all",
              "speedup_with_model_time"), "us_a_curve", "us_a_call"), _models,
)  # fmt: skip


def _speed(rows: list[Row]) -> str:
    folds = [row for row in rows if row["what"].startswith("a fold, ")]
    lines = [[row["what"], f"{row['value']} {row['unit']}"] for row in rows if row not in folds]
    listed = ", ".join(f"{row['what'].removeprefix('a fold, ')} {row['value']}" for row in folds[:6])
    said = f"A fold of 300 ops at 96 cases, CPU seconds of the {min(6, len(folds))} slowest of {len(folds)} models: "
    return table(["what", "takes"], lines) + (f"\n\n{said}{listed}." if folds else "")


SPEED = Study("model_speed", "forecasts", ("what", "value", "unit"), _speed)


def _profiling(rows: list[Row]) -> str:
    lines = []
    for (rival,), found in by(rows, "rival").items():
        regret, step = numbers(found, "regret_percent"), numbers(found, "step_percent")
        learning = numbers(found, "learning_s")
        lines.append([
            rival, f"{median(numbers(found, 'cases_an_op')):.1f}",
            *(f"{value:g}" for value in (median(numbers(found, "measured_percent")), median(regret), max(regret),
                                         median(step), max(step))),
            f"{median(learning):.1f}" if learning else "",
        ])  # fmt: skip
    head = ["decided by", "cases an op", "measured, %", "regret, %", "worst", "of the step, %", "worst", "seconds"]
    return table(head, lines)


PROFILING = Study(
    "profiling", "forecasts",
    ("network", "ops", "rival", "cases_an_op", "measured_percent", "expected_regret_percent", "checked_percent",
     "regret_percent", "regret_p95_percent", "step_percent", "learning_s"), _profiling,
)  # fmt: skip


def _new_machine(rows: list[Row]) -> str:
    shown = ("0", "5", "30")
    lines = []
    for (machine, prior), found in by(rows, "machine", "prior").items():
        own = {row["ops_measured"]: row for row in found}
        lines.append([machine.partition(" (")[0], prior,
                      *(own[count][column] for column in ("factor", "regret_percent") for count in shown),
                      own["0"]["all_cores_percent"]])  # fmt: skip
    head = [f"{what}, {count} ops" for what in ("factor", "regret") for count in shown]
    return table(["machine", "prior", *head, "all cores"], lines)


NEW_MACHINE = Study(
    "new_machine", "forecasts",
    ("machine", "prior", "ops_measured", "factor", "regret_percent", "all_cores_percent", "holds_percent", "width"),
    _new_machine,
)  # fmt: skip


def _new_machine_own(rows: list[Row]) -> str:
    counts = list(dict.fromkeys(row["samples"] for row in rows))
    lines = []
    for (machine,), found in by(rows, "machine").items():
        cells = [row[column] for column in ("factor", "regret_percent") for row in found]
        lines.append([machine.partition(" (")[0], *cells])
    head = [f"{what}, {count}" for what in ("factor", "regret") for count in counts]
    return table(["machine, samples an op", *head], lines)


NEW_MACHINE_OWN = Study(
    "new_machine_own", "forecasts",
    ("machine", "samples", "factor", "regret_percent", "all_cores_percent", "holds_percent", "width"),
    _new_machine_own, NEW_MACHINE,
)  # fmt: skip


def _intervals(rows: list[Row]) -> str:
    columns = list(dict.fromkeys((row["set"], row["samples"] or "0") for row in rows if row["all_percent"]))
    lines = []
    alike = ("universal_scalability", "roofline_saturation")  # as overhead_law, of which they are variants
    for (model,), found in by((row for row in rows if row["model"] not in alike), "model").items():
        own = {(row["set"], row["samples"] or "0"): row for row in found if row["all_percent"]}
        cells = (own.get(column) for column in columns)
        lines.append([model, *(row["all_percent"] + " (!)" * (row["holds"] == "no") if row else "" for row in cells)])
    head = [f"{name}, {samples}" for name, samples in columns]
    return table(["model; set, samples", *head], lines)


INTERVALS = Study(
    "intervals", "forecasts",
    ("set", "splits", "model", "samples", "points", "all_percent", "near_percent", "middle_percent", "far_percent",
     "unknown_kind_percent", "holds"), _intervals,
)  # fmt: skip


def _changes(rows: list[Row]) -> str:
    shown = {"single": "false, single", "of_three_in_order": "false, of three, in order", "found_1.5x_after_3": "1.5x",
             "found_2x_after_3": "2x", "found_3x_after_3": "3x"}  # fmt: skip
    return table(["rule", *shown.values()], ([row["rule"], *(row[column] for column in shown)] for row in rows))


CHANGES = Study(
    "changes", "forecasts",
    ("rule", "single", "single_sessions", "of_three_sessions", "single_in_order", "of_three_in_order",
     *(f"found_{factor}x_after_3" for factor in ("1.5", "2", "3", "0.333")),
     *(f"found_3x_after_{new}" for new in (1, 2, 5))), _changes,
)  # fmt: skip


def _corun(rows: list[Row]) -> str:
    columns = ("set", "pairs", "classes_left", "error", "error_of_none", "error_of_mean", "inside_percent", "width")
    head = ["ops", "pairs", "classes left", "error", "of 1.0", "of the mean", "in the interval, %", "high / low"]
    return table(head, ([row[column] for column in columns] for row in rows if row["pairs"] in ("0", "4")))


CORUN = Study(
    "corun", "forecasts",
    ("set", "pairs", "classes_left", "error", "error_of_none", "error_of_mean", "inside_percent", "width"), _corun,
)  # fmt: skip


def _corun_paper(rows: list[Row]) -> str:
    last = {row["class"]: row for row in rows}
    return (
        "; ".join(
            f"{name}: {span(row, 'forecast')} from {row['pairs']} pairs of the other class, measured {row['measured']}"
            for name, row in last.items()
        )
        + "."
    )


CORUN_PAPER = Study(
    "corun_paper", "forecasts",
    ("class", "pairs", "forecast", "forecast_low", "forecast_high", "mean_of_measured", "measured"), _corun_paper,
    CORUN,
)  # fmt: skip


def _corun_plans(rows: list[Row]) -> str:
    columns = ("nothing_ms", "few_ms", "few_and_forecasts_ms", "every_ms")
    return "; ".join(f"{row['network']}: {' / '.join(row[column] for column in columns)} ms" for row in rows) + "."


CORUN_PLANS = Study(
    "corun_plans", "forecasts",
    ("network", "ops", "nothing_ms", "few_ms", "few_and_forecasts_ms", "every_ms"), _corun_plans, CORUN,
)  # fmt: skip
STUDIES = (
    MODELS, SPEED, PROFILING, NEW_MACHINE, NEW_MACHINE_OWN, INTERVALS, CHANGES, CORUN, CORUN_PAPER,
    CORUN_PLANS,
)  # fmt: skip
