"""Hypothesis strategies for measurements."""

from __future__ import annotations

from hypothesis import strategies as st

from tests.core.strategies import attributes, ops
from threadcast.core import Affinity, Case, Machine, Measurement, Op, Sample

any_name = st.text(max_size=9)
finite = st.floats(min_value=0, max_value=1e300, allow_nan=False)


@st.composite
def measurements(
    draw: st.DrawFn, ops: st.SearchStrategy[Op] = ops, names: st.SearchStrategy[str] = any_name
) -> Measurement:
    """Measurements whose samples all have the same counters, of these `names`."""
    counters = draw(st.lists(names, unique=True, max_size=3))
    sample = st.builds(Sample, finite, st.fixed_dictionaries({name: st.none() | finite for name in counters}))
    cores = draw(st.integers(1, 9))
    return Measurement(
        draw(ops),
        Machine.uniform(draw(st.text(max_size=9)), cores),
        Case(draw(st.integers(1, cores)), draw(st.sampled_from(Affinity))),
        tuple(draw(st.lists(sample, min_size=1, max_size=4))),
        draw(attributes),
    )
