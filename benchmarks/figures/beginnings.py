"""The section of docs/figures/steps.md on how steps begin, and its picture."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import geometric_mean, median

from figures.study import ROOT, Row, Study, by, numbers, table

PICTURE = ROOT / "docs" / "images" / "warmup.svg"
HORIZONS_S = (5, 10, 30, 60, 120)
OURS = ("optimize", "backend")
"""Ways of threadcast: `optimize` and `optimize_training`, and torch.compile's backend, which scripts have."""
LOUD = 10.0
"""Percent of the cores' time: where others use more, times are theirs as much as ours."""
_COLOURS = {"first": "#ee6677", "second": "#228833", "inductor": "#4477aa"}


def _ours(rows: Iterable[Row], process: str = "first") -> list[Row]:
    return [row for row in rows if row["way"] in OURS and row["process"] == process]


def _inductor(rows: Iterable[Row], at: int, process: str = "first") -> dict[tuple[str, str], float]:
    """What Inductor has done after `at` seconds, by name and mode, at the best of its settings at that time."""
    own = [row for row in rows if row["way"].startswith("inductor") and row["process"] == process]
    found = {key: numbers(of_case, f"done_{at}") for key, of_case in by(own, "name", "mode").items()}
    return {(key[0], key[1]): max(values) for key, values in found.items() if values}


def _short(row: Row, column: str) -> str:
    return f"{float(row[column]):.2f}" if row[column] else ""


def _middle(values: Sequence[float]) -> str:
    return f"{median(values):.2f}" if values else ""


def _done(rows: list[Row], process: str) -> list[list[object]]:
    """Two lines: what threadcast and Inductor have done at each time, and how often threadcast has done more."""
    ours, theirs = _ours(rows, process), {at: _inductor(rows, at, process) for at in HORIZONS_S}
    lines: list[list[object]] = [[], []]
    for at in HORIZONS_S:
        own = {(row["name"], row["mode"]): float(row[f"done_{at}"]) for row in ours if row[f"done_{at}"]}
        both = own.keys() & theirs[at].keys()
        over = sum(value >= 1 for value in own.values())
        more = f"; {sum(own[key] > theirs[at][key] for key in both)} of {len(both)}" if both else ""
        lines[0].append(f"{_middle(list(own.values()))} ({over} of {len(own)}{more})" if own else "")
        lines[1].append(_middle(list(theirs[at].values())))
    return lines


def _zoo(rows: list[Row]) -> str:
    lines: list[list[object]] = []
    said = []
    for (mode,), found in by(rows, "mode").items():
        first, learned = _ours(found), _ours(found, "learned")
        until, within = numbers(first, "to_95_s"), sum(row["within"] == "yes" for row in first)
        if first:
            after = f" after {median(until):.1f} s (median)" if until else ""
            said.append(
                f"- {mode}, {len(first)} models: {within} within, worst lag "
                f"{max([*numbers(first, 'worst_lag_s'), 0.0]):.1f} s; 95 % of settled speed reached by {len(until)}"
                f"{after}."
            )
        if shares := numbers(learned, "of_best"):
            longer = numbers(_ours(found, "learned for long"), "settled")
            said.append(
                f"- {mode}, {len(shares)} models after 8 s of `learn`: {median(shares):.2f} of the best speed of their "
                f"processes (median; least {min(shares):.2f})"
                + (f"; after 60 s {geometric_mean(longer):.2f} times as fast as eager PyTorch" if longer else "")
                + "."
            )
        if failed := dict.fromkeys(row["name"] for row in found if row["failed"] and row["way"] in OURS):
            said.append(f"- {mode}, failed: {', '.join(failed)}.")
        for process in ("first", "second"):
            speed = _middle(numbers(_ours(found, process), "settled"))
            ours, theirs = _done(found, process)
            settled = by(
                (row for row in found if row["way"].startswith("inductor") and row["process"] == process), "name"
            )
            best = [max(values) for own in settled.values() if (values := numbers(own, "settled"))]
            if _ours(found, process):
                lines.append([f"{mode}, {process} process: threadcast", speed, *ours])
                if any(theirs):
                    lines.append(["Inductor", _middle(best), *theirs])
    head = ["medians over models", "settled", *(f"after {at} s" for at in HORIZONS_S)]
    return "\n".join(said) + "\n\n" + table(head, lines)


def _scripts(rows: list[Row]) -> str:
    lines = []
    with_ours = ((name, found) for (name,), found in by(rows, "name").items() if _ours(found))
    for name, found in with_ours:
        (first, *_), second = _ours(found), _ours(found, "second")
        ours = [_short(first, column) for column in ("behind_10_s", "behind_30_s", "settled")]
        later = _short(second[0], "behind_10_s") if second else ""
        done = [_short(first, f"done_{at}") for at in HORIZONS_S[2:]]
        theirs = [f"{value:.2f}" if value is not None else "" for at in HORIZONS_S[2:]
                  for value in [_inductor(found, at).get((name, first["mode"]))]]  # fmt: skip
        lines.append([name, first["data"], first["eager_ms"], *ours, later, *done, *theirs])
    head = ["script", "data", "eager, ms a step", "behind at 10 s", "at 30 s", "settled", "at 10 s, second process",
            *(f"{who} {at} s" for who in ("after", "Inductor after") for at in HORIZONS_S[2:])]  # fmt: skip
    return table(head, lines)


def _pairs(rows: list[Row]) -> str:
    alone = {row["name"]: _short(row, "settled") for row in rows if not row["beside"]}
    lines = [[row["name"], row["beside"].partition(",")[0], alone.get(row["name"], ""), _short(row, "settled"),
              _short(row, "over_alone")] for row in rows if row["beside"]]  # fmt: skip
    good = sum(ratio >= 0.97 for ratio in numbers(rows, "over_alone"))
    said = f"{good} of {len(lines)} reach 0.97 of what they reach alone."
    return said + "\n\n" + table(["function", "beside", "alone", "beside it", "of alone"], lines)


def _shapes(rows: list[Row]) -> str:
    head = ["sequence", "calls", "seconds", "settled", "worst lag, s", "within"]
    return table(
        head, ([row[one] for one in ("name", "calls", "seconds", "settled", "worst_lag_s", "within")] for row in rows)
    )


_PARTS = {
    "zoo": ("Models of five libraries", _zoo), "scripts": ("Whole public scripts", _scripts),
    "pairs": ("Two functions of a process", _pairs), "shapes": ("Calls whose shapes change", _shapes),
}  # fmt: skip


def _show(rows: list[Row]) -> str:
    parts = {part: found for (part,), found in by(rows, "part").items()}
    others = numbers(rows, "others_percent")
    quiet = f"Other programs used {median(others):.0f} % of the cores meanwhile (median; most {max(others):.0f} %)."
    quiet += " These rows say nothing about speed." if median(others) > LOUD else ""
    return f"{quiet}\n\n" + "\n\n".join(
        f"**{title}**\n\n{show(parts[part])}" for part, (title, show) in _PARTS.items() if part in parts
    )


WARMUP = Study(
    "warmup", "steps",
    ("part", "name", "mode", "beside", "way", "process", "eager_ms", "settled", "to_95_s", "of_best", "over_alone",
     *(f"done_{at}" for at in HORIZONS_S), "behind_10_s", "behind_30_s", "worst_lag_s", "within",
     "calls", "seconds", "runs", "data", "failed", "others_percent"), _show,
)  # fmt: skip


def draw() -> None:
    """What is done after each time, of the stored table: a line a model or script, and their medians."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    matplotlib.rcParams["svg.hashsalt"] = "threadcast"  # the same table gives the same file
    begun = (
        row for row in WARMUP.rows() if row["part"] in ("zoo", "scripts") and row["process"] in ("first", "second")
    )
    found = by(begun, "part", "mode")
    if not found:
        return
    size = max(8.6, 4.3 * len(found)), 3.6
    figure, axes = pyplot.subplots(1, len(found), figsize=size, layout="constrained", squeeze=False)
    for axis, ((part, mode), rows) in zip(axes[0], found.items(), strict=True):
        curves = {process: [[float(row[f"done_{at}"] or "nan") for at in HORIZONS_S] for row in _ours(rows, process)]
                  for process in ("first", "second")}  # fmt: skip
        best = [_inductor(rows, at) for at in HORIZONS_S]
        curves["inductor"] = [[own.get(key, float("nan")) for own in best] for key in best[0]]
        for name, lines in curves.items():
            for line in lines:
                axis.plot(HORIZONS_S, line, color=_COLOURS[name], linewidth=0.6, alpha=0.35)
            middle = [median(here) if (here := [value for value in column if value == value]) else float("nan")
                      for column in zip(*lines, strict=True)]  # fmt: skip
            label = "Inductor" if name == "inductor" else f"threadcast, {name} process"
            if middle:
                axis.plot(
                    HORIZONS_S, middle, color=_COLOURS[name], linewidth=2.2, marker="o", markersize=4, label=label
                )
        axis.axhline(1, color="grey", linewidth=0.8)
        axis.set_xscale("log")
        axis.set_xticks(HORIZONS_S, map(str, HORIZONS_S))
        axis.minorticks_off()
        axis.set_ylim(bottom=0)
        axis.grid(alpha=0.3)
        title = f"models, {mode}" if part == "zoo" else part
        axis.set_title(f"{title}: {len(by(rows, 'name'))}", fontsize="medium")
    figure.supxlabel("seconds since the first call; of scripts since their start", fontsize="medium")
    figure.supylabel("done, over eager PyTorch", fontsize="medium")
    handles = {
        label: handle for axis in axes[0] for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)
    }
    figure.legend(handles.values(), handles.keys(), loc="outside upper center", ncols=3)
    figure.savefig(PICTURE, metadata={"Date": None})
