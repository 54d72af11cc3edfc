"""Reads the times of ADSALA's BLAS routines (Xia and Barca 2026): wide tables, with a column a thread count."""

from __future__ import annotations

import re
from pathlib import Path

import pandas

from threadcast.core import Case, Machine, Measurement, Op, Sample, TensorSpec

_US_PER_S = 1e6


def adsala_wide(path: Path) -> list[Measurement]:
    """Times of one routine on a machine of as many equal cores as threads, which is named after the file.

    Columns: `m, k, n` of a single-precision matrix product, or `n` of a dot product; `rep`; `t1` to `tP`, the
    microseconds with so many threads. CSV, plain or gzipped.
    """
    table = pandas.read_csv(path)
    threads = {name: int(name[1:]) for name in table if re.fullmatch(r"t[1-9]\d*", name)}
    machine = Machine.uniform(path.name.partition(".")[0], max(threads.values()))
    return [
        Measurement(op, machine, Case(count), tuple(Sample(time / _US_PER_S) for time in rows[name].tolist()))
        for sizes, rows in table.groupby([name for name in ("m", "k", "n") if name in table], sort=False)
        for op in [_op(*map(int, sizes))]
        for name, count in threads.items()
    ]


def _op(*sizes: int) -> Op:
    if len(sizes) == 1:
        vector = TensorSpec(sizes)
        return Op("dot", (vector, vector), outputs=(TensorSpec(()),), cost=(2.0 * vector.numel, None))
    m, k, n = sizes
    return Op("mm", (TensorSpec((m, k)), TensorSpec((k, n))), outputs=(TensorSpec((m, n)),))
