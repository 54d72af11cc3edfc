"""The tables and the picture of `benchmarks/warmup.py`."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
from run_facts import Runs
from warmup_figures import Figures, call_times, eager_times, figures
from warmup_turns import Record

COLOURS = {"cold": "#ee6677", "store": "#4477aa", "bundle": "#228833"}

POINTS = 400
TICKS_S = (-50, -20, -10, -5, -2, -1, 0, 1, 2, 5, 10, 20, 50)
"""Points of a curve in the picture."""

_COLUMNS = (
    "network", "mode", "eager, ms", "break-even, calls", "break-even, s", "worst lag, s", "worst lag, %", "within",
    "longest call, s", "settled, calls", "settled, s", "step then, ms", "eager / ours", "long measurement",
    "at the end", "runs", "others",
)  # fmt: skip


def table(records: Sequence[Record], modes: Mapping[str, str], long_ratios: Mapping[str, float]) -> str:
    """A row for each record; a dash where something did not happen within the calls that ran."""
    runs = Runs(record.run for record in records)
    lines = [f"| {' | '.join(_COLUMNS)} |", "|---" * len(_COLUMNS) + "|"]
    for record in records:
        cells = _cells(figures(record), long_ratios.get(record.title), record.others)
        lines.append(f"| {record.title}{runs.mark(record.run)} | {modes[record.title]} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cells(found: Figures, long_ratio: float | None, others: float) -> list[str]:
    return [
        f"{found.eager_s * 1e3:.3g} (±{found.eager_spread / 2:.0%})", _or_dash(found.break_even_call, ",d"),
        _or_dash(found.break_even_s, ".3g"), f"{found.worst_lag_s:.3g}", f"{found.worst_lag_share:.0%}",
        "yes" if found.within else "no", f"{found.longest_call_s:.3g}", _or_dash(found.settled_call, ",d"),
        _or_dash(found.settled_s, ".3g"), f"{found.step_s * 1e3:.3g}", f"{found.ratio:.2f}",
        _or_dash(long_ratio, ".2f"), f"{-found.end_lag_s:+.3g} s after {found.calls:,} calls", found.runs,
        f"{others:.0%}",
    ]  # fmt: skip


def _or_dash(value: float | None, shape: str) -> str:
    return "-" if value is None else format(value, shape)


def summary(records: Iterable[Record]) -> str:
    """How many cases of each state do what is asked."""
    by_state: dict[str, list[Figures]] = {}
    for record in records:
        by_state.setdefault(record.state, []).append(figures(record))
    lines = []
    for state, found in by_state.items():
        slow = [one for one in found if one.eager_s >= 0.01]
        early = [one for one in slow if (one.break_even_call or 1e9) <= 60 or (one.break_even_s or 1e9) <= 15]
        lines.append(
            f"- {state}: {sum(one.within for one in found)} of {len(found)} were never more than 5 % or 2 s behind; "
            f"{len(early)} of {len(slow)} with steps of 10 ms and more broke even within 60 calls or 15 s; "
            f"{sum(one.break_even_call is not None for one in found)} of {len(found)} broke even at all; "
            f"{sum(one.settled_call is not None for one in found)} settled. Worst lag: "
            f"{max(one.worst_lag_s for one in found):.1f} s; longest call: "
            f"{max(one.longest_call_s for one in found):.1f} s."
        )
    return "\n".join(lines)


def read_long(path: Path) -> dict[str, dict[str, str]]:
    """The rows of the long measurement by title; empty where there is none."""
    if not path.exists():
        return {}
    with path.open() as file:
        return {row["network"]: row for row in csv.DictReader(line for line in file if not line.startswith("#"))}


def draw(records: Sequence[Record], path: Path) -> None:
    """Cumulative seconds ahead of eager over seconds, one small picture for each network."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    matplotlib.rcParams["svg.hashsalt"] = "threadcast"  # the same curves give the same file
    titles = list(dict.fromkeys(record.title for record in records))
    rows = -(-len(titles) // 5)
    figure, axes = pyplot.subplots(
        rows, 5, figsize=(13, 2.5 * rows + 0.6), layout="constrained", sharex=True, squeeze=False
    )
    for axis, title in zip(axes.flat, titles, strict=False):
        for record in (record for record in records if record.title == title):
            ours, theirs = np.cumsum(call_times(record)), np.cumsum(eager_times(record))
            some = np.unique(np.linspace(0, len(ours) - 1, POINTS).astype(int))
            axis.plot(ours[some], (theirs - ours)[some], color=COLOURS[record.state], label=record.state, linewidth=1.4)
        axis.axhline(0, color="grey", linewidth=0.8)
        axis.set_title(title, fontsize="medium")
        axis.set_yscale("symlog", linthresh=2)
        low, high = axis.get_ylim()
        axis.set_yticks([tick for tick in TICKS_S if low <= tick <= high])
        axis.minorticks_off()
        axis.get_yaxis().set_major_formatter("{x:g}")
        axis.grid(alpha=0.3)
    for axis in list(axes.flat)[len(titles) :]:
        axis.set_visible(False)
    figure.supxlabel("seconds of calls since the first", fontsize="medium")
    figure.supylabel("seconds ahead of eager PyTorch", fontsize="medium")
    figure.legend(*axes[0][0].get_legend_handles_labels(), loc="outside upper center", ncols=3)
    figure.savefig(path, metadata={"Date": None})
