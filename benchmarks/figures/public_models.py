"""The sections of docs/figures/public-models.md: models and graphs that nobody here wrote."""

from __future__ import annotations

from figures.study import Row, Study, by, counted, mean, numbers, table

_JUDGES = {"zoo": "five libraries", "graphnet": "GraphNet"}


def _means(rows: list[Row]) -> str:
    head = [
        "models of", "mode", "models", "right", "by a plan or a backend", "over eager", "over eager or kept",
        "over Inductor", "over both of Inductor's", "slower", "still learning",
    ]  # fmt: skip
    lines = []
    for row in rows:
        ran = f" ({row['inductor_ran']})" if row["inductor_ran"] != row["right"] else ""
        lines.append([
            _JUDGES[row["judge"]], row["mode"], row["models"], row["right"], row["planned"], row["over_eager"],
            row["over_kept"], f"{row['over_inductor']}{ran}", row["over_frozen"], row["slower"], row["learning"],
        ])  # fmt: skip
    left = [f"{_JUDGES[row['judge']]}, {row['mode']}: {row['not_in_means']}" for row in rows if row["not_in_means"]]
    slow = [f"{row['slow']} graphs of {_JUDGES[row['judge']]}" for row in rows if row["slow"] not in ("", "0")]
    said = [f"Not in the means: {'; '.join(left)}."] if left else []
    said += [f"Left out as a step takes longer than 0.6 s: {'; '.join(slow)}."] if slow else []
    return table(head, lines) + "\n\n" + " ".join(said)


MEANS = Study(
    "public_model_means", "public-models",
    ("judge", "mode", "models", "right", "planned", "over_eager", "over_kept", "over_inductor", "inductor_ran",
     "over_frozen", "frozen_ran", "slower", "learning", "not_in_means", "slow", "model_median_s", "all_minutes"),
    _means,
)  # fmt: skip


def _models(rows: list[Row]) -> str:
    lines = []
    sizes = {key: len(found) for key, found in by(rows, "judge", "mode", "library").items()}
    named = (row | {"library": row["library"] if sizes[row["judge"], row["mode"], row["library"]] > 3 else "others"}
             for row in rows)  # fmt: skip
    for (judge, mode, library), found in by(named, "judge", "mode", "library").items():
        right = [row for row in found if row["right"] == "yes"]
        gains, said = numbers(right, "threadcast"), counted(row["runs"].partition(",")[0] for row in found)
        of = library if judge == "zoo" else f"GraphNet: {library}"
        lines.append([of, mode, len(found), mean(right, "threadcast"),
                      f"{min(gains):.2f} to {max(gains):.2f}" if gains else "", said])  # fmt: skip
    return table(["models", "mode", "number", "over eager", "least to most", "run by"], lines)


MODELS = Study(
    "public_models", "public-models",
    ("judge", "mode", "library", "model", "eager_ms", "kept_ms", "inductor_ms", "frozen_ms", "threadcast_ms", "kept",
     "inductor", "frozen", "threadcast", "correct_from", "right", "runs", "runs_then", "learned_s", "learning",
     "others_percent"), _models, MEANS,
)  # fmt: skip


def _scores(rows: list[Row]) -> str:
    shown = ("-6", "-5", "-4", "0")
    lines = [[f"{_JUDGES[row['judge']]}, {row['mode']}", row["way"], *(row[f"s_{t}"] for t in shown), row["es_4"]]
             for row in rows]  # fmt: skip
    return table(["models", "way", *(f"S({t})" for t in shown), "ES(4)"], lines)


SCORES = Study(
    "public_model_scores", "public-models",
    ("judge", "mode", "way", *(f"{score}_{t}" for score in ("s", "es") for t in range(-10, 5))), _scores,
    MEANS,
)  # fmt: skip
STUDIES = (MEANS, MODELS, SCORES)
