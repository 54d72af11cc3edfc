"""Features of ops and cases that are known before any measurement, as numbers that regressors learn from.

An op is described by its work and shapes, a case by how its threads are placed on a machine. Both together are
described by the flops and bytes of one thread compared with the caches, and by how evenly and squarely threads can
divide an op's output.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from threadcast.core import Affinity, Case, Machine, Op, TensorSpec
from threadcast.core.curve import Floats
from threadcast.models.op_features import numbers_of

Features = NDArray[np.float32]

TILES = (16, 48)
"""Elements along a side that vector kernels process at once: a cache line of float32, and the rows of the micro-kernels
of today's matrix libraries. Rounding up to them is why neighbouring shapes and thread counts differ."""

BYTES_WEIGHT = 8.0
"""Flops that a core does in about the time in which it moves a byte (a machine's balance). Only used in `work`."""

UNKNOWN = -10.0
"""The value of a feature that is not known of an op or a machine; below all known values."""

_SIDES = 4
"""Number of sides of a tensor that are features, from the last; the others are features in the element count only."""


def work(ops: Sequence[Op]) -> Floats:
    """(n_ops,) the work of each op, roughly proportional to its time on one thread."""
    flops, moved = (np.array(part) for part in ([op.flops for op in ops], [op.bytes_moved for op in ops]))
    found: Floats = np.maximum(flops, 1.0) + BYTES_WEIGHT * np.maximum(moved, 1.0)
    return found


def describe(ops: Sequence[Op], names: Sequence[str] = ()) -> Floats:
    """(n_ops, 4 + n_names) numbers that distinguish an op from others of its kind.

    The first four are logarithms: the two sides of the matrix that threads divide, the flops for each of its elements,
    and the bytes of all tensors. The others are the attributes `names` of ops without tensors (`OpFeatures.names`).
    """
    found = np.empty((len(ops), 4))
    found[:, :2] = np.reshape([_matrix(op) for op in ops], (-1, 2))
    found[:, 2], found[:, 3] = [op.flops for op in ops], [op.bytes_moved for op in ops]
    found[:, 2:] = np.maximum(found[:, 2:], 1.0)
    found[:, 2] /= found[:, 0] * found[:, 1]
    own: Floats = np.log(found)
    return np.concatenate([own, numbers_of(ops, names, missing=0.0)], axis=1) if names else own


def feature_names(names: Sequence[str] = ()) -> tuple[str, ...]:
    """The names of the features of `joint_features`, in their order: by them a stored model finds its own again."""
    return (*_NAMES, *(f"{part}: {name}" for part in ("attribute", "of a thread") for name in names))


_NAMES = (
    "log flops", "log bytes", "log intensity", "inputs", "log elements", "log rows by columns",
    "log flops of an element",
    *(f"log side -{i + 1} of {tensor}" for tensor in ("input 0", "input 1", "output 0") for i in range(_SIDES)),
    *(f"{side} modulo {tile}" for side in ("rows", "columns") for tile in TILES),
    "threads", "log threads", "share of cores", "smaller factor", "larger factor", "threads modulo 2",
    "threads modulo 4", "threads modulo 8", "spread", "groups", "cores of a group", "sockets", "divisors",
    "log cores of machine", "log groups of machine", "sockets of machine", "hardware threads of a core", "log clock",
    "log inner cache", "log outer cache", "log flops of a thread", "log bytes of a thread",
    "log bytes of a thread by inner cache", "log bytes of a thread by outer cache",
    "cuts of rows", "cuts of columns", "log rows of a part", "log columns of a part", "log rows by columns of a part",
    "log edges by those of a square", "rounding of rows to 48", "rounding of rows to 16", "rounding of elements",
    "rounding of the squarest grid",
)  # fmt: skip
"""Those of every op, in the order of `joint_features`; a name stays what it means."""


def joint_features(ops: Sequence[Op], machine: Machine, cases: Sequence[Case], names: Sequence[str] = ()) -> Features:
    """(n_ops, n_cases, n_features): features of the op, of the machine and the case, and of how the case's threads
    divide the op's work; then for each of the attributes `names` its value, and its value for each thread.

    In memory all cases of a feature lie side by side: so they are computed. A feature is `UNKNOWN` where an op has no
    such tensor or side, or a machine is described without caches or clocks.
    """
    there, sides = _cases(machine, tuple(cases)), np.array([_matrix(op) for op in ops], dtype=np.float64).T
    own, (rows, columns) = _of_ops(ops, *sides), sides.astype(np.float32)
    n, m = own.shape[1], there.features.shape[1]
    width = n + m + 4 + _GRID
    found: Features = np.empty((len(ops), width + 2 * len(names), len(cases)), dtype=np.float32)
    found[:, :n] = _known(own)[:, :, None]
    found[:, n : n + m] = _known(there.features).T
    each = own[:, :2, None] - there.log_threads
    found[:, n + m : n + m + 2] = each
    found[:, n + m + 2 : n + m + 4] = _known(each[:, 1:] - there.log_caches.T)
    _fill_grid(found[:, n + m + 4 : width], rows, columns, there)
    if names:
        numbers = numbers_of(ops, names, missing=math.nan)[:, :, None]
        found[:, width : width + len(names)] = _known(numbers)
        found[:, width + len(names) :] = _known(numbers - there.log_threads)
    return found.transpose(0, 2, 1)


def _known(features: NDArray[np.floating[Any]]) -> NDArray[np.floating[Any]]:
    """The features with `UNKNOWN` in place of NaN; where only some columns can have any, the others take no time."""
    found: NDArray[np.floating[Any]] = np.nan_to_num(features, nan=UNKNOWN)
    return found


@dataclass(frozen=True, slots=True, eq=False)
class _Cases:
    """The features that do not depend on the op. `across` and `along` are the grids of each thread count, (n_cases,
    most grids), padded with infinity and 0; `square` is the position of the squarest grid."""

    features: Features
    log_threads: Features
    log_caches: Features
    across: Features
    along: Features
    square: NDArray[np.int64]


def _cases(machine: Machine, cases: tuple[Case, ...]) -> _Cases:
    return _cases_at(machine, cases, max((core.max_hz or 0.0 for core in machine.cores), default=0.0))


@lru_cache(maxsize=64)
def _cases_at(machine: Machine, cases: tuple[Case, ...], clock: float) -> _Cases:
    """What depends on the cases alone, at this clock in Hz (0: unknown): equal machines may have others."""
    threads = np.array([case.threads for case in cases], dtype=np.float64)
    divisors = [[count for count in range(1, case.threads + 1) if case.threads % count == 0] for case in cases]
    across = np.full((len(cases), max(map(len, divisors))), np.inf)
    for row, of_case in zip(across, divisors, strict=True):
        row[: len(of_case)] = of_case
    along = threads[:, None] / across
    with np.errstate(divide="ignore"):
        square = np.argmin(np.abs(np.log(across / along)), axis=1)
    of_machine = [
        math.log(len(machine)), math.log(len(machine.groups)), len({core.socket for core in machine.cores}),
        machine.threads_per_core, math.log(clock) if clock else math.nan,
        *np.log(_cache_bytes(machine, Case(1))).tolist(),
    ]  # fmt: skip
    features = np.array(
        [[*_of_case(machine, case), len(d), *of_machine] for case, d in zip(cases, divisors, strict=True)]
    )
    caches = np.log([_cache_bytes(machine, case) for case in cases])
    single = np.float32
    return _Cases(
        features.astype(single), np.log(threads).astype(single), caches.astype(single), across.astype(single),
        along.astype(single), square,
    )  # fmt: skip


def _of_ops(ops: Sequence[Op], rows: Floats, columns: Floats) -> Features:
    """(n_ops, n_features): features of the ops alone, whose threads divide matrices of so many `rows` and `columns`
    (n_ops,). Logarithms are taken of all ops at once: one by one they take as long as all other features."""
    counted, sides = [], []
    for op in ops:
        inputs, outputs = op.inputs, op.outputs
        elements = max([spec.numel for spec in (*inputs, *outputs)], default=1)
        counted.append((op.flops, op.bytes_moved, op.intensity, elements, len(inputs)))
        sides.append([
            *_sides(inputs[0].shape if inputs else ()), *_sides(inputs[1].shape if len(inputs) > 1 else ()),
            *_sides(outputs[0].shape if outputs else ()),
        ])  # fmt: skip
    work, moved, intensity, elements_of, tensors = np.array(counted, dtype=np.float64).reshape(-1, 5).T
    work = np.maximum(work, 1.0)
    logs = np.log([work, np.maximum(moved, 1.0), np.maximum(intensity, 1e-3)])
    of_matrix = np.log([np.maximum(elements_of, 1.0), rows / columns, work / (rows * columns)])
    tiles = [side % tile for side in (rows, columns) for tile in TILES]
    of_sides = np.log(np.maximum(np.array(sides, dtype=np.float64).reshape(len(ops), -1), 1.0))
    return np.column_stack([*logs, tensors, *of_matrix, of_sides, *tiles]).astype(np.float32)


_NO_SIDES = (math.nan,) * _SIDES


def _sides(shape: Sequence[int]) -> tuple[float, ...]:
    """The last sides, the last one first; NaN where there are fewer."""
    known = shape[: -_SIDES - 1 : -1]
    return (*known, *_NO_SIDES[len(known) :])


_SCALAR = TensorSpec(())


def _matrix(op: Op) -> tuple[int, int]:
    """Rows and columns of the matrix that an op's threads divide: its first output, or else its first input."""
    for spec in op.outputs or op.inputs:
        if spec.shape:
            break
    else:
        spec = next((spec for spec in op.inputs if spec.shape), _SCALAR)
        if not spec.shape:
            return 1, 1
    columns = spec.shape[-1] or 1
    return math.prod(spec.shape) // columns or 1, columns


_GRID = 10


def _fill_grid(found: Features, rows: Features, columns: Features, there: _Cases) -> None:
    """Fill (n_ops, _GRID, n_cases) with how the threads can cut a matrix into a grid of equal parts.

    The features are those of two grids. One is the grid with the shortest edges, which libraries choose to move the
    fewest bytes: its cuts, the lengths of parts, their edges relative to a square's, and how much rounding to whole
    tiles adds. The other is the grid nearest to a square: how much rounding to whole elements adds.
    """
    rows, columns = rows[:, None], columns[:, None]
    with np.errstate(divide="ignore"):
        edges = rows[:, :, None] / there.across + columns[:, :, None] / there.along
    best = edges.argmin(axis=2)
    case = np.arange(len(there.log_threads))
    across, along = there.across[case, best], there.along[case, best]
    squares = (there.across[case, there.square][None], there.along[case, there.square][None])
    threads = across * along
    shortest = np.take_along_axis(edges, best[:, :, None], axis=2)[:, :, 0]
    high, wide = np.log(rows / across), np.log(columns / along)
    parts = (
        across, along, high, wide, high - wide, np.log(shortest / (2 * np.sqrt(rows * columns / threads))),
        _rounding(rows, across, TILES[1]) + _rounding(columns, along, TILES[0]),
        _rounding(rows, across, TILES[0]) + _rounding(columns, along, TILES[1]),
        _rounding(rows * columns, threads, 1),
        _rounding(rows, squares[0], 1) + _rounding(columns, squares[1], 1),
    )  # fmt: skip
    for i, part in enumerate(parts):
        found[:, i] = part


def _rounding(side: Features, parts: Features, tile: int) -> Features:
    """Logarithm of how much longer the longest part is than an even share, in whole tiles."""
    longest = np.ceil(side / parts / tile) * tile
    found: Features = np.log(longest * parts / side)
    return found


def _of_case(machine: Machine, case: Case) -> list[float]:
    placed = set(machine.place(case))
    cores = [core for core in machine.cores if core.id in placed]
    groups = len({core.group for core in cores})
    small = max(count for count in range(1, math.isqrt(case.threads) + 1) if case.threads % count == 0)
    return [
        case.threads, math.log(case.threads), case.threads / len(machine), small, case.threads // small,
        *(case.threads % divisor for divisor in (2, 4, 8)), float(case.affinity is Affinity.SPREAD), groups,
        len(cores) / groups, len({core.socket for core in cores}),
    ]  # fmt: skip


def _cache_bytes(machine: Machine, case: Case) -> tuple[float, float]:
    """Bytes of cache for each thread: of the innermost level but the first, and its share of the outermost.

    NaN where a machine is described without caches, or without their sizes.
    """
    placed = set(machine.place(case))
    levels = sorted({cache.level for cache in machine.caches if cache.level > 1})
    if not levels:
        return math.nan, math.nan
    shares = []
    for level in (levels[0], levels[-1]):
        of_level = [cache for cache in machine.caches if cache.level == level and placed & set(cache.cores)]
        shares.append(sum(cache.size_bytes for cache in of_level) / len(placed) or math.nan)
    return shares[0], shares[1]
