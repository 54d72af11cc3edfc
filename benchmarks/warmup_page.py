"""The rows and the picture of `benchmarks/warmup.py`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from figures.study import of_run
from warmup_figures import call_times, eager_times, figures
from warmup_turns import Record

COLOURS = {"cold": "#ee6677", "store": "#4477aa", "bundle": "#228833"}

POINTS = 400
TICKS_S = (-50, -20, -10, -5, -2, -1, 0, 1, 2, 5, 10, 20, 50)
"""Points of a curve in the picture."""


def row(record: Record, mode: str) -> dict[str, object]:
    """The record's row of data/studies/warmup.csv; empty where something did not happen within the calls that ran."""
    found = figures(record)
    return {
        "state": record.state, "network": record.title, "mode": mode, "eager_ms": found.eager_s * 1e3,
        "eager_spread_percent": 50 * found.eager_spread, "break_even_calls": found.break_even_call,
        "break_even_s": found.break_even_s, "worst_lag_s": found.worst_lag_s,
        "worst_lag_percent": 100 * found.worst_lag_share, "within": found.within,
        "longest_call_s": found.longest_call_s, "settled_calls": found.settled_call, "settled_s": found.settled_s,
        "step_then_ms": found.step_s * 1e3, "eager_over_ours": found.ratio, "ahead_at_end_s": -found.end_lag_s,
        "calls": found.calls, "runs": found.runs, "others_percent": 100 * record.others, "run": of_run(record.run),
    }  # fmt: skip


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
