"""Runs ops on cores of their own while they slow each other down."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from threadcast.scheduler.interference.class_slowdown import SlowdownMatrix
from threadcast.scheduler.kernels.compiled import helper, inlined
from threadcast.scheduler.kernels.instance import Floats, Ints
from threadcast.scheduler.problem.compressed_rows import CompressedRows


class _Running(NamedTuple):
    """The running ops: the first `size[0]` of `op`. `left`: remaining seconds alone of each; `factor`: its slow-down.

    `cores_by_label`, `ops_by_label`: (n_labels,) the counted cores of the running ops (`_load`), and their number.
    """

    op: Ints
    left: Floats
    factor: Floats
    cores_by_label: Floats
    ops_by_label: Floats
    size: Ints


@helper
def run_with_slowdowns(
    order: Ints, predecessors: CompressedRows, successors: CompressedRows, cores_of: CompressedRows, n_cores: int,
    slowdowns: SlowdownMatrix, lone_s: Floats, limit_s: float, start: Floats, seconds: Floats,
) -> float:  # fmt: skip
    """Run each op as soon as its predecessors, and those before it in `order` on its cores, have finished.

    `lone_s`: (n_ops,) seconds alone. Fills `start` and `seconds`; returns the makespan, or infinity as soon as it
    exceeds `limit_s`.
    """
    n, labels = len(order), len(slowdowns.per_core)
    waiting = predecessors.indptr[1:] - predecessors.indptr[:-1]
    next_on_core = _next_on_core(order, cores_of, n_cores, waiting)
    running = _Running(
        np.empty(n, dtype=np.int64), np.empty(n), np.empty(n), np.zeros(labels), np.zeros(labels),
        np.zeros(1, dtype=np.int64),
    )  # fmt: skip
    finished = np.empty(n, dtype=np.int64)
    now = 0.0
    for op in range(n):
        if waiting[op] == 0:
            _start(running, slowdowns, cores_of, op, lone_s[op])
            start[op] = 0.0
    while running.size[0] > 0:
        step = _to_next_finish(running, slowdowns, cores_of)
        now += step
        if now > limit_s:
            return np.inf
        for i in range(_advance(running, step, finished)):
            op = int(finished[i])
            seconds[op] = now - start[op]
            running.cores_by_label[slowdowns.label[op]] -= _load(slowdowns, cores_of, op)
            running.ops_by_label[slowdowns.label[op]] -= 1
            edges = successors.indptr[op + 1] - successors.indptr[op]
            for e in range(edges + cores_of.indptr[op + 1] - cores_of.indptr[op]):
                if e < edges:
                    after = int(successors.indices[successors.indptr[op] + e])
                else:
                    after = int(next_on_core[cores_of.indptr[op] + e - edges])
                if after >= 0:
                    waiting[after] -= 1
                    if waiting[after] == 0:
                        _start(running, slowdowns, cores_of, after, lone_s[after])
                        start[after] = now
    return now


@inlined
def _next_on_core(order: Ints, cores_of: CompressedRows, n_cores: int, waiting: Ints) -> Ints:
    """For each op and each of its cores, as in `cores_of`, the next op there, or -1; that waits for one op more."""
    indptr, cores = cores_of
    following = np.full(len(cores), -1, dtype=np.int64)
    last = np.full(n_cores, -1, dtype=np.int64)  # entry of `cores`
    for k in range(len(order)):
        op = order[k]
        for i in range(indptr[op], indptr[op + 1]):
            if last[cores[i]] >= 0:
                following[last[cores[i]]] = op
                waiting[op] += 1
            last[cores[i]] = i
    return following


@inlined
def _load(slowdowns: SlowdownMatrix, cores_of: CompressedRows, op: int) -> int:
    """The op's number of cores, counted up to `slowdowns.most_cores`."""
    return int(min(slowdowns.most_cores, cores_of.indptr[op + 1] - cores_of.indptr[op]))


@inlined
def _start(running: _Running, slowdowns: SlowdownMatrix, cores_of: CompressedRows, op: int, lone_s: float) -> None:
    at = running.size[0]
    running.op[at], running.left[at] = op, lone_s
    running.size[0] += 1
    running.cores_by_label[slowdowns.label[op]] += _load(slowdowns, cores_of, op)
    running.ops_by_label[slowdowns.label[op]] += 1


@inlined
def _to_next_finish(running: _Running, slowdowns: SlowdownMatrix, cores_of: CompressedRows) -> float:
    """Fill `running.factor` and return the seconds until the next op finishes."""
    label, per_core, whole = slowdowns.label, slowdowns.per_core, slowdowns.whole
    busy_cores, n_running = running.cores_by_label, running.ops_by_label
    step = np.inf
    for r in range(running.size[0]):
        op = int(running.op[r])
        own, excess = label[op], 0.0
        own_load = _load(slowdowns, cores_of, op)
        for other in range(len(busy_cores)):
            same = 1 if other == own else 0
            excess += per_core[own, other] * (busy_cores[other] - same * own_load)
            excess += whole[own, other] * (n_running[other] - same)
        running.factor[r] = min(slowdowns.largest, 1.0 + excess)
        step = min(step, running.left[r] * running.factor[r])
    return step


@inlined
def _advance(running: _Running, step: float, finished: Ints) -> int:
    """Let `step` seconds pass; move the ops that end from `running` to `finished`, and return their number."""
    ops, left, factor = running.op, running.left, running.factor
    n_left = n_finished = 0
    for r in range(running.size[0]):
        if left[r] * factor[r] <= step * (1 + 1e-12):
            finished[n_finished] = ops[r]
            n_finished += 1
        else:
            ops[n_left], left[n_left] = ops[r], left[r] - step / factor[r]
            n_left += 1
    running.size[0] = n_left
    return n_finished
