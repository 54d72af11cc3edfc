"""Problems for the planner's benchmark: real curves on the networks' real graphs and on random ones.

Curves are those of `data/published`; with a folder given, the wide CSV files in it (one call a row, `t1`, `t2`, ... in
microseconds). An op gets the curve of a call that takes about as long on one thread, scaled to the op's own time: its
FLOPs and bytes at the rates below. Short rows of the table above the curve's last count are not offered.

These curves are of one affinity. Where a machine has cache groups they are taken for COMPACT's, and SPREAD's are made
from them: times a factor of each op's own, drawn from GAINS where its time goes into bytes, since threads on groups of
their own share neither cache nor way to memory, else from LOSSES, since more caches need a copy of what all read; and
times 1 +- JAGS at each count. These ranges are assumed.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import median

import numpy as np
from adsala import adsala_wide

from threadcast.core import Affinity, Edge, Machine, Measurement, Op, OpGraph
from threadcast.scheduler.policies import Problem
from threadcast.scheduler.problem.graph_curves import curves_of
from threadcast.store.published import gbm_training_time, minibude_thunderx2, ncnn_network_latency

GRAPHS = Path(__file__).parents[1] / "data/graphs"
FLOPS_A_SECOND, BYTES_A_SECOND, LAUNCH_S = 40e9, 10e9, 2e-6
"""One core of a server: about half its peak in single precision, its share of memory bandwidth, and a call."""
VIEW_S = 2e-7
NEAREST = 8
"""Curves of about the op's length, of which one is drawn."""

GAINS, LOSSES, JAGS = (0.7, 1.0), (1.0, 1.2), 0.03
GROUPED = (Machine.uniform("68 in tiles of 2", 68, group_size=2), Machine.uniform("64 in CCDs of 8", 64, group_size=8))
"""The cores of a Xeon Phi 7250, two to an L2 cache (Sodani et al. 2016), and of an EPYC 7763, eight to an L3 cache
(AMD, "EPYC 7003 Series Architecture Overview"); with one hardware thread each."""

Curve = Mapping[int, float]


@dataclass(frozen=True, slots=True, eq=False)
class Pool:
    """Measured curves, sorted by their time on the fewest threads; all start at one thread."""

    curves: tuple[Curve, ...]
    first_s: np.ndarray
    source: str

    @classmethod
    def read(cls, folder: Path | None) -> Pool:
        """The curves of the wide CSV files in `folder`; None: those that come with the project."""
        if folder is None:
            found = [*ncnn_network_latency(), *gbm_training_time(), *minibude_thunderx2()]
            source = "data/published"
        else:
            files = sorted(folder.glob("*.csv.gz"))
            if not files:
                raise SystemExit(f"{folder} has no .csv.gz file of curves")
            found = [measurement for file in files for measurement in adsala_wide(file)]
            source = ", ".join(file.name for file in files)
        by_op: dict[tuple[str, str], dict[int, list[float]]] = {}
        for measurement in found:
            _note(by_op, measurement)
        curves = [{n: median(times) for n, times in sorted(points.items())} for points in by_op.values()]
        usable = sorted((c for c in curves if 1 in c and len(c) > 2), key=lambda c: c[1])
        return cls(tuple(usable), np.log([c[1] for c in usable]), source)

    def draw(self, random: np.random.Generator, serial_s: float) -> Curve:
        """A curve of about `serial_s` on one thread, scaled to it."""
        at = int(np.searchsorted(self.first_s, np.log(serial_s)))
        low = min(max(0, at - NEAREST // 2), max(0, len(self.curves) - NEAREST))
        curve = self.curves[int(random.integers(low, min(low + NEAREST, len(self.curves))))]
        return {n: s * serial_s / curve[1] for n, s in curve.items()}


def _note(by_op: dict[tuple[str, str], dict[int, list[float]]], measurement: Measurement) -> None:
    key = (measurement.op.key, measurement.machine.fingerprint)
    by_op.setdefault(key, {}).setdefault(measurement.case.threads, []).append(measurement.seconds)


def network_names() -> list[str]:
    """The stored graphs."""
    return sorted(path.name.removesuffix(".json.gz") for path in GRAPHS.glob("*.json.gz"))


def network(name: str, pool: Pool, *, seed: int = 0) -> OpGraph:
    """The stored graph with a curve an op; ops of one key have the same."""
    with gzip.open(GRAPHS / f"{name}.json.gz") as file:
        graph = OpGraph.from_json(json.load(file))
    random = np.random.default_rng(seed)
    by_key: dict[str, Curve] = {}
    for op in graph.ops:
        if op.key not in by_key:
            by_key[op.key] = {1: VIEW_S} if op.is_view else pool.draw(random, _serial_s(op))
    return replace(graph, curves={op_id: by_key[op.key] for op_id, op in zip(graph.ids, graph.ops)})


def _serial_s(op: Op) -> float:
    return LAUNCH_S + max(op.flops / FLOPS_A_SECOND, op.bytes_moved / BYTES_A_SECOND)


def random_graph(shape: str, ops: int, pool: Pool, random: np.random.Generator) -> OpGraph:
    """About `ops` ops of 0.1 to 100 ms, lognormal; `shape` is layered, fork_join or series_parallel."""
    count, edges = {"layered": _layered, "fork_join": _fork_join, "series_parallel": _series_parallel}[shape](
        ops, random
    )
    ids = tuple(f"op{i}" for i in range(count))
    serial_s = np.clip(random.lognormal(np.log(3e-3), 1.2, count), 1e-4, 0.1)
    curves = {op_id: pool.draw(random, float(s)) for op_id, s in zip(ids, serial_s)}
    return OpGraph(ids, tuple(Op(f"kind{i}") for i in range(count)), tuple(Edge(*e) for e in sorted(edges)), curves)


SHAPES = ("layered", "fork_join", "series_parallel")
Edges = set[tuple[int, int]]


def _layered(ops: int, random: np.random.Generator) -> tuple[int, Edges]:
    edges: Edges = set()
    before: Sequence[int] = ()
    count = 0
    while count < ops:
        layer = range(count, min(ops, count + int(random.integers(1, 9))))
        for op in layer if before else ():
            sources = random.choice(before, size=min(len(before), int(random.integers(1, 4))), replace=False)
            edges |= {(int(source), op) for source in sources}
        before, count = layer, layer[-1] + 1
    return count, edges


def _fork_join(ops: int, random: np.random.Generator) -> tuple[int, Edges]:
    edges: Edges = set()
    count = 1
    while count < ops - 2:
        fork, ends = count - 1, []
        for _ in range(int(random.integers(2, 7))):
            length = int(random.integers(1, 4))
            chain = [fork, *range(count, count + length)]
            edges |= set(pairwise(chain))
            ends.append(chain[-1])
            count += length
        edges |= {(end, count) for end in ends}
        count += 1
    return count, edges


def _series_parallel(ops: int, random: np.random.Generator) -> tuple[int, Edges]:
    edges: Edges = {(0, 1)}
    count = 2
    while count < ops:
        source, target = sorted(edges)[int(random.integers(len(edges)))]
        if random.random() < 0.5:
            edges.remove((source, target))
        edges |= {(source, count), (count, target)}
        count += 1
    order = _renumbered(count, edges)
    return count, {(order[a], order[b]) for a, b in edges}


def _renumbered(count: int, edges: Edges) -> dict[int, int]:
    waiting = {op: sum(b == op for _, b in edges) for op in range(count)}
    order: dict[int, int] = {}
    while len(order) < count:
        op = next(op for op in range(count) if op not in order and not waiting[op])
        order[op] = len(order)
        for a, b in edges:
            waiting[b] -= a == op
    return order


def problem(graph: OpGraph, cores: int, *, error: float = 0.0) -> Problem:
    """The graph's problem on equal cores; the curves' intervals say that points are off by up to `error`."""
    machine = Machine.uniform("cores", cores)
    curves = curves_of(graph, machine)
    curves = replace(curves, low=curves.seconds * (1 - error), high=curves.seconds * (1 + error))
    return Problem(graph, curves, machine)


def grouped_problem(graph: OpGraph, machine: Machine, *, seed: int = 0) -> Problem:
    """The graph's problem on a machine with cache groups, with SPREAD as above; ops of one key have the same curves."""
    table = curves_of(graph, machine)
    random = np.random.default_rng(seed)
    spread = np.array([case.affinity is Affinity.SPREAD and case.threads > 1 for case in table.cases])
    factors: dict[str, np.ndarray] = {}
    for op in graph.ops:
        if op.key not in factors:
            moves = op.bytes_moved / BYTES_A_SECOND > op.flops / FLOPS_A_SECOND
            own = random.uniform(*(GAINS if moves else LOSSES))
            factors[op.key] = np.where(spread, own * random.uniform(1 - JAGS, 1 + JAGS, len(spread)), 1.0)
    seconds = table.seconds * np.stack([factors[op.key] for op in graph.ops])
    return Problem(graph, replace(table, seconds=seconds, low=seconds, high=seconds), machine)


def small(count: int, pool: Pool, *, seed: int) -> Iterator[tuple[str, Problem]]:
    """`count` random problems of 10 to 60 ops on 4 to 128 cores, with what they are."""
    random = np.random.default_rng(seed)
    for i in range(count):
        shape, cores = SHAPES[i % len(SHAPES)], (4, 16, 48, 68, 128)[i % 5]
        graph = random_graph(shape, int(random.integers(10, 61)), pool, random)
        yield f"{shape}, {len(graph)} ops, {cores} cores", problem(graph, cores)


def perturbed(graph: OpGraph, error: float, *, seed: int) -> OpGraph:
    """The graph with every point of every curve off by a factor between 1 - error and 1 + error; keys err alike."""
    random = np.random.default_rng(seed)
    wrong: dict[tuple[str, tuple[tuple[int, float], ...]], Curve] = {}
    curves = {}
    for op_id, op in zip(graph.ids, graph.ops):
        curve = graph.curves[op_id]
        key = (op.key, tuple(curve.items()))
        if key not in wrong:
            wrong[key] = {n: s * float(random.uniform(1 - error, 1 + error)) for n, s in curve.items()}
        curves[op_id] = wrong[key]
    return replace(graph, curves=curves)
