"""How well models forecast curves of large machines from a few single samples.

    python benchmarks/models.py [--curves FOLDER] [--seeds 5] [--only sgemm_96,networks] [--models NAMES]
        [--samples 0,3] [--json FILE] [--reuse] [--write]

The curves of `sgemm` and `sdot` are not part of the project; without --curves these parts are left out. Ops that are
judged by are never learned from. Rows are means over seeds, with the least and the most.
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

from adsala import adsala_wide
from figures.forecasts import MODELS
from figures.study import of_run
from run_facts import RunFacts

from threadcast.core import Case, Machine, Measurement, Op, read_machine
from threadcast.models import registry_of_kinds, splits
from threadcast.models.base import PerformanceModel
from threadcast.models.evaluation import evaluate
from threadcast.models.judgement import Row
from threadcast.models.learned_curve import LearnedCurve
from threadcast.models.splits import Split
from threadcast.store import published

PAPER = Path(__file__).parents[1] / "data" / "papers"
Models = Sequence[tuple[str, PerformanceModel]]

CASCADE_LAKE = {"sgemm": "sgemm_mkl_cascadelake.csv.gz", "sdot": "sdot_mkl_cascadelake.csv.gz"}
"""2 sockets of 24 cores; thread counts above 48 are hyper-threads (ADSALA, Xia and Barca 2026)."""
SAMPLES = (1, 3, 4, 8, 16)
NCNN_SAMPLES = (1, 8)
"""Thread counts at which whole networks are measured, beside the machine's largest."""
COLUMNS = ("accuracy", "within_10", "coverage_90", "regret_mean", "regret_p95")
_COLUMNS = {column: column.removesuffix("_mean") for column in COLUMNS}
SPEEDUPS = ("speedup_over_all", "speedup_with_model_time")
"""Median over ops of the time with all threads over that of the chosen case, without and with a forecast a call."""


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
    """All kinds at their numbers of samples, and the paper's climb at its intervals."""
    create = registry_of_kinds.create
    of_paper: dict[int, list[float]] = {}
    for row in _facts("knl_hill_climb_accuracy.csv"):
        of_paper.setdefault(int(row["interval"]), []).append(100 * float(row["accuracy"]))
    found = [
        (f"hill_climb, interval {n} (paper: {min(a):.0f} to {max(a):.0f} %)", create("hill_climb", interval=n))
        for n, a in of_paper.items()
    ]
    found += made(("static_xgboost",))
    found += [("learned_curve", LearnedCurve(samples=samples)) for samples in (0, *SAMPLES)]
    for samples in (3, 4, 8):
        found += made(("amdahl", "universal_scalability"), samples=samples)
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
    found = [m for m in adsala_wide(path) if m.case.threads <= most]
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
    return Part(title, adsala_wide(path), one_fold, models)


def _facts(name: str) -> list[dict[str, str]]:
    """A table of the paper."""
    with (PAPER / name).open() as file:
        return list(csv.DictReader(line for line in file if not line.startswith("#")))


def _new_kind(curves: Path) -> Part:
    found = [m for file in CASCADE_LAKE.values() for m in adsala_wide(curves / file)]
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


def rows_of(part: dict[str, Any]) -> list[dict[str, object]]:
    """A part's rows of data/studies/models.csv; shares are in percent, means over seeds with the least and the most."""
    found: list[dict[str, object]] = []
    for row in part["rows"]:
        floor = row["noise_floor"]
        found.append({
            "part": part["title"][0].upper() + part["title"][1:],
            "regret_all_threads": f"{100 * row['regret_all_threads']:.1f}",
            "noise_floor": None if floor is None else f"{100 * floor:.2f}", "model": row["model"],
            "unusable": row["unusable"], "seeds": row["seeds"], "samples": f"{row['samples']:.3g}",
            **{name: value for column, of in _COLUMNS.items() for name, value in _ranged(of, row.get(column)).items()},
            **{name: value for of in SPEEDUPS for name, value in _ranged(of, row.get(of), 1.0).items()},
            "us_a_curve": f"{row['predict_us']:.3g}", "us_a_call": f"{row['call_us']:.3g}" if row["call_us"] else None,
            "run": of_run(RunFacts.from_json(row["run"])),
        })  # fmt: skip
    return found


def _ranged(column: str, values: list[float] | None, factor: float = 100.0) -> dict[str, str | None]:
    """Mean, least and most."""
    names = column, f"{column}_low", f"{column}_high"
    digits = 1 if factor == 100.0 else 3
    return {name: None if values is None else f"{factor * values[i]:.{digits}f}" for i, name in enumerate(names)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--curves", type=Path, help="folder of the ADSALA curves")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--only", default="", help="names of parts, separated by commas")
    parser.add_argument("--models", default="", help="beginnings of models' names, separated by commas [default: all]")
    parser.add_argument("--samples", default="", help="numbers of samples, separated by commas [default: all]")
    parser.add_argument("--json", type=Path, default=Path("build/models.json"), help="all figures, as they come")
    parser.add_argument("--reuse", action="store_true", help="take the parts that are in that file from it")
    parser.add_argument("--write", action="store_true", help=MODELS.writes)
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
        print(MODELS.printed(rows_of(found[name])), flush=True)
    if chosen.write:
        MODELS.store([row for name in names if name in found for row in rows_of(found[name])], run, replaces=("part",))


def merged(before: Sequence[dict[str, Any]], rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """All rows; one of a model that was judged before comes after its earlier row."""
    every = [*before, *rows]
    order = list(dict.fromkeys((row["model"], round(row["samples"])) for row in every))
    return sorted(every, key=lambda row: order.index((row["model"], round(row["samples"]))))


if __name__ == "__main__":
    main()
