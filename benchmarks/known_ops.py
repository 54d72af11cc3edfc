"""How many known ops the learned curve needs, beside what single samples allow.

    python benchmarks/known_ops.py --curves FOLDER [--known 100,240,720] [--samples 0,1,3] [--seeds 2] [--write]

A fifth of the shapes of MKL's `sgemm` is left out; a model learns from some of the others and gets single samples. The
curves (ADSALA, Xia and Barca 2026) are not part of the project.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from adsala import adsala_wide
from figures.forecasts import KNOWN_OPS
from models import CASCADE_LAKE
from run_facts import RunFacts

from threadcast.core import Case, Measurement, Op
from threadcast.core.curve import Floats
from threadcast.models.case_gaussian import CaseGaussian
from threadcast.models.evaluation import evaluate, one_sample
from threadcast.models.judgement import Row
from threadcast.models.learned_curve import LearnedCurve
from threadcast.models.machine_limits import work_per_thread
from threadcast.models.measured import MeasuredOp, group, usable
from threadcast.models.sample_noise import SampleNoise
from threadcast.models.splits import Fold

SAMPLED = {0: (), 1: (33,), 3: (10, 33, 87)}
"""Thread counts that the oracle samples: those that the learned curve asks most ops for."""


def without_work(found: Sequence[Measurement]) -> list[Measurement]:
    """The same measurements of ops that are described by m, k and n alone, as in a table of somebody else."""
    ops: dict[str, Op] = {}
    for measured in found:
        if measured.op.key not in ops:
            (m, k), (_, n) = measured.op.inputs[0].shape, measured.op.inputs[-1].shape
            ops[measured.op.key] = Op("op", attributes={"m": m, "k": k, "n": n, "label": measured.op.key})
    return [replace(measured, op=ops[measured.op.key]) for measured in found]


def fold_of(entries: Sequence[MeasuredOp], known: int, seed: int) -> Fold:
    """A fifth of the ops left out, and `known` of the others."""
    order = np.random.default_rng(1000 + seed).permutation(len(entries)).tolist()
    left_out = len(entries) // 5
    return Fold("held out", tuple(order[left_out : left_out + known]), tuple(order[:left_out]))


def judged(found: Sequence[Measurement], known: int, samples: Sequence[int], seed: int) -> Sequence[Row]:
    """The learned curve's rows, one for each number of samples."""
    models = [(str(count), LearnedCurve(samples=count)) for count in samples]
    return evaluate(
        found, models, split=lambda entries: (fold_of(entries, known, seed),), split_name="known", draw=seed
    ).rows


def oracle(entries: Sequence[MeasuredOp], count: int, seed: int) -> tuple[float, float]:
    """Accuracy and regret of who knows all true curves, those of the judged ops too, but not which of them an op has.

    It weighs each curve by how likely the single samples are under it, and forecasts the weighted mean of logarithms.
    With noiseless samples it would make no error: what it loses is lost by the noise of single samples.
    """
    noise, random = SampleNoise.fitted(entries), np.random.default_rng(seed)
    cases = tuple(sorted(entries[0].by_case))
    truth = np.log([[entry.by_case[case].seconds for case in cases] for entry in entries])
    at = [cases.index(Case(threads)) for threads in SAMPLED[count]]
    errors, lost = [], []
    for row in fold_of(entries, 1, seed).test:
        drawn = one_sample(entries[row], random)
        logs = np.log([drawn.by_case[cases[i]].seconds for i in at])
        likely = _likelihood(truth[:, at], logs, noise)
        forecast = likely @ truth
        forecast[at] = logs
        left = np.setdiff1d(np.arange(len(cases)), at)
        errors.append(np.abs(np.exp(forecast - truth[row]) - 1)[left].mean())
        lost.append(np.exp(truth[row, forecast.argmin()] - truth[row].min()) - 1)
    return 1 - float(np.mean(errors)), float(np.mean(lost))


def gaussian_oracle(entries: Sequence[MeasuredOp], count: int, seed: int) -> tuple[float, float]:
    """Accuracy and regret of a Gaussian that knows how all true curves vary over cases, those of the judged ops too."""
    random, cases = np.random.default_rng(seed), tuple(sorted(entries[0].by_case))
    truth = np.log([[entry.by_case[case].seconds for case in cases] for entry in entries])
    truth -= (base := work_per_thread([entry.op for entry in entries], cases))
    gaussian = CaseGaussian.fitted(truth, [case.threads for case in cases], np.full(len(cases), 1e-4))
    at, test = [cases.index(Case(threads)) for threads in SAMPLED[count]], list(fold_of(entries, 1, seed).test)
    drawn = [one_sample(entries[row], random) for row in test]
    logs = np.log([[one.by_case[cases[i]].seconds for i in at] for one in drawn])
    scatter = SampleNoise.fitted(entries).around(logs, np.ones_like(logs), np.zeros_like(logs))
    off, ones = logs - base[np.ix_(test, at)], np.ones(len(test))
    forecast = gaussian.given(at, off, scatter, ones, 0 * ones)[0]
    forecast[:, at] = off
    left, rows = np.setdiff1d(np.arange(len(cases)), at), np.arange(len(test))
    wrong = np.abs(np.exp(forecast - truth[test]) - 1)[:, left]
    times, chosen = (truth + base)[test], (forecast + base[test]).argmin(axis=1)
    return 1 - float(wrong.mean()), float((np.exp(times[rows, chosen] - times.min(axis=1)) - 1).mean())


def _likelihood(curves: Floats, logs: Floats, noise: SampleNoise) -> Floats:
    """(n_curves,) weights, whose sum is 1."""
    shares, narrow, offsets, wide = (
        np.interp(curves, noise.knots, values) for values in (noise.shares, noise.narrow, noise.offsets, noise.wide)
    )
    apart = logs - curves
    near = (1 - shares) * np.exp(-0.5 * (apart / narrow) ** 2) / narrow
    far = shares * np.exp(-0.5 * ((apart - offsets) / wide) ** 2) / wide
    weights = np.log(near + far + 1e-300).sum(axis=1)
    found: Floats = np.exp(weights - weights.max())
    return found / found.sum()


def rows(found: Sequence[Measurement], name: str, arguments: argparse.Namespace) -> Iterator[dict[str, object]]:
    """The rows of one set, means over seeds with the least and the most."""
    for known in arguments.known:
        each = [judged(found, known, arguments.samples, seed) for seed in range(arguments.seeds)]
        for count, of_count in zip(arguments.samples, zip(*each, strict=True), strict=True):
            scores = {"accuracy": "accuracy", "regret": "regret_mean", "holds": "coverage_90"}
            values = {name: [getattr(row, column) for row in of_count] for name, column in scores.items()}
            yield {"described": name, "known": known, "samples": count, **_ranges(values)}


def _ranges(scores: Mapping[str, Sequence[float]]) -> dict[str, str | None]:
    """Mean, least and most of each score, in percent; None of a score without values."""
    found: dict[str, str | None] = {}
    for name, values in scores.items():
        ranged = (np.mean(values), min(values), max(values)) if values else (None,) * 3
        for column, value in zip((name, f"{name}_low", f"{name}_high"), ranged, strict=True):
            found[column] = None if value is None else f"{100 * value:.1f}"
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--curves", type=Path, required=True, help="folder of the ADSALA curves")
    parser.add_argument("--known", type=_numbers, default=_numbers("100,240,720"), help="separated by commas")
    parser.add_argument("--samples", type=_numbers, default=_numbers("0,1,3"), help="0, 1 or 3, separated by commas")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--write", action="store_true", help=KNOWN_OPS.writes)
    arguments = parser.parse_args()
    run, made = RunFacts.now(), []
    found = adsala_wide(arguments.curves / CASCADE_LAKE["sgemm"])
    entries, _ = usable(group(found))
    for count in arguments.samples:
        for name, function in (("oracle of curves", oracle), ("Gaussian oracle", gaussian_oracle)) if count else ():
            accuracy, regret = zip(*(function(entries, count, seed) for seed in range(arguments.seeds)), strict=True)
            ranges = _ranges({"accuracy": accuracy, "regret": regret, "holds": ()})
            made.append({"described": name, "known": "all", "samples": count, **ranges})
    for name, of_set in (("with FLOPs and bytes", found), ("m, k, n alone", without_work(found))):
        made += rows(of_set, name, arguments)
    print(KNOWN_OPS.printed(made))
    if arguments.write:
        KNOWN_OPS.store(made, run)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


if __name__ == "__main__":
    main()
