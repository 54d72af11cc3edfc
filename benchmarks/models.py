"""How well models forecast curves of large machines from a few single samples: `make bench-models` runs this.

    python benchmarks/models.py [--curves FOLDER] [--seeds 5] [--only sgemm_96,networks] [--models NAMES]
        [--samples 0,3] [--json FILE] [--reuse] [--write]

The curves of `sgemm` and `sdot` are not part of the project; without --curves these parts are left out. Ops that are
judged by are never learned from. Each part prints a line a model, mean over seeds (least to most).
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from model_speed import described, speed
from run_facts import RunFacts, Runs

from threadcast.core import Case, Machine, Measurement, Op, read_machine
from threadcast.models import registry_of_kinds, splits
from threadcast.models.base import PerformanceModel
from threadcast.models.evaluation import evaluate
from threadcast.models.judgement import Row
from threadcast.models.learned_curve import LearnedCurve
from threadcast.models.splits import Split
from threadcast.store import published

PAGE = Path(__file__).parents[1] / "docs" / "model-tables.md"
PAPER = Path(__file__).parents[1] / "data" / "papers"
Models = Sequence[tuple[str, PerformanceModel]]

CASCADE_LAKE = {"sgemm": "sgemm_mkl_cascadelake.csv.gz", "sdot": "sdot_mkl_cascadelake.csv.gz"}
"""2 sockets of 24 cores; thread counts above 48 are hyper-threads (ADSALA, Xia and Barca 2026)."""
SAMPLES = (1, 3, 4, 8, 16)
NCNN_SAMPLES = (1, 8)
"""Thread counts at which whole networks are measured, beside the machine's largest."""
COLUMNS = ("accuracy", "within_10", "coverage_90", "regret_mean", "regret_p95")
SPEEDUPS = ("speedup_over_all", "speedup_with_model_time")
"""Median over ops of the time with all threads over that of the chosen case, without and with a forecast a call."""


_HEAD = """# How well models forecast

`make bench-models`, {runs}. Mean over seeds (least to
most), each with other ops left out and other samples drawn. A model sees single samples of the cases that it
asks for, of ops that it has not learned from, and is judged by the medians of all samples of the others. Accuracy is
1 - mean(|forecast - measured| / measured), regret how much longer than the best case the chosen one takes, in percent.
Speed-up over all threads is, as ADSALA's, the mean over ops (since 2026-11-29 the median) of the time with most threads
over that at the chosen case, and over that time and the time of a forecast together, as if each call made one of its
own (us a call); forecasts took several times as long as on idle cores in the later runs, as others used the machine.

- `sgemm` and `sdot`: one call of MKL on 2 sockets of 24 cores, hyper-threads above 48 (ADSALA, Xia and Barca 2026; not
  part of this project).
- *paper*: what Liu et al. 2018 state in Tables IV and V for their networks on a Xeon Phi.
- Whole networks: latencies published by Tencent/ncnn (`data/published`).
{again}
"""


class Part:
    """What is judged: measurements, how they are split for a seed, and the models."""

    def __init__(
        self, title: str, measurements: Sequence[Measurement], split: Callable[[int], Split], models: Models,
        *, draw: bool = True,
    ) -> None:  # fmt: skip
        self.title, self.measurements, self.split, self.models, self.draw = title, measurements, split, models, draw

    def rows(self, seeds: int) -> list[dict[str, Any]]:
        """A line a model, over all seeds."""
        found: list[Sequence[Row]] = []
        for seed in range(seeds):
            started_s = time.perf_counter()
            found.append(
                evaluate(
                    self.measurements, self.models, split=self.split(seed), split_name=self.title,
                    draw=seed if self.draw else None, jobs=len(read_machine()),
                ).rows
            )  # fmt: skip
            print(f"  seed {seed}: {time.perf_counter() - started_s:.0f} s", file=sys.stderr, flush=True)
        return [self._merged(of_model) for of_model in zip(*found, strict=True)]

    def _merged(self, rows: Sequence[Row]) -> dict[str, Any]:
        first = rows[0]
        merged: dict[str, Any] = {
            "part": self.title, "model": first.model, "seeds": len(rows), "samples": fmean(row.samples for row in rows),
            "ops": sum(row.ops for row in rows), "unusable": sum(row.unusable for row in rows),
            "noise_floor": first.noise_floor, "regret_all_threads": first.regret_all_threads,
            "predict_us": fmean(row.predict_us or 0.0 for row in rows),
            "call_us": fmean(row.call_us or 0.0 for row in rows),
            "problem": first.problem,
        }  # fmt: skip
        for column in (*COLUMNS, *SPEEDUPS):
            found = [getattr(row, column) for row in rows]
            values = [getattr(value, "gain", value) for value in found if value is not None]
            if values:
                merged[column] = [fmean(values), min(values), max(values)]
        return merged


def one_fold(seed: int) -> Split:
    """A fifth of the ops left out, another one for each seed."""
    whole = splits.new_shape(folds=5, seed=seed)
    return lambda entries: whole(entries)[:1]


def made(names: Iterable[str], **options: Any) -> list[tuple[str, PerformanceModel]]:
    """Models of these names; the options go into the row's name."""
    return [(name, registry_of_kinds.create(name, **options)) for name in names]


def curve_models() -> Models:
    """All kinds at their numbers of samples, and the paper's climb at its intervals beside the variants."""
    create = registry_of_kinds.create
    of_paper: dict[int, list[float]] = {}
    for row in _facts("knl_hill_climb_accuracy.csv"):
        of_paper.setdefault(int(row["interval"]), []).append(100 * float(row["accuracy"]))
    found = [
        (f"hill_climb, interval {n} (paper: {min(a):.0f} to {max(a):.0f} %)", create("hill_climb", interval=n))
        for n, a in of_paper.items()
    ]
    found += [(f"patient_climb, {line}", create("patient_climb", between=line)) for line in ("reciprocal", "log")]
    found += made(("static_xgboost",))
    found += [("learned_curve", LearnedCurve(samples=samples)) for samples in (0, *SAMPLES)]
    for samples in (3, 4, 8):
        found += made(("amdahl", "overhead_law", "universal_scalability", "roofline_saturation"), samples=samples)
    return found


class AtEnds(LearnedCurve):
    """A learned curve that is given the times at `NCNN_SAMPLES` and at the machine's largest thread count."""

    def propose_among(
        self, op: Op, observed: Sequence[Measurement], machine: Machine, cases: Sequence[Case]
    ) -> Case | None:
        """The next of these."""
        wanted = [Case(count) for count in (*NCNN_SAMPLES, len(machine)) if count <= len(machine)]
        seen = {measurement.case for measurement in observed}
        return next((case for case in dict.fromkeys(wanted) if case not in seen), None)


def parts(curves: Path | None) -> Iterable[tuple[str, Callable[[], Part]]]:
    """Everything there is to judge by, made when its turn comes."""
    if curves is not None:
        for routine, file in CASCADE_LAKE.items():
            for most in (96, 48):
                yield f"{routine}_{most}", partial(_routine, routine, most, curves / file)
        yield "table_iv", partial(_table_iv, curves / CASCADE_LAKE["sgemm"])
        yield "new_kind", partial(_new_kind, curves)
    yield "networks", _networks
    yield "new_machine", partial(_new_machine, 0)
    yield "new_machine_known", partial(_new_machine, 20)


def _routine(routine: str, most: int, path: Path) -> Part:
    found = [m for m in published.adsala_wide(path) if m.case.threads <= most]
    title = f"{routine} at 1 to {most} threads, a fifth of the shapes left out"
    return Part(title, found, one_fold, curve_models())


def _table_iv(path: Path) -> Part:
    """The regressors of the paper's Table IV as it trained them, on seconds, and ours."""
    models: list[tuple[str, PerformanceModel]] = []
    for row in _facts("knl_regressor_accuracy.csv"):
        if row.pop("metric") == "accuracy":
            samples = int(row.pop("samples"))
            for name, accuracy in row.items():
                title = f"{name}, {samples} samples (paper: {100 * float(accuracy):.0f} %)"
                models.append((title, registry_of_kinds.create(name, samples=samples, scale="linear")))
            models.append((f"learned_curve, {samples} samples", LearnedCurve(samples=samples)))
    title = "Table IV's regressors on sgemm at 1 to 96 threads, a fifth of the shapes left out"
    return Part(title, published.adsala_wide(path), one_fold, models)


def _facts(name: str) -> list[dict[str, str]]:
    """A table of the paper."""
    with (PAPER / name).open() as file:
        return list(csv.DictReader(line for line in file if not line.startswith("#")))


def _new_kind(curves: Path) -> Part:
    found = [m for file in CASCADE_LAKE.values() for m in published.adsala_wide(curves / file)]
    machine = found[0].machine
    found = [replace(m, machine=machine) for m in found]
    models: list[tuple[str, PerformanceModel]] = [*made(["static_xgboost"])]
    models += [("learned_curve", LearnedCurve(samples=samples)) for samples in (0, 3)]
    title = "sgemm from sdot and 20 of its shapes, and sdot from sgemm and 20 lengths, 1 to 96 threads"
    return Part(title, found, lambda seed: splits.new_kind(known=20, seed=seed), models)


def _networks() -> Part:
    models = [("learned_curve, at 1, 8 and most threads", AtEnds(samples=3)), *made(["static_xgboost"])]
    found = published.ncnn_network_latency()
    title = "whole networks (ncnn) on all machines, one network left out"
    return Part(title, found, lambda seed: _by_network(found), models, draw=False)


def _by_network(found: Sequence[Measurement]) -> Split:
    return splits.new_network({m.op.key: [str(m.op.attributes["network"])] for m in found})


def _new_machine(known: int) -> Part:
    models = [("learned_curve, at 1, 8 and most threads", AtEnds(samples=3)), *made(["static_xgboost"])]
    models += made(["learned_curve"], samples=0)
    title = f"whole networks (ncnn), one machine left out, {known} of its networks known"
    found = published.ncnn_network_latency()
    return Part(title, found, lambda seed: splits.new_machine(known=known, seed=seed), models, draw=False)


def table(rows: Sequence[dict[str, Any]], runs: Runs) -> str:
    """One part's rows in Markdown, marked where they are of a later run."""
    lines = [
        "| model | seeds | samples | accuracy | within 10 % | in 90 % interval | regret | regret p95 "
        "| speed-up over all threads | with a forecast each call | us a curve | us a call |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        cells = [_cell(row.get(column)) for column in COLUMNS] + [_ratio(row.get(column)) for column in SPEEDUPS]
        lost = f", {row['unusable']} lost" if row["unusable"] else ""
        mark = runs.mark(RunFacts.from_json(row["run"]))
        head = f"{row['model']}{mark}{lost} | {row['seeds']} | {row['samples']:.3g}"
        call = f"{row['call_us']:.3g}" if row.get("call_us") else "-"
        lines.append(f"| {head} | {' | '.join(cells)} | {row['predict_us']:.3g} | {call} |")
    return "\n".join(lines)


def _cell(values: list[float] | None) -> str:
    if values is None:
        return "-"
    mean, low, high = (100 * value for value in values)
    return f"{mean:.1f} ({low:.1f} to {high:.1f})"


def _ratio(values: list[float] | None) -> str:
    return "-" if values is None else "{:.3f} ({:.3f} to {:.3f})".format(*values)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--curves", type=Path, help="folder of the ADSALA curves")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--only", default="", help="names of parts, separated by commas; speed is one too")
    parser.add_argument("--models", default="", help="beginnings of models' names, separated by commas [default: all]")
    parser.add_argument("--samples", default="", help="numbers of samples, separated by commas [default: all]")
    parser.add_argument("--million", action="store_true", help="speed: also learn from a million samples")
    parser.add_argument("--json", type=Path, default=Path("build/models.json"), help="all figures, as they come")
    parser.add_argument("--reuse", action="store_true", help="take the parts that are in that file from it")
    parser.add_argument("--write", action="store_true", help="write docs/model-tables.md")
    chosen = parser.parse_args()
    wanted = [name for name in chosen.only.split(",") if name]
    run = RunFacts.now()
    found: dict[str, Any] = json.loads(chosen.json.read_text()) if chosen.reuse and chosen.json.exists() else {}
    chosen.json.parent.mkdir(parents=True, exist_ok=True)
    names = []
    for name, make in parts(chosen.curves):
        names.append(name)
        some = chosen.models or chosen.samples
        if (wanted and name not in wanted) or (not wanted and not some and name in found):
            continue
        print(name, file=sys.stderr, flush=True)
        part = make()
        if chosen.models:
            part.models = [one for one in part.models if one[0].startswith(tuple(chosen.models.split(",")))]
        if chosen.samples:
            counts = {int(count) for count in chosen.samples.split(",")}
            part.models = [one for one in part.models if getattr(one[1], "samples", 0) in counts]
        rows = [{**row, "run": run.to_json()} for row in part.rows(chosen.seeds)]
        found[name] = {"title": part.title, "rows": merged(found[name]["rows"] if some and name in found else [], rows)}
        chosen.json.write_text(json.dumps(found, indent=1))
        print(section(found[name], runs_of(found)), flush=True)
    if not wanted or "speed" in wanted:
        found["speed"] = speed(million=chosen.million)
        chosen.json.write_text(json.dumps(found, indent=1))
        print(described(found["speed"]))
    if chosen.write:
        runs = runs_of(found)
        head = _HEAD.format(runs=runs, again=runs.legend())
        sections = [section(found[name], runs) for name in names if name in found]
        PAGE.write_text(head + "\n".join([*sections, described(found["speed"])] if "speed" in found else sections))


def merged(before: Sequence[dict[str, Any]], rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """All rows; one of a model that was judged before comes after its earlier row."""
    every = [*before, *rows]
    order = list(dict.fromkeys((row["model"], round(row["samples"])) for row in every))
    return sorted(every, key=lambda row: order.index((row["model"], round(row["samples"]))))


def runs_of(found: dict[str, Any]) -> Runs:
    """The runs that the rows of all parts are of."""
    parts = (part for name, part in found.items() if name != "speed")
    return Runs(RunFacts.from_json(row["run"]) for part in parts for row in part["rows"])


def section(part: dict[str, Any], runs: Runs) -> str:
    """A part in Markdown."""
    title, rows = part["title"], part["rows"]
    return "\n".join([f"## {title[0].upper()}{title[1:]}", "", _context(rows), "", table(rows, runs), ""])


def _context(rows: Sequence[dict[str, Any]]) -> str:
    first = rows[0]
    floor = first["noise_floor"]
    said = f"Always all threads: regret {100 * first['regret_all_threads']:.1f} %."
    return said if floor is None else f"{said} Noise floor {100 * floor:.2f} %."


if __name__ == "__main__":
    main()
