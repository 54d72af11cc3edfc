"""Models that nobody here wrote, beside PyTorch and Inductor; `make bench-zoo`.

    python benchmarks/judge.py zoo|graphnet [--only "bert;resnet"] [--modes inference,training] [--most 100]
                               [--fast] [--seconds 60] [--reuse] [--json] [--write]

Each model runs in processes of its own with a time limit. Every record lands in build/judge as it comes; `--reuse`
leaves out what has one of this commit and setting, and `--write` stores the tables of all that are there.
`--fast` measures for a shorter time (`judge_measure.FAST`); its records are apart. Hours in all, with `--fast`
about a minute a model. The libraries of zoo need an environment of their own, which `make bench-zoo` makes; graphs of
GraphNet are read from the clone at GRAPHNET.
"""

from __future__ import annotations

import argparse
import json
import math
import signal
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from figures.public_models import MEANS, MODELS, SCORES
from graphnet_graphs import size_bytes
from judge_cases import BUILD, GRAPHS, graphnet, names
from judge_measure import FAST, Setting, measured
from judge_page import means_row, model_rows, score_rows
from run_facts import RunFacts

MOST_BYTES = 2 << 30
"""Larger graphs are left out: one step takes longer than `SLOW_S`."""


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("judge", choices=("zoo", "graphnet"))
    parser.add_argument("--only", default="", help="only names that contain one of these, separated by semicolons")
    parser.add_argument("--modes", default="", help="inference, training, or both; graphs of GraphNet: inference")
    parser.add_argument("--most", type=int, default=100, help="number of graphs")
    parser.add_argument(
        "--fast", action="store_true", help="about a minute a model; most searches do not end in that time"
    )
    parser.add_argument("--seconds", type=float, help="longest time of learning; 60, or 15 with --fast")
    parser.add_argument("--json", action="store_true", help="print all records that are there")
    parser.add_argument("--write", action="store_true", help=f"{MODELS.writes}, with means and scores")
    parser.add_argument(
        "--reuse", action="store_true", help="measure only what has no record of this commit and setting"
    )
    chosen = parser.parse_args(arguments)
    wanted = [part.strip().lower() for part in chosen.only.split(";") if part.strip()]
    found = [name for name in names(chosen.judge) if not wanted or any(part in name.lower() for part in wanted)]
    known = ("inference", "training") if chosen.judge == "zoo" else ("inference",)
    modes = [mode.strip() for mode in chosen.modes.split(",")] if chosen.modes else known
    if not set(modes) <= set(known):
        parser.error(f"--modes {chosen.modes}: {chosen.judge} has {', '.join(known)}")
    if chosen.most < 1:
        parser.error(f"--most {chosen.most}: at least 1")
    if chosen.seconds is not None and not 0 < chosen.seconds < math.inf:
        parser.error(f"--seconds {chosen.seconds}: a number above 0")
    if wanted and not found:
        parser.error(f"--only {chosen.only!r}: no name contains it")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # the processes, which may be stopped, end with this one
    setting = FAST if chosen.fast else Setting()
    if chosen.seconds is not None:
        setting = replace(setting, settle_s=chosen.seconds)
    folder = BUILD / "judge" / f"{chosen.judge}{'-fast' if chosen.fast else ''}"
    folder.mkdir(parents=True, exist_ok=True)
    done, run = 0, RunFacts.now()
    for name in found:
        if done >= chosen.most:
            break
        if chosen.judge == "graphnet":
            graphnet().unpack(name)
            if size_bytes(GRAPHS / "graphs" / name) > MOST_BYTES:
                continue
        done += 1
        for mode in modes:
            path = folder / f"{name.replace('/', '--')}-{mode}.json"
            if chosen.reuse and _is_of_this_run(path, run, setting):
                done -= "left_out" in json.loads(path.read_text())
                continue
            record = measured(chosen.judge, name, mode, setting=setting, run=run)
            path.write_text(json.dumps(record))
            print(f"{name}, {mode}: {record.get('left_out') or _said(record)}", file=sys.stderr, flush=True)
            done -= "left_out" in record
    records = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    if chosen.json:
        print(json.dumps(records))
    if chosen.write:
        for mode in known:
            of_mode = [record for record in records if record["mode"] == mode]
            if any("left_out" not in record for record in of_mode):
                of_both = ("judge", "mode")
                MODELS.store(model_rows(chosen.judge, of_mode), run, replaces=of_both)
                MEANS.store([means_row(chosen.judge, mode, of_mode)], run, replaces=of_both)
                SCORES.store(score_rows(chosen.judge, mode, of_mode), run, replaces=of_both)


def _is_of_this_run(path: Path, run: RunFacts, setting: Setting) -> bool:
    """Whether a record is there that the same commit made with this setting."""
    if not path.exists():
        return False
    record = json.loads(path.read_text())
    of_run = RunFacts.from_json(record["run"])
    same = (of_run.commit, of_run.machine, of_run.torch) == (run.commit, run.machine, run.torch)
    return same and not run.commit.endswith("+") and record["setting"] == asdict(setting)


def _said(record: dict[str, Any]) -> str:
    """A record in one line."""
    ways = record["ways"]
    steps = ", ".join(
        f"{who} {way['step_s'] * 1e3:.3g} ms ({way['speedup']:.2f})" if "step_s" in way else f"{who} {way.get('error')}"
        for who, way in ways.items()
    )
    own = ways.get("threadcast", {})
    runs = own.get("ended", own.get("settled", {})).get("runs")
    return f"{steps}; correct from {own.get('correct_from')}; runs {runs}"


if __name__ == "__main__":
    main()
