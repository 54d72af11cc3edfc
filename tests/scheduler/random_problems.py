"""Problems for tests: small ones written out, and hypothesis strategies for random ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from hypothesis import strategies as st

from threadcast.core import Core, Edge, Machine, Op, OpGraph
from threadcast.scheduler.policies import Problem
from threadcast.scheduler.problem.graph_curves import curves_of

Curve = Mapping[int, float]


def graph_of(curves: Sequence[Curve], edges: Sequence[tuple[int, int]] = (), *, kinds: str = "") -> OpGraph:
    """Ops "a", "b", ... with these curves; `kinds` gives one letter an op ("v" is a view), by default all differ."""
    ids = tuple(name_of(i) for i in range(len(curves)))
    made = tuple(Op("view" if kind == "v" else f"kind_{kind}") for kind in kinds or ids)
    return OpGraph(ids, made, tuple(Edge(*pair) for pair in edges), dict(zip(ids, curves)))


def problem_of(
    curves: Sequence[Curve],
    edges: Sequence[tuple[int, int]] = (),
    *,
    cores: int = 4,
    group_size: int | None = None,
    threads_per_core: int = 1,
    kinds: str = "",
) -> Problem:
    """The problem of `graph_of` on a machine of equal cores."""
    graph = graph_of(curves, edges, kinds=kinds)
    machine = Machine.uniform("test", cores, group_size=group_size, threads_per_core=threads_per_core)
    return Problem(graph, curves_of(graph, machine), machine)


def hybrid_problem(
    curves: Sequence[Curve], edges: Sequence[tuple[int, int]] = (), *, fast: int = 2, small: int = 2
) -> Problem:
    """The problem of `graph_of` on a machine of `fast` cores with two hardware threads and `small` ones with one."""
    machine = Machine(
        "hybrid",
        tuple(Core(i, (2 * i, 2 * i + 1) if i < fast else (fast + i,), group=0) for i in range(fast + small)),
    )
    graph = graph_of(curves, edges)
    return Problem(graph, curves_of(graph, machine), machine)


def name_of(index: int) -> str:
    """a, b, ..., z, op26, op27, ..."""
    return chr(ord("a") + index) if index < 26 else f"op{index}"


@st.composite
def layered(draw: st.DrawFn) -> tuple[int, list[tuple[int, int]]]:
    """Layers of up to 4 ops, each op behind some of the layer before."""
    edges: list[tuple[int, int]] = []
    before: list[int] = []
    count = 0
    for width in draw(st.lists(st.integers(1, 4), min_size=1, max_size=4)):
        layer = list(range(count, count + width))
        for op in layer if before else ():
            edges += [(source, op) for source in draw(st.sets(st.sampled_from(before), min_size=1))]
        before, count = layer, count + width
    return count, edges


@st.composite
def fork_join(draw: st.DrawFn) -> tuple[int, list[tuple[int, int]]]:
    """One op, branches that are chains, one op, and so on."""
    edges: list[tuple[int, int]] = []
    count = 1
    for branches in draw(st.lists(st.lists(st.integers(1, 3), min_size=1, max_size=4), min_size=1, max_size=2)):
        fork, ends = count - 1, []
        for length in branches:
            chain = [fork, *range(count, count + length)]
            edges += pairwise(chain)
            ends.append(chain[-1])
            count += length
        edges += [(end, count) for end in ends]
        count += 1
    return count, edges


@st.composite
def series_parallel(draw: st.DrawFn) -> tuple[int, list[tuple[int, int]]]:
    """One edge, then a few times: an edge becomes two in series, or two ops beside each other."""
    edges = [(0, 1)]
    count = 2
    for position, in_series in draw(st.lists(st.tuples(st.integers(0, 99), st.booleans()), max_size=8)):
        source, target = edges[position % len(edges)]
        if in_series:
            edges.remove((source, target))
        edges += [(source, count), (count, target)]
        count += 1
    return count, edges


@st.composite
def curves(draw: st.DrawFn) -> dict[int, float]:
    """Jagged, sometimes short, sometimes all zero; always with a point at one thread."""
    counts = draw(st.sets(st.integers(2, 8), max_size=4)) | {1}
    if draw(st.integers(0, 9)) == 0:
        return dict.fromkeys(sorted(counts), 0.0)
    return {n: draw(st.integers(1, 40)) / 8 for n in sorted(counts)}


@st.composite
def problems(draw: st.DrawFn, *, max_cores: int = 8) -> Problem:
    """A random graph of one of the three shapes on a machine of 1 to `max_cores` cores."""
    count, edges = draw(st.one_of(layered(), fork_join(), series_parallel()))
    kinds = "".join(draw(st.lists(st.sampled_from("xyzv"), min_size=count, max_size=count)))
    return problem_of(
        [draw(curves()) for _ in range(count)],
        edges,
        cores=draw(st.integers(1, max_cores)),
        group_size=draw(st.sampled_from([None, 2, 3])),
        threads_per_core=draw(st.sampled_from([1, 2])),
        kinds=kinds,
    )
