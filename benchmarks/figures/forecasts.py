"""The sections of docs/figures/forecasts.md: how well models, campaigns and forecasts for other machines do."""

from __future__ import annotations

from statistics import median

from figures.study import Row, Study, by, numbers, table


def _ranged(*columns: str) -> tuple[str, ...]:
    """Each column with the least and the most over seeds."""
    return tuple(name for column in columns for name in (column, f"{column}_low", f"{column}_high"))


_SHOWN = ("learned_curve", "static_xgboost", "hill_climb, interval 4", "universal_scalability")


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


STUDIES = (MODELS, PROFILING, NEW_MACHINE, NEW_MACHINE_OWN)
