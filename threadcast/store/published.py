"""Reads sets of times that others measured and published, as measurements.

The card of each set in `data/` says what the set is and what its samples are.

A machine of these sets is a label and a number of equal cores: as many as the most threads that it was measured with.
"""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from threadcast.core import Case, Machine, Measurement, Op, Sample
from threadcast.core.errors import FormatError, NotFound
from threadcast.core.settings import DATA_VARIABLE

_PLACEMENTS = ("", "NUMA", "HT", "ALL")
"""The placements of threads in gbm_training_time.csv, the one whose threads share least first."""

_MINIBUDE_LINE = re.compile(r"(\d+), ([\d.]+) mS, ([\d.]+) mS, ([\d.]+) mS, [\d.]+ mS")
_SUMMARY = "minimum, mean, maximum"
_MS_PER_S = 1e3


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


def ncnn_network_latency() -> list[Measurement]:
    """Inference latency of 35 networks on seven builds of five machines; samples are minimum, mean and maximum."""
    return _measurements(
        _Point(
            f"{row['device']}, build {row['build']}",
            Op("network", attributes={"network": row["model"], "library": "ncnn"}), int(row["threads"]),
            tuple(Sample(float(row[name]) / _MS_PER_S) for name in ("min_ms", "avg_ms", "max_ms")),
            {"samples": _SUMMARY, "runs": int(row["loop_count"])},
        )
        for row in _rows("ncnn_network_latency.csv")
    )  # fmt: skip


def gbm_training_time() -> list[Measurement]:
    """Training time of four gradient-boosting libraries in nine sets of runs; samples are the runs.

    Of several placements of a thread count the one that shares least is used.
    """
    settings: dict[tuple[str, Op, int], dict[tuple[int, str], list[Sample]]] = {}
    for row in _rows("gbm_training_time.csv"):
        op = Op("gbm_training", attributes={"library": row["library"], "million_rows": float(row["size_Mrows"])})
        placements = settings.setdefault((str(Path(row["file"]).with_suffix("")), op, int(row["threads"])), {})
        placement = _PLACEMENTS.index(row["mode"]), row["cpuset"]
        placements.setdefault(placement, []).append(Sample(float(row["time_s"])))
    points = []
    for setting, placements in settings.items():
        (mode, cpuset), samples = min(placements.items())
        points.append(_Point(*setting, tuple(samples), {"mode": _PLACEMENTS[mode], "cpuset": cpuset}))
    return _measurements(points)


def minibude_thunderx2() -> list[Measurement]:
    """A docking kernel with 1, 2 and 4 threads per core, each as a machine of its own; samples are minimum, mean and
    maximum."""
    points = []
    for per_core in (1, 2, 4):
        path = data_directory() / "published" / "minibude_thunderx2" / f"SummaryThreads{per_core}T.agg"
        for number, line in enumerate(path.read_text().splitlines()[3:], start=4):
            found = _MINIBUDE_LINE.fullmatch(line.strip())
            if not found:
                raise FormatError(f"{path}, line {number}: must be threads and four times in mS, got {line!r}")
            threads, *summary = found.groups()
            samples = tuple(Sample(float(time) / _MS_PER_S) for time in summary)
            machine = f"ThunderX2 x 2, {per_core} threads a core"
            points.append(_Point(machine, Op("minibude"), int(threads), samples, {"samples": _SUMMARY, "runs": 10}))
    return _measurements(points)


def _measurements(points: Iterable[_Point]) -> list[Measurement]:
    found, most = list(points), dict[str, int]()
    for point in found:
        most[point.machine] = max(most.get(point.machine, 0), point.threads)
    machines = {label: Machine.uniform(label, threads) for label, threads in most.items()}
    return [Measurement(p.op, machines[p.machine], Case(p.threads), p.samples, p.conditions) for p in found]


def _rows(name: str) -> list[dict[str, str]]:
    with (data_directory() / "published" / name).open(newline="") as file:
        return list(csv.DictReader(file))
