"""Large random graphs shaped like networks, with curves of the simulated servers, for `planner_scale.py`.

Shapes: "branches" is a chain of blocks with parallel branches (Inception, ResNet), "training" the same with its
backward pass and an update of each weight, "mixture" blocks of many wide branches (experts, PathNet). Ops are matrix
products and element-wise operations of a few dozen sizes, from microseconds to tens of milliseconds on one core.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from simulated_servers import Server, servers

from threadcast.core import CurveTable, Edge, Machine, Op, OpGraph, Source, TensorSpec
from threadcast.scheduler.policies import Problem

SHAPES = ("branches", "training", "mixture")
SIZES = (64, 128, 256, 512, 1024)
"""Numbers of rows and columns of matrices."""
EVERY_COUNT_UP_TO, GROWTH = 8, 1.09
"""Curves have every thread count up to the first, and above it counts that grow by the second; 37 up to 128."""
NOISE = 0.01
"""Standard deviation of the logarithm of a curve's points."""

Edges = list[tuple[int, int]]


def server_of(cores: int) -> Server:
    """The simulated server of so many cores; of other numbers, the largest one's cores on one socket."""
    known = {server.cores: server for server in servers()}
    return known.get(cores) or replace(known[max(known)], cores=cores, sockets=1)


def large_problem(shape: str, ops: int, cores: int, *, seed: int = 0) -> Problem:
    """A problem of exactly `ops` ops on `cores` cores of a simulated server; equal arguments give the same problem."""
    random = np.random.default_rng([seed, SHAPES.index(shape), ops])
    edges, weighted = {"branches": _branches, "training": _training, "mixture": _mixture}[shape](ops, random)
    drawn = [_product(random) if weight else _element_wise(random) for weight in weighted]
    graph = OpGraph(tuple(f"op{i}" for i in range(ops)), tuple(drawn), tuple(Edge(a, b) for a, b in sorted(set(edges))))
    server = server_of(cores)
    return Problem(graph, _curves(graph, server, random), server.machine)


def _curves(graph: OpGraph, server: Server, random: np.random.Generator) -> CurveTable:
    machine = server.machine
    cases = tuple(case for case in machine.cases() if case.threads in _counts(machine))
    of_key = {op.key: op for op in graph.ops}
    known = {
        key: server.curve(op, cases) * np.exp(NOISE * random.standard_normal(len(cases))) for key, op in of_key.items()
    }
    seconds = np.array([known[op.key] for op in graph.ops])
    source = np.full(seconds.shape, list(Source).index(Source.LEARNED), dtype=np.int8)
    return CurveTable(cases, seconds, seconds * 0.9, seconds * 1.1, source, "simulated")


def _counts(machine: Machine) -> set[int]:
    counts, count = {len(machine)}, 1
    while count < len(machine):
        counts.add(count)
        count = count + 1 if count < EVERY_COUNT_UP_TO else max(count + 1, round(count * GROWTH))
    return counts


def _product(random: np.random.Generator) -> Op:
    rows, inner, columns = (int(n) for n in random.choice(SIZES, 3))
    return Op(
        "mm", (TensorSpec((rows, inner), "float32"), TensorSpec((inner, columns), "float32")),
        outputs=(TensorSpec((rows, columns), "float32"),),
    )  # fmt: skip


def _element_wise(random: np.random.Generator) -> Op:
    spec = TensorSpec((int(random.choice(SIZES)), int(random.choice(SIZES))), "float32")
    return Op(str(random.choice(("relu", "add", "mul"))), (spec,), outputs=(spec,))


def _branches(ops: int, random: np.random.Generator, *, most: int = 5) -> tuple[Edges, list[bool]]:
    """Edges, and for each op whether it has a weight. Each block forks into 1 to `most` chains, which one op joins."""
    edges: Edges = []
    weighted = [True]
    while len(weighted) < ops:
        fork, ends = len(weighted) - 1, []
        for _ in range(int(random.integers(1, most + 1))):
            before = fork
            for _ in range(int(random.integers(1, 5))):
                if len(weighted) == ops:
                    break
                edges.append((before, len(weighted)))
                before = len(weighted)
                weighted.append(bool(random.random() < 0.5))
            ends.append(before)
        if len(weighted) < ops:
            edges += [(end, len(weighted)) for end in ends]
            weighted.append(False)
    return edges, weighted


def _mixture(ops: int, random: np.random.Generator) -> tuple[Edges, list[bool]]:
    return _branches(ops, random, most=64)


def _training(ops: int, random: np.random.Generator) -> tuple[Edges, list[bool]]:
    """A forward pass, the input gradient of each op in reverse, and the gradient and the update of each weight."""
    forward = ops
    while True:
        edges, weighted = _branches(forward, np.random.default_rng(int(random.integers(2**31))))
        if 2 * forward + 2 * sum(weighted) <= ops:
            break
        forward -= max(1, (2 * forward + 2 * sum(weighted) - ops) // 4)
    gradient = [2 * forward - 1 - op for op in range(forward)]
    found = [*edges, (forward - 1, forward)]
    found += [(gradient[after], gradient[before]) for before, after in edges]
    found += [(op, gradient[op]) for op in range(forward - 1)]
    kinds = [*weighted, *reversed(weighted)]
    followed: dict[int, list[int]] = {}
    for before, after in edges:
        followed.setdefault(before, []).append(after)
    for op in range(forward):
        if weighted[op]:
            sources = [gradient[after] for after in followed.get(op, [])] or [forward - 1]
            found += [(source, len(kinds)) for source in sources]
            kinds.append(True)
            found.append((len(kinds) - 1, len(kinds)))
            kinds.append(False)
    while len(kinds) < ops:
        found.append((int(random.integers(forward, 2 * forward)), len(kinds)))
        kinds.append(False)
    return found, kinds
