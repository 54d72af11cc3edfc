"""The long measurement: how fast a case becomes when settling may take as long as it takes.

Its results are the mark against which faster beginnings are held: `data/studies/long_measurement.csv`.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from figures.steps import LONG
from run_facts import RunFacts
from warmup_networks import Case
from warmup_others import OtherWork
from warmup_states import environment
from warmup_turns import Side

ROUNDS, ROUND_S = 20, 0.5
"""Turns after settling, and seconds of each side in a turn."""

SETTLING_S = 5.0
"""Seconds of calls before it is asked again whether the step has settled."""


def measure_long(case: Case, mode: str, folder: Path, *, most_s: float) -> None:
    """Measure one case and write its row; where it has not settled after `most_s` seconds, what runs then is timed."""
    with ExitStack() as ends:
        variables = environment(case, "cold", folder)
        ours, theirs = (Side(case.title, who, variables) for who in ("threadcast", "eager"))
        ends.callback(theirs.close)
        ends.callback(ours.close)
        eager_before = float(np.median(theirs.turn(1.0, untimed=3)["seconds"]))
        others = OtherWork((ours.session, theirs.session))
        seconds: list[float] = []
        settled = 0
        while sum(seconds) < most_s:
            answer = ours.turn(SETTLING_S)
            settled = max([settled, *(len(seconds) + call for call, _ in answer["changes"])])
            seconds += answer["seconds"]
            if answer["reports"] and all(report["runs"] != "measuring" for report in answer["reports"]):
                break
        pairs = []
        for _ in range(ROUNDS):
            pair = [float(np.median(side.turn(ROUND_S, untimed=1)["seconds"])) for side in (theirs, ours)]
            pairs.append(pair)
        used = others.share()
        runs = ", ".join(report["runs"] for report in ours.turn(0.1)["reports"])
    taken = np.array(pairs)  # (rounds, 2) seconds: eager's step, ours
    ratios = taken[:, 0] / taken[:, 1]
    low, middle, high = np.quantile(ratios, [0.25, 0.5, 0.75])
    eager_s, ours_s = np.median(taken, axis=0)
    done = "measuring" not in runs
    row: dict[str, Any] = {
        "network": case.title, "mode": mode, "eager_s": float(eager_s), "ours_s": float(ours_s),
        "ratio": float(middle), "low": float(low), "high": float(high), "settled_calls": settled if done else None,
        "settled_s": sum(seconds[:settled]) if done else None,
        "lost_s": sum(seconds[:settled]) - settled * eager_before,
        "others": used, "runs": runs,
    }  # fmt: skip
    print(row, file=sys.stderr, flush=True)
    LONG.store([row], RunFacts.now(), replaces=("network",))
