"""The tables of functions of microseconds and of changing shapes in `benchmarks/warmup.py`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
from run_facts import RunFacts
from warmup_figures import WITHIN_S, WITHIN_SHARE
from warmup_shapes import SEQUENCES
from warmup_small import FUNCTIONS
from warmup_states import cold
from warmup_turns import side_by_side

_SMALL = """
## Functions of microseconds

Measured at {run}.

Each in a fresh process, cold: seconds and calls until a report said what runs, the longest of these calls, and
then the time of a call beside eager PyTorch's, by turns.

| function | decided, s | decided, calls | longest call, s | eager, us | ours, us | ours - eager, us | runs | reason |
|---|---|---|---|---|---|---|---|---|
"""

_SHAPES = """
## Shapes

Measured at {run}.

Calls whose shapes change, cold, from the first call on; eager PyTorch runs the same calls in a process of its
own, by turns. *left to eager*: calls that threadcast did not plan but left to PyTorch, with a warning. *within*: never
more than 5 % or 2 s behind.

| calls | number | eager, s | ours, s | ahead at the end, s | worst lag, s | within | left to eager | kinds | warning |
|---|---|---|---|---|---|---|---|---|---|
"""


def measure_small(folder: Path) -> None:
    """Run every function of microseconds and keep the figures in `folder`."""
    rows = {}
    for i, title in enumerate(FUNCTIONS):
        command = [sys.executable, str(Path(__file__).with_name("warmup_small.py")), title]
        done = subprocess.run(command, env=cold(f"small-{i}", folder), check=True, stdout=subprocess.PIPE, text=True)
        rows[title] = json.loads(done.stdout.splitlines()[-1])
        print(f"{title}: {rows[title]}", file=sys.stderr, flush=True)
    _write(folder / "small.figures", rows)


def measure_shapes(folder: Path, *, seconds: float) -> None:
    """Run every sequence of shapes and keep the figures in `folder`."""
    rows = {}
    for i, title in enumerate(SEQUENCES):
        found = side_by_side(title, cold(f"shapes-{i}", folder), seconds=seconds)
        ours, theirs = np.cumsum(found.ours_s), np.cumsum(found.eager_s)
        lag = ours - theirs
        rows[title] = {
            "calls": len(ours), "eager_s": float(theirs[-1]), "ours_s": float(ours[-1]),
            "worst_lag_s": float(lag.max()),
            "within": bool((lag <= np.maximum(WITHIN_S, WITHIN_SHARE * theirs)).all()),
            "fallbacks": found.answer["fallbacks"], "kinds": len(found.answer["reports"]),
            "warnings": found.answer["warnings"],
        }  # fmt: skip
        print(f"{title}: {rows[title]}", file=sys.stderr, flush=True)
    _write(folder / "shapes.figures", rows)


def sections(folder: Path) -> str:
    """Both tables as Markdown, as far as their figures are in `folder`."""
    return _section(_SMALL, folder / "small.figures", _small_row) + _section(
        _SHAPES, folder / "shapes.figures", _shapes_row
    )


def _section(head: str, path: Path, row: Any) -> str:
    if not path.exists():
        return ""
    document = json.loads(path.read_text())
    lines = [row(title, figures) for title, figures in document["rows"].items()]
    return head.format(run=RunFacts.from_json(document["run"])) + "".join(lines)


def _small_row(title: str, row: dict[str, Any]) -> str:
    decided = "-" if row["decided_s"] is None else f"{row['decided_s']:.3g}"
    eager_us, ours_us = row["eager_s"] * 1e6, row["ours_s"] * 1e6
    return (
        f"| {title} | {decided} | {row['calls']:,} | {row['longest_s']:.3g} | {eager_us:.2f} | {ours_us:.2f} | "
        f"{ours_us - eager_us:.2f} | {row['runs']} | {row['reason']} |\n"
    )


def _shapes_row(title: str, row: dict[str, Any]) -> str:
    return (
        f"| {title} | {row['calls']:,} | {row['eager_s']:.1f} | {row['ours_s']:.1f} | "
        f"{row['eager_s'] - row['ours_s']:+.1f} | {row['worst_lag_s']:.2f} | {'yes' if row['within'] else 'no'} | "
        f"{row['fallbacks']:,} | {row['kinds']} | {'; '.join(row['warnings']).replace('|', ' ')[:160]} |\n"
    )


def _write(path: Path, rows: dict[str, Any]) -> None:
    path.write_text(json.dumps({"run": RunFacts.now().to_json(), "rows": rows}, indent=1))
