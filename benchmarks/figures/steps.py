"""The sections of docs/figures/steps.md: what optimised steps gain, by what, and how they begin."""

from __future__ import annotations

from statistics import median

from figures.beginnings import WARMUP
from figures.study import Row, Study, by, counted, mean, numbers, table


def _engine(rows: list[Row]) -> str:
    found_in = {(row["case"], row["mode"]): row for row in rows}
    cases, modes = dict.fromkeys(row["case"] for row in rows), ("training", "inference")
    ratios = ("eager_over_ours", "best_eager_over_ours", "best_other_over_ours")

    def cells(case: str) -> list[str]:
        found = [found_in.get((case, mode)) for mode in modes]
        return [row[column] if row else "" for row in found for column in ratios]

    of_mode = [[row for (_, own), row in found_in.items() if own == mode] for mode in modes]
    means = [mean(own, ratio) for own in of_mode for ratio in ratios]
    head = ["case", *(f"{mode}: {what}" for mode in modes for what in ("eager", "best eager", "best other"))]
    ran = "; ".join(f"{mode}: {counted(row['runs'].partition(',')[0] for row in own)}"
                    for mode, own in zip(modes, of_mode, strict=True))  # fmt: skip
    errors = [
        f"{median(off):.0f} % in {mode}"
        for mode, own in zip(modes, of_mode, strict=True)
        if (off := numbers(own, "forecast_off_percent"))
    ]
    return (
        table(head, [*([case, *cells(case)] for case in cases), ["geometric mean", *means]])
        + f"\n\nRun by: {ran}. Forecasts of plans are off by {' and '.join(errors)} (median)."
    )


ENGINE = Study(
    "engine", "steps",
    ("case", "mode", "eager_ms", "best_eager_ms", "setting", "best_other_ms", "threadcast_ms", "runs",
     "eager_over_ours", "best_eager_over_ours", "best_other_over_ours", "forecast_off_percent", "spread_percent"),
    _engine,
)  # fmt: skip


def _operators(rows: list[Row]) -> str:
    lines = []
    for (operator, of), found in by(rows, "operator", "kind").items():
        gains = numbers(found, "gain")
        lines.append([operator, of, len(found), f"{median(gains):.2f}", f"{min(gains):.2f}",
                      f"{max(gains):.2f}"])  # fmt: skip
    return table(["operator", "of", "sizes and threads", "median gain", "least", "most"], lines)


OPERATORS = Study(
    "operators", "steps",
    ("operator", "kind", "sizes", "of", "threads", "pytorch_us", "threadcast_us", "gain", "gain_low", "gain_high"),
    _operators,
)  # fmt: skip


def _compiled(rows: list[Row]) -> str:
    said, lines, vectors = [], [], by(rows, "vectors")
    for (width,), found in vectors.items():
        for mode, most in (("inference", 1.05), ("training", 1.15)):
            own = [row for row in found if row["mode"] == mode]
            near = sum(ratio <= most for ratio in numbers(own, "backend_over_optimize"))
            slower = sum(ratio < 0.97 for ratio in numbers(own, "eager_over_backend"))
            said.append(
                f"- {width}, {mode}: {near} of {len(own)} within {most:.2f} of *optimize*; {slower} below 0.97 of "
                f"eager's speed; geometric mean {mean(own, 'eager_over_backend')} over eager PyTorch, "
                f"{mean(own, 'inductor_over_backend')} over Inductor."
            )
    ratios = ("eager_over_backend", "backend_over_optimize")
    for (program, mode), found in by(rows, "program", "mode").items():
        own = {row["vectors"]: row for row in found}
        lines.append([f"{program}, {mode}",
                      *(own.get(width, {}).get(ratio, "") for (width,) in vectors for ratio in ratios)])  # fmt: skip
    short = ("eager / backend", "backend / optimize")
    head = ["program", *(f"{width}: {ratio}" for (width,) in vectors for ratio in short)]
    return "\n".join(said) + "\n\n" + table(head, lines)


COMPILED = Study(
    "compiled", "steps",
    ("vectors", "program", "mode", "eager_ms", "eager_spread_percent", "inductor_ms", "inductor_spread_percent",
     "backend_ms", "backend_spread_percent", "optimize_ms", "optimize_spread_percent", "learning",
     "eager_over_backend", "inductor_over_backend", "backend_over_optimize", "runs", "failed", "others_percent"),
    _compiled,
)  # fmt: skip
STUDIES = (ENGINE, WARMUP, OPERATORS, COMPILED)
