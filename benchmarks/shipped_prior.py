"""Learns the prior that threadcast ships, and judges it on machines that it has not learned from.

    python benchmarks/shipped_prior.py [--store] [--write] [--curves FOLDER] [--seeds 4]

It learns from what may be shipped only: the ops that threadcast recorded itself, the simulated Xeon Phi, and simulated
servers of 8 to 128 cores. `--store` puts it into the package, `--write` its tables and picture into the documentation.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
import paper_networks
from adsala import adsala_wide
from figures.forecasts import NEW_MACHINE, NEW_MACHINE_OWN
from recorded_sets import recorded
from run_facts import RunFacts
from simulated_servers import servers

from threadcast.collector.simulated.source import SimulatedXeonPhi
from threadcast.core import Case, CurveTable, Machine, Measurement, Op, Source
from threadcast.models.base import PerformanceModel
from threadcast.models.evaluation import one_sample
from threadcast.models.joint_process import JointProcess
from threadcast.models.learned_curve import LearnedCurve
from threadcast.models.measured import MeasuredOp, group
from threadcast.models.point_trees import Shape
from threadcast.models.prior import SHIPPED, Prior

T = TypeVar("T")

SHAPE = Shape(trees=60, depth=6)
RECORDED_OPS, PHI_OPS, SERVER_OPS = 600, 400, 150
"""Ops of each machine, drawn at random, so that no machine outweighs the others."""

KNOWN, SAMPLES, ASKED = (0, 2, 5, 10, 30, 60), 3, 80
"""Numbers of ops that were measured, cases measured of each, and ops that are forecast."""

OWN = (0, 1, 2, 3)
"""Numbers of samples of each op, where ops are forecast by their own."""

JUDGED = (2, 64, 68, 96, 128)
"""Cores of the machines that are judged on."""

PICTURE = Path(__file__).parents[1] / "docs" / "images" / "new-machine.svg"

THREADS = (1, 2, 3, 4, 6, 8, 12, 16, 20, 24, 32, 40, 48, 56, 64, 68, 80, 96, 112, 128)


def drawn(values: Sequence[T], count: int, seed: int) -> list[T]:
    """So many of the values, or all, at random."""
    return [values[i] for i in np.random.default_rng(seed).permutation(len(values))[:count].tolist()]


def recorded_set() -> list[Measurement]:
    """Ops that threadcast recorded on a machine with two cores."""
    found = recorded()
    some = set(drawn(sorted({m.op.key for m in found}), RECORDED_OPS, 0))
    return [m for m in found if m.op.key in some]


def phi_set(networks: Sequence[str] = paper_networks.LIU) -> list[Measurement]:
    """Ops of the papers' networks on the simulated Xeon Phi, without noise."""
    phi = SimulatedXeonPhi(samples=1, noise=0.0, count=False)
    ops = list({key: op for name in networks for key, op in paper_networks.load(name).distinct_ops().items()}.values())
    cases = [case for case in phi.machine.cases() if case.threads in THREADS]
    return [phi(op, case) for op in drawn(ops, PHI_OPS, 1) for case in cases]


def server_set(ops: Sequence[Op]) -> list[Measurement]:
    """Some of these ops on each simulated server."""
    found = []
    for i, server in enumerate(servers()):
        cases = tuple(case for case in server.machine.cases() if case.threads in THREADS)
        found += [m for op in drawn(ops, SERVER_OPS, 2 + i) for m in server.measured(op, cases)]
    return found


def permissive_sets() -> dict[str, list[Measurement]]:
    """What the shipped prior learns from, by name."""
    own, phi = recorded_set(), phi_set()
    ops = list({m.op.key: m.op for m in (*own, *phi) if m.op.flops + m.op.bytes_moved > 0}.values())
    return {"recorded": own, "Xeon Phi (simulated)": phi, "servers (simulated)": server_set(ops)}


def learned(sets: dict[str, list[Measurement]], *, without: str = "") -> Prior:
    """The prior from all sets but one."""
    return Prior.learned([m for name, of_set in sets.items() if name != without for m in of_set], shape=SHAPE)


@dataclass(frozen=True)
class NewMachine:
    """A machine on which nothing was measured, its ops, and the prior from all other machines."""

    name: str
    entries: Sequence[MeasuredOp]
    prior: Prior
    learned: LearnedCurve

    @property
    def machine(self) -> Machine:
        return self.entries[0].machine

    @property
    def cases(self) -> tuple[Case, ...]:
        """The cases in which all ops were measured."""
        return tuple(sorted(set.intersection(*(set(entry.by_case) for entry in self.entries))))


def curve_of(sets: dict[str, list[Measurement]], *, without: str = "") -> LearnedCurve:
    """The learned curve from all sets but one."""
    known = [m for name, of_set in sets.items() if name != without for m in of_set]
    return LearnedCurve(samples=max(OWN), trees=SHAPE.trees, depth=SHAPE.depth).fit(known)


def new_machines(curves: Path | None) -> Iterator[NewMachine]:
    """The machines of each set, with models that have not learned from that set."""
    sets = permissive_sets()
    for name, of_set in sets.items():
        prior, curve, by_machine = learned(sets, without=name), curve_of(sets, without=name), {}
        for entry in group(of_set):
            by_machine.setdefault(entry.machine, []).append(entry)
        for machine, entries in by_machine.items():
            complete = max(len(entry.by_case) for entry in entries)
            own = [entry for entry in entries if len(entry.by_case) == complete > 1]
            label = f"{machine.name}, {len(machine)} cores"
            if len(machine) in JUDGED:
                yield NewMachine(label if of_set is sets["recorded"] else f"{label} (simulated)", own, prior, curve)
    if curves is not None:
        prior, curve = learned(sets), curve_of(sets)
        for name in ("sgemm", "sdot"):
            entries = group(adsala_wide(curves / f"{name}_mkl_cascadelake.csv.gz"))
            some = [entries[i] for i in np.random.default_rng(0).permutation(len(entries))[:250]]
            yield NewMachine(f"{name}, {len(some[0].machine)} threads", some, prior, curve)


def by_others(new: NewMachine, known: int, *, prior: bool, seed: int) -> dict[str, float]:
    """The errors of forecasts for ops without samples, after `known` others were measured in `SAMPLES` cases each: the
    case that the process asks for, then the next one when all of them were measured."""
    random = np.random.default_rng([seed, known])
    order = random.permutation(len(new.entries)).tolist()
    others, asked = ([new.entries[i] for i in part] for part in (order[:known], order[-ASKED:]))
    model = JointProcess(samples=SAMPLES, enough=0.0, prior=new.prior if prior else False)
    drawn_once, samples = [one_sample(entry, random) for entry in others], [[] for _ in others]
    for _ in range(SAMPLES if others else 0):
        samples = [_one_more(model, *of_op, new) for of_op in zip(drawn_once, samples, strict=True)]
        model = JointProcess(samples=SAMPLES, enough=0.0, prior=new.prior if prior else False)
        model.fit([m for of_op in samples for m in of_op])
    return _errors(
        new, asked, model.predict_many([e.op for e in asked], [[] for _ in asked], new.cases, machine=new.machine)
    )


def by_own(new: NewMachine, count: int, *, seed: int) -> dict[str, float]:
    """The errors of the learned curve's forecasts, with `count` samples of each op, one after the other in the case
    that it proposes."""
    random = np.random.default_rng([seed, 7])
    asked = [new.entries[i] for i in random.permutation(len(new.entries))[:ASKED]]
    drawn_once, samples = [one_sample(entry, random) for entry in asked], [[] for _ in asked]
    for _ in range(count):
        model = new.learned.adapted([m for of_op in samples for m in of_op])
        samples = [_one_more(model, *of_op, new) for of_op in zip(drawn_once, samples, strict=True)]
    model = new.learned.adapted([m for of_op in samples for m in of_op])
    return _errors(new, asked, model.predict_many([e.op for e in asked], samples, new.cases, machine=new.machine))


def _one_more(
    model: PerformanceModel, entry: MeasuredOp, samples: list[Measurement], new: NewMachine
) -> list[Measurement]:
    case = model.propose_among(entry.op, samples, new.machine, new.cases)
    return samples if case is None else [*samples, entry.by_case[case]]


def _errors(new: NewMachine, asked: Sequence[MeasuredOp], table: CurveTable) -> dict[str, float]:
    """How far the forecasts are off; cases that were measured count for the choice only."""
    truth = np.array([[entry.by_case[case].seconds for case in new.cases] for entry in asked])
    chosen, rows = table.seconds.argmin(axis=1), np.arange(len(asked))
    left = table.source != list(Source).index(Source.MEASURED)
    held, wide = (truth >= table.low) & (truth <= table.high), np.log(table.high / table.low)
    return {
        "factor": float(np.exp(np.median(np.abs(np.log(table.seconds / truth)[left])))) if left.any() else np.nan,
        "regret": float((truth[rows, chosen] / truth.min(axis=1) - 1).mean()),
        "all_cores": float((truth[:, -1] / truth.min(axis=1) - 1).mean()),
        "coverage": float(held[left].mean()) if left.any() else np.nan,
        "width": float(np.exp(wide[left].mean() / 2)) if left.any() else np.nan,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", action="store_true", help="store the prior in the package")
    parser.add_argument("--write", action="store_true", help=f"{NEW_MACHINE.writes}, with its picture")
    parser.add_argument("--curves", type=Path, help="folder of the ADSALA curves, never stored")
    parser.add_argument("--seeds", type=int, default=4)
    chosen = parser.parse_args()
    if chosen.store:
        SHIPPED.mkdir(exist_ok=True)
        for name, data in learned(permissive_sets()).to_files().items():
            (SHIPPED / name).write_bytes(data)
    run, rows, own_rows, drawn_curves = RunFacts.now(), [], [], {}
    for new in new_machines(None if chosen.write else chosen.curves):
        for prior in (True, False):
            for known in KNOWN:
                mean = _mean([by_others(new, known, prior=prior, seed=seed) for seed in range(chosen.seeds)])
                drawn_curves.setdefault((new.name, prior), []).append((known, mean))
                rows.append({"machine": new.name, "prior": prior, "ops_measured": known, **_cells(mean)})
                print(rows[-1], flush=True)
        for count in OWN:
            mean = _mean([by_own(new, count, seed=seed) for seed in range(chosen.seeds)])
            own_rows.append({"machine": new.name, "samples": count, **_cells(mean)})
            print(own_rows[-1], flush=True)
    if chosen.write:
        NEW_MACHINE.store(rows, run)
        NEW_MACHINE_OWN.store(own_rows, run)
        draw(drawn_curves, PICTURE)


def _mean(runs: Sequence[dict[str, float]]) -> dict[str, float]:
    return {name: float(np.mean([one[name] for one in runs])) for name in runs[0]}


def _cells(mean: dict[str, float]) -> dict[str, str | None]:
    shapes = {
        "factor": ("factor", 1.0, 2), "regret_percent": ("regret", 100.0, 1),
        "all_cores_percent": ("all_cores", 100.0, 1), "holds_percent": ("coverage", 100.0, 0),
        "width": ("width", 1.0, 1),
    }  # fmt: skip
    return {
        column: None if np.isnan(mean[name]) else f"{factor * mean[name]:.{digits}f}"
        for column, (name, factor, digits) in shapes.items()
    }


def draw(curves: dict[tuple[str, bool], list[tuple[int, dict[str, float]]]], path: Path) -> None:
    """Error and regret over the number of measured ops, a line for each machine."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    names = list(dict.fromkeys(name for name, _ in curves))
    for (name, prior), points in curves.items():
        colour, style = f"C{names.index(name)}", "-" if prior else ":"
        known = [count for count, _ in points]
        for axis, figure_name, factor in ((axes[0], "factor", 1.0), (axes[1], "regret", 100.0)):
            values = [factor * mean[figure_name] for _, mean in points]
            label = name if prior else None
            axis.plot(known, values, style, color=colour, marker="o", markersize=3, label=label)
    axes[0].set(ylabel="median error of a forecast (factor)", yscale="log", ylim=(1, 20))
    axes[1].set(ylabel="regret of the chosen case (%)", yscale="log", ylim=(1, 200))
    for axis, ticks in zip(axes, ((1, 1.5, 2, 3, 5, 10, 20), (1, 2, 5, 10, 20, 50, 100, 200)), strict=True):
        axis.set(xlabel="ops measured on the new machine", xscale="symlog", yticks=ticks)
        axis.set_xticks(KNOWN, [str(known) for known in KNOWN])
        axis.get_yaxis().set_major_formatter("{x:g}")
        axis.minorticks_off()
        axis.grid(alpha=0.3)
    title = "solid: with the shipped prior, dotted: without"
    figure.legend(
        *axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=3, title=title, fontsize="small"
    )
    figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    main()
