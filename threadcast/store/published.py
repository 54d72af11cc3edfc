"""Reads sets of times that others measured and published, as measurements.

The card of each set in `data/` says what the set is and what its samples are.

A machine of these sets is a label and a number of equal cores: as many as the most threads that it was measured with.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from threadcast.core import Case, Machine, Measurement, Op, Sample, TensorSpec
from threadcast.core.errors import FormatError, NotFound
from threadcast.core.settings import DATA_VARIABLE
from threadcast.store.table_opening import open_table

T = TypeVar("T")

_PLACEMENTS = ("", "NUMA", "HT", "ALL")
"""The placements of threads in gbm_training_time.csv, the one whose threads share least first."""

_MINIBUDE_LINE = re.compile(r"(\d+), ([\d.]+) mS, ([\d.]+) mS, ([\d.]+) mS, [\d.]+ mS")
_WIDE_TIME = re.compile(r"t[1-9]\d*")
_SUMMARY = "minimum, mean, maximum"
_MS_PER_S, _US_PER_S = 1e3, 1e6


class _Point(NamedTuple):
    """A measurement whose machine is still a label."""

    machine: str
    op: Op
    threads: int
    samples: tuple[Sample, ...]
    conditions: Mapping[str, Any]


def data_directory() -> Path:
    """The folder `data/`: the one that THREADCAST_DATA names, else that of the checkout. NotFound if there is none."""
    given = os.environ.get(DATA_VARIABLE)
    path = Path(given) if given else Path(__file__).parents[2] / "data"
    if not path.is_dir():
        raise NotFound(f"there is no data folder at {path}; set {DATA_VARIABLE} to the data/ of a threadcast checkout")
    return path


def ncnn_network_latency(path: Path | None = None) -> list[Measurement]:
    """Inference latency of 35 networks on seven builds of five machines; samples are minimum, mean and maximum."""

    def point(row: Mapping[str, str]) -> _Point:
        op = Op("network", attributes={"network": row["model"], "library": "ncnn"})
        samples = tuple(Sample(float(row[name]) / _MS_PER_S) for name in ("min_ms", "avg_ms", "max_ms"))
        conditions = {"samples": _SUMMARY, "runs": int(row["loop_count"])}
        return _Point(f"{row['device']}, build {row['build']}", op, int(row["threads"]), samples, conditions)

    return _measurements(_read(path or _published("ncnn_network_latency.csv"), point))


def gbm_training_time(path: Path | None = None) -> list[Measurement]:
    """Training time of four gradient-boosting libraries in nine sets of runs; samples are the runs.

    Of several placements of a thread count the one that shares least is used.
    """

    def run(row: Mapping[str, str]) -> tuple[tuple[str, Op, int], tuple[int, str], Sample]:
        op = Op("gbm_training", attributes={"library": row["library"], "million_rows": float(row["size_Mrows"])})
        setting = (str(Path(row["file"]).with_suffix("")), op, int(row["threads"]))
        return setting, (_PLACEMENTS.index(row["mode"]), row["cpuset"]), Sample(float(row["time_s"]))

    settings: dict[tuple[str, Op, int], dict[tuple[int, str], list[Sample]]] = {}
    for setting, placement, sample in _read(path or _published("gbm_training_time.csv"), run):
        settings.setdefault(setting, {}).setdefault(placement, []).append(sample)
    points = []
    for setting, placements in settings.items():
        (mode, cpuset), samples = min(placements.items())
        points.append(_Point(*setting, tuple(samples), {"mode": _PLACEMENTS[mode], "cpuset": cpuset}))
    return _measurements(points)


def minibude_thunderx2(directory: Path | None = None) -> list[Measurement]:
    """A docking kernel with 1, 2 and 4 threads per core, each as a machine of its own; samples are minimum, mean and
    maximum."""
    directory = directory or _published("minibude_thunderx2")
    points = []
    for per_core in (1, 2, 4):
        path = directory / f"SummaryThreads{per_core}T.agg"
        for number, line in enumerate(path.read_text().splitlines()[3:], start=4):
            found = _MINIBUDE_LINE.fullmatch(line.strip())
            if not found:
                raise FormatError(f"{path}, line {number}: must be threads and four times in mS, got {line!r}")
            threads, *summary = found.groups()
            samples = tuple(Sample(float(time) / _MS_PER_S) for time in summary)
            machine = f"ThunderX2 x 2, {per_core} threads a core"
            points.append(_Point(machine, Op("minibude"), int(threads), samples, {"samples": _SUMMARY, "runs": 10}))
    return _measurements(points)


def adsala_wide(path: Path, *, machine: Machine | None = None) -> list[Measurement]:
    """Times of one BLAS routine in the wide layout of ADSALA (Xia and Barca 2026): a column a thread count.

    Columns: `m, k, n` of a single-precision matrix product, or `n` of a dot product; `rep`; `t1` to `tP`, the
    microseconds with so many threads. CSV, plain or gzipped. Without `machine`, the measurements are of a machine of P
    equal cores that is named after the file.
    """
    runs: dict[Op, dict[int, list[Sample]]] = {}
    for op, times in _read(path, _wide_row):
        of_op = runs.setdefault(op, {})
        for threads, sample in times.items():
            of_op.setdefault(threads, []).append(sample)
    most = max(max(of_op) for of_op in runs.values())
    machine = machine or Machine.uniform(path.name.partition(".")[0], most)
    cases = {threads: Case(threads) for threads in range(1, most + 1)}
    return [
        Measurement(op, machine, cases[threads], tuple(samples))
        for op, of_op in runs.items()
        for threads, samples in of_op.items()
    ]


def _wide_row(row: Mapping[str, str]) -> tuple[Op, dict[int, Sample]]:
    if "m" in row:
        m, k, n = (int(row[name]) for name in ("m", "k", "n"))
        op = Op("mm", (TensorSpec((m, k)), TensorSpec((k, n))), outputs=(TensorSpec((m, n)),))
    else:
        vector = TensorSpec((int(row["n"]),))
        op = Op("dot", (vector, vector), outputs=(TensorSpec(()),), cost=(2.0 * vector.numel, None))
    times = {int(name[1:]): Sample(float(cell) / _US_PER_S) for name, cell in row.items() if _WIDE_TIME.fullmatch(name)}
    if not times:
        raise KeyError("t1")
    return op, times


def _measurements(points: Sequence[_Point]) -> list[Measurement]:
    most: dict[str, int] = {}
    for point in points:
        most[point.machine] = max(most.get(point.machine, 0), point.threads)
    machines = {label: Machine.uniform(label, threads) for label, threads in most.items()}
    return [Measurement(p.op, machines[p.machine], Case(p.threads), p.samples, p.conditions) for p in points]


def _read(path: Path, convert: Callable[[Mapping[str, str]], T]) -> list[T]:
    """Each row of a CSV file, by column name, converted; FormatError naming the row where that fails."""
    with open_table(path) as table:
        found = []
        for number, cells in table.rows:
            if isinstance(cells, FormatError):
                raise cells
            try:
                found.append(convert(dict(zip(table.columns, cells))))
            except KeyError as error:
                raise FormatError(f"{path}: missing column {error}") from error
            except ValueError as error:
                raise FormatError(f"{path}, line {number}: {error}") from error
        if not found:
            raise FormatError(f"{path} has no rows below its column names")
        return found


def _published(name: str) -> Path:
    return data_directory() / "published" / name
