"""Fits the simulated Xeon Phi to two published tables, and to nothing else.

Table II of Liu et al. 2018 gives for nine ops the fastest thread count, the time at that count, and how much slower 68
threads are: seven constants are fitted to these 27 numbers. Table III gives the times of two ops in turn, on the same
cores, and on half of the cores each: two constants follow from it. Needs scipy, which `threadcast[models]` installs.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from threadcast.collector.simulated.constants import CORES, PEAK_FLOPS_PER_S, Constants
from threadcast.collector.simulated.demand import Pass
from threadcast.collector.simulated.xeon_phi import XeonPhi
from threadcast.core import Case, Op, TensorSpec
from threadcast.core.errors import FormatError


class Filter(NamedTuple):
    """Height and width of a convolution's filters, and how many there are."""

    height: int
    width: int
    outputs: int


FILTER = Filter(1, 3, 384)
"""Table II gives input shapes and no filters. 8 x 8 x 384 is the input of the 1 x 3 and 3 x 1 convolutions of
Inception-v3's last blocks, which have 384 filters; the paper changed nothing but the input's size, so the other two
keep the filter. `benchmarks/calibrate_xeon_phi.py --filters` shows what other choices would give."""

TIME_ERROR, GAIN_ERROR, FLATNESS_ERROR = 0.05, 0.02, 0.01
"""Relative deviations by which the fit divides its errors: of a time; of the loss at 68 threads; of the model's time at
the paper's best count over its own best time. The tables themselves differ by 3 % (Table III's serial run is that much
longer than the sum of the same ops' times in Table II), and a fastest count is known better than the time at it."""

KINDS = {
    "Conv2D": "convolution",
    "Conv2DBackpropInput": "convolution_backward_input",
    "Conv2DBackpropFilter": "convolution_backward_weight",
}
_CO_RUN_SHAPE = "32x8x8x2048"


@dataclass(frozen=True, slots=True)
class TableRow:
    """One row of Table II. `gain_over_68`: seconds at 68 threads over seconds at `best_threads`, less one."""

    name: str
    shape: str
    op: Op
    seconds: float
    best_threads: int
    gain_over_68: float


def table_op(name: str, shape: str, filter: Filter = FILTER) -> Op:
    """The op of a row of Table II; `shape` is written as in the table, "32x8x8x384": batch, height, width, channels."""
    try:
        kind, (batch, height, width, channels) = KINDS[name], map(int, shape.split("x"))
    except (KeyError, ValueError) as error:
        raise FormatError(f"{name!r} at {shape!r} is none of {', '.join(KINDS)} at NxHxWxC") from error
    image = TensorSpec((batch, channels, height, width))
    result = TensorSpec((batch, filter.outputs, height, width))
    weight = TensorSpec((filter.outputs, channels, filter.height, filter.width))
    if kind == "convolution":
        return Op(kind, (image, weight), outputs=(result,))
    written = image if kind == "convolution_backward_input" else weight
    return Op(kind, (result, image, weight), outputs=(written,))


def read_table(path: Path, *, filters: Mapping[str, Filter] | None = None) -> tuple[TableRow, ...]:
    """Read `knl_best_threads_by_input.csv`; FormatError on a row of another form.

    `filters` by input shape replace `FILTER` where given.
    """
    rows = _rows(path, {"op", "input_shape", "total_s", "best_threads", "gain_over_68"})
    return tuple(
        TableRow(
            row["op"],
            row["input_shape"],
            table_op(row["op"], row["input_shape"], (filters or {}).get(row["input_shape"], FILTER)),
            float(row["total_s"]) / 1000,  # the table's times are of 1000 runs
            int(row["best_threads"]),
            float(row["gain_over_68"]),
        )
        for row in rows
    )


def calibrate(best_threads: Path, co_run: Path) -> Constants:
    """Return the constants that fit the two tables best, by least squares from several starting points."""
    fitted, _ = fit(read_table(best_threads))
    return _with_co_run(fitted, co_run)


def fit(table: Sequence[TableRow]) -> tuple[Constants, float]:
    """The constants of lone ops that fit `table` best, and half the sum of the squared weighted errors.

    The constants of ops that run side by side are set to have no effect.
    """
    from scipy.optimize import least_squares

    def constants(logs: NDArray[np.float64]) -> Constants:
        values = np.exp(logs).tolist()
        return Constants(dict(zip(Pass, values[:3])), dict(zip(Pass, values[3:6])), values[6], 0.0, 1.0)

    def errors(logs: NDArray[np.float64]) -> list[float]:
        model = XeonPhi(constants(logs))
        return [error for row in table for error in _errors(model, row)]

    # Bounds keep the constants physical: a rate below the peak, a reorder between 50 MB/s and 1 TB/s.
    low = np.log([1e9] * 3 + [1e-12] * 3 + [1e8])
    high = np.log([PEAK_FLOPS_PER_S] * 3 + [2e-8] * 3 + [1e13])
    starts = [[rate] * 3 + [reorder] * 3 + [share] for rate in (15e9, 50e9) for reorder in (1e-10, 1e-9)
              for share in (5e9, 2e10)]  # fmt: skip
    found = [least_squares(errors, np.log(start), bounds=(low, high), x_scale=1.0) for start in starts]
    best = min(found, key=lambda result: float(result.cost))
    return constants(best.x), float(best.cost)


def _errors(model: XeonPhi, row: TableRow) -> tuple[float, float, float]:
    curve = model.curve(row.op, np.arange(1, CORES + 1))
    at_best = curve[row.best_threads - 1]
    return (
        float(np.log(at_best / row.seconds)) / TIME_ERROR,
        float(curve[CORES - 1] / at_best - 1 - row.gain_over_68) / GAIN_ERROR,
        float(at_best / curve.min() - 1) / FLATNESS_ERROR,
    )


def _with_co_run(fitted: Constants, path: Path) -> Constants:
    """`fitted` with the two constants of Table III, from ratios to its first row.

    By ratios, because then errors of the fit in the ops' own times do not matter.
    """
    rows = {row["strategy"]: row for row in _rows(path, {"strategy", "threads", "total_s"})}
    try:
        serial, shared, split = (
            float(rows[name]["total_s"]) for name in ("serial", "hyper_threading", "threads_control")
        )
    except KeyError as error:
        raise FormatError(f"{path} has no row {error}; it needs serial, hyper_threading and threads_control") from error
    model = XeonPhi(fitted)
    pair = [table_op(name, _CO_RUN_SHAPE) for name in ("Conv2DBackpropFilter", "Conv2DBackpropInput")]
    alone = sum(model.seconds(op, Case(CORES)) for op in pair)
    halves = max(model.seconds(op, Case(CORES // 2)) for op in pair)
    contention = max(0.0, split / serial * alone / halves - 1)
    throughput = max(1.0, serial / shared)
    return Constants(fitted.flops_per_s, fitted.reorder_s_per_byte, fitted.share_bytes_per_s, contention, throughput)


def _rows(path: Path, needed: Iterable[str]) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        reader = csv.DictReader(line for line in file if not line.startswith("#"))
        missing = sorted(set(needed) - set(reader.fieldnames or ()))
        if missing:
            raise FormatError(f"{path} lacks the columns {', '.join(missing)}")
        return list(reader)
