"""The rows of functions of microseconds and of changing shapes in `benchmarks/warmup.py`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
from figures.study import of_run
from run_facts import RunFacts
from warmup_figures import WITHIN_S, WITHIN_SHARE
from warmup_shapes import SEQUENCES
from warmup_small import FUNCTIONS
from warmup_states import cold
from warmup_turns import side_by_side


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


def small_rows(folder: Path) -> list[dict[str, object]]:
    """The rows of functions of microseconds, as far as their figures are in `folder`."""
    return [
        {
            "function": title, "decided_s": found["decided_s"], "decided_calls": found["calls"],
            "longest_call_s": found["longest_s"], "eager_us": found["eager_s"] * 1e6, "ours_us": found["ours_s"] * 1e6,
            "runs": found["runs"], "reason": found["reason"], "run": of_run(run),
        }
        for title, found, run in _read(folder / "small.figures")
    ]  # fmt: skip


def shapes_rows(folder: Path) -> list[dict[str, object]]:
    """The rows of changing shapes, as far as their figures are in `folder`."""
    return [
        {
            "sequence": title, "calls": found["calls"], "eager_s": found["eager_s"], "ours_s": found["ours_s"],
            "worst_lag_s": found["worst_lag_s"], "within": found["within"], "left_to_eager": found["fallbacks"],
            "kinds": found["kinds"], "warnings": "; ".join(found["warnings"]).replace("|", " ")[:160],
            "run": of_run(run),
        }
        for title, found, run in _read(folder / "shapes.figures")
    ]  # fmt: skip


def _read(path: Path) -> list[tuple[str, dict[str, Any], RunFacts]]:
    if not path.exists():
        return []
    document = json.loads(path.read_text())
    run = RunFacts.from_json(document["run"])
    return [(title, found, run) for title, found in document["rows"].items()]


def _write(path: Path, rows: dict[str, Any]) -> None:
    path.write_text(json.dumps({"run": RunFacts.now().to_json(), "rows": rows}, indent=1))
