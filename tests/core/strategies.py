"""Hypothesis strategies for the vocabulary."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from threadcast.core import Affinity, Case, Curve, Edge, Op, OpGraph, Placement, Source, TensorSpec
from threadcast.core.tensor import DTYPE_BYTES

scalars = st.none() | st.booleans() | st.integers(-5, 5) | st.floats(-1e3, 1e3) | st.text(max_size=4)
attributes = st.dictionaries(st.text(max_size=4), scalars | st.lists(scalars, max_size=3), max_size=3)
cases = st.builds(Case, st.integers(1, 300), st.sampled_from(Affinity))
seconds = st.floats(0, 1e3, allow_nan=False)


THREE = (Case(1), Case(2), Case(4))


@st.composite
def curves(draw: st.DrawFn, over: tuple[Case, ...] | None = None) -> Curve:
    chosen = over or tuple(draw(st.lists(cases, min_size=1, max_size=6, unique=True)))
    middle = np.array([draw(seconds) for _ in chosen])
    below, above = draw(st.floats(0, 1)), draw(st.floats(1, 3))
    source = tuple(draw(st.sampled_from(Source)) for _ in chosen)
    return Curve(chosen, middle, middle * below, middle * above, source)


def same_curve(one: Curve, other: Curve) -> bool:
    arrays = all(np.array_equal(getattr(one, n), getattr(other, n)) for n in ("seconds", "low", "high"))
    return arrays and (one.cases, one.source) == (other.cases, other.source)


@st.composite
def specs(draw: st.DrawFn) -> TensorSpec:
    shape = tuple(draw(st.lists(st.integers(0, 9), max_size=4)))
    strides = draw(st.none() | st.tuples(*[st.integers(0, 99) for _ in shape]))
    return TensorSpec(shape, draw(st.sampled_from(list(DTYPE_BYTES))), strides)


ops = st.builds(
    Op,
    st.sampled_from(["mm", "convolution", "relu", "view", "add"]) | st.text(min_size=1, max_size=5),
    st.lists(specs(), max_size=3).map(tuple),
    attributes,
    st.lists(specs(), max_size=2).map(tuple),
)


SOME_OPS = (
    Op("mm", (TensorSpec((2, 3)), TensorSpec((3, 4)))),
    Op("relu", (TensorSpec((2, 4), "float16", (1, 2)),), {"inplace": True, "scale": [1.5, None]}),
    Op("add", (TensorSpec(()), TensorSpec((0, 3), "int64")), {}, (TensorSpec((0, 3), "int64"),), (5.0, 7.0)),
)


@st.composite
def graphs(draw: st.DrawFn, max_ops: int = 6) -> OpGraph:
    made = draw(st.lists(st.sampled_from(SOME_OPS), max_size=max_ops))
    ids = [f"op{i}" for i in range(len(made))]
    pairs = [(i, j) for j in range(len(made)) for i in range(j)]
    chosen = draw(st.lists(st.sampled_from(pairs), unique=True)) if pairs else []
    edges = tuple(Edge(i, j, draw(st.booleans())) for i, j in chosen)
    curve = st.dictionaries(st.integers(1, 64), seconds, min_size=1, max_size=3)
    curves = {op_id: draw(curve) for op_id in ids if draw(st.booleans())}
    return OpGraph(tuple(ids), tuple(made), edges, curves)


@st.composite
def placements(draw: st.DrawFn, op_id: str, cores: int = 4) -> Placement:
    used = draw(st.lists(st.integers(0, cores - 1), min_size=1, max_size=cores, unique=True))
    start_s = draw(seconds)
    return Placement(
        op_id, tuple(used), draw(st.integers(1, 8)), start_s, start_s + draw(seconds), draw(st.integers(0, 1))
    )


@st.composite
def schedules(draw: st.DrawFn) -> tuple[Placement, ...]:
    return tuple(draw(placements(f"op{i}")) for i in range(draw(st.integers(0, 6))))
