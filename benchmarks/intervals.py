"""How often the 90 % intervals of models hold, by model, number of samples, and distance from what is known.

    python benchmarks/intervals.py [--curves FOLDER] [--only sgemm_96,networks] [--models learned_curve,ols]
        [--samples 0,1,2,3] [--seeds 2] [--known 240] [--write]

Of each set a fifth of the ops is left out; a model learns from `--known` of the others (all by default), gets single
samples, and each of its intervals is compared with the median of all samples there. The distance of an op is that to
the nearest known op of its kind, in standard deviations of the numbers that describe ops
(`static_features.describe`); ops are divided into three equal parts by it, ops of unknown kinds are a part of their
own. The curves of `sgemm` and `sdot` are not part of the project; without --curves these sets are left out.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from adsala import adsala_wide
from figures.forecasts import INTERVALS
from models import CASCADE_LAKE
from run_facts import RunFacts

from threadcast.core import Measurement
from threadcast.core.curve import Floats
from threadcast.core.errors import InvalidInput
from threadcast.models import metrics, registry_of_kinds
from threadcast.models.base import PerformanceModel
from threadcast.models.fold_judging import judge_fold
from threadcast.models.judgement import Outcome
from threadcast.models.measured import MeasuredOp, group, usable
from threadcast.models.splits import Fold, new_shape
from threadcast.models.static_features import describe
from threadcast.store import published
from threadcast.store.long_form import read_long_form

RECORDED = Path(__file__).parents[1] / "data" / "recorded" / "amd-epyc-2c.csv.gz"
MODELS = (
    "learned_curve", "static_xgboost", "patient_climb", "amdahl", "overhead_law",
    "universal_scalability", "ols", "k_neighbors", "svr_rbf", "xgboost",
)  # fmt: skip
SPLITS = {"networks": 10}
"""Splits of sets where a split leaves few ops out, 7 of 35 networks: by 2 splits intervals held for 76 % of
the points after one sample, by 10 for 87. Others are split `--seeds` times."""

PARTS = ("near", "middle", "far", "unknown kind")
LEAST, MOST = 0.86, 0.94
"""Coverage within these limits is taken for that of a 90 % interval; rows outside are marked."""


def sets(curves: Path | None) -> Iterable[tuple[str, Callable[[], Sequence[Measurement]]]]:
    """Every set of measurements by name, read when its turn comes."""
    if curves is not None:
        for routine, file in CASCADE_LAKE.items():
            yield f"{routine}_96", partial(adsala_wide, curves / file)
    yield "networks", published.ncnn_network_latency
    yield "recorded", lambda: read_long_form(RECORDED)


def made(names: Sequence[str], samples: Sequence[int]) -> list[tuple[str, str, PerformanceModel]]:
    """Names, numbers of samples and models; those that take a number of samples once for each."""
    found: list[tuple[str, str, PerformanceModel]] = []
    for name in names:
        if not registry_of_kinds.takes(name, "samples"):
            found.append((name, "", registry_of_kinds.create(name)))
            continue
        for count in samples:
            try:
                found.append((name, str(count), registry_of_kinds.create(name, samples=count)))
            except InvalidInput:
                if count:
                    raise  # 0 is left out for a model that needs samples
    return found


def distances(entries: Sequence[MeasuredOp], fold: Fold) -> Floats:
    """(n_test,) distance of each test op to the nearest training op of its kind; infinite where there is none."""
    described = describe([entry.op for entry in entries])
    spread = described.std(axis=0)
    scaled = described / np.where(spread > 0, spread, 1.0)
    kinds = np.array([entry.op.kind for entry in entries])
    train = np.array(fold.train)
    found = np.full(len(fold.test), np.inf)
    for row, at in enumerate(fold.test):
        alike = train[kinds[train] == kinds[at]]
        if len(alike):
            found[row] = np.sqrt(((scaled[alike] - scaled[at]) ** 2).sum(axis=1)).min()
    return found


def parts_of(apart: Floats) -> list[int]:
    """The position in `PARTS` of each op, by its distance."""
    known = np.isfinite(apart)
    edges = np.quantile(apart[known], [1 / 3, 2 / 3]) if known.any() else np.zeros(2)
    return [int(np.searchsorted(edges, one)) if one < np.inf else 3 for one in apart.tolist()]


def rows(
    measurements: Sequence[Measurement],
    models: Sequence[tuple[str, str, PerformanceModel]],
    *,
    seeds: int,
    known: int | None,
) -> list[dict[str, object]]:
    """A row a model: points judged by, coverage of all points and of each of `PARTS`."""
    entries, _ = usable(group(measurements))
    alone: dict[object, list[int]] = {}
    for i, (_, _, model) in enumerate(models):
        alone.setdefault(model.fit_key() or i, []).append(i)
    inside: list[list[list[Floats]]] = [[[] for _ in PARTS] for _ in models]
    for seed in range(seeds):
        fold = new_shape(folds=5, seed=seed)(entries)[0]
        if known is not None:
            drawn = np.random.default_rng(seed).permutation(fold.train)[:known]
            fold = Fold(fold.name, tuple(sorted(drawn.tolist())), fold.test)
        part = dict(zip(fold.test, parts_of(distances(entries, fold)), strict=True))
        for together in alone.values():
            outcomes = judge_fold([models[i][2] for i in together], entries, fold, draw=seed)
            for i, outcome in zip(together, outcomes, strict=True):
                _collect(outcome, part, inside[i])
            print(f"  seed {seed}: {', '.join(' '.join(models[i][:2]) for i in together)}", file=sys.stderr, flush=True)
    return [
        {"model": name, "samples": samples, **_row(points)}
        for (name, samples, _), points in zip(models, inside, strict=True)
    ]


def _collect(outcome: Outcome, part: dict[int, int], inside: list[list[Floats]]) -> None:
    for at, score in outcome.scores.items():
        inside[part[at]].append(score.points)


def _row(inside: Sequence[Sequence[Floats]]) -> dict[str, object]:
    every = [points for of_part in inside for points in of_part]
    shares = dict(zip(("all", *PARTS), map(_coverage, (every, *inside)), strict=True))
    held = shares["all"]
    return {
        "points": sum(points.shape[1] for points in every),
        **{f"{part.replace(' ', '_')}_percent": None if share is None else f"{100 * share:.1f}"
           for part, share in shares.items()},
        "holds": None if held is None else LEAST <= held <= MOST,
    }  # fmt: skip


def _coverage(points: Sequence[Floats]) -> float | None:
    if not points:
        return None
    actual, _, low, high = np.concatenate(points, axis=1)
    return metrics.coverage(actual, low, high)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--curves", type=Path, help="folder of the ADSALA curves")
    parser.add_argument("--only", default="", help="names of sets, separated by commas [default: all]")
    parser.add_argument("--models", default=",".join(MODELS), help="names of models, separated by commas")
    parser.add_argument("--samples", default="0,1,2,3", help="numbers of samples, separated by commas")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--known", type=int, help="ops that are learned from [default: all that are not left out]")
    parser.add_argument("--write", action="store_true", help=INTERVALS.writes)
    chosen = parser.parse_args()
    wanted = [name for name in chosen.only.split(",") if name]
    models = made(chosen.models.split(","), [int(count) for count in chosen.samples.split(",")])
    found: list[dict[str, object]] = []
    for name, read in sets(chosen.curves):
        if wanted and name not in wanted:
            continue
        print(name, file=sys.stderr, flush=True)
        splits = max(chosen.seeds, SPLITS.get(name, 0))
        of_set = rows(read(), models, seeds=splits, known=chosen.known)
        found += [{"set": name, "splits": splits, **row} for row in of_set]
    print(INTERVALS.printed(found))
    if chosen.write:
        INTERVALS.store(found, RunFacts.now(), replaces=("set", "model", "samples"))


if __name__ == "__main__":
    main()
