"""Hypothesis strategies for measurements."""

from __future__ import annotations

from hypothesis import strategies as st

from tests.core.strategies import attributes, ops
from threadcast.core import Affinity, Case, Machine, Measurement, Op, Sample
from threadcast.core.measurement import LONGEST_S, SHORTEST_S

any_name = st.text(max_size=9)
affinities = st.sampled_from(Affinity)
seconds = st.floats(SHORTEST_S, LONGEST_S)
finite = st.floats(min_value=0, max_value=1e300, allow_nan=False)


@st.composite
def measurements(
    draw: st.DrawFn, ops: st.SearchStrategy[Op] = ops, names: st.SearchStrategy[str] = any_name
) -> Measurement:
    """Measurements whose samples all have the same counters, of these `names`."""
    counters = draw(st.lists(names, unique=True, max_size=3))
    sample = st.builds(Sample, seconds, st.fixed_dictionaries({name: st.none() | finite for name in counters}))
    cores, group_size = draw(st.integers(1, 9)), draw(st.integers(1, 9))
    machine, affinity = Machine.uniform(draw(st.text(max_size=9)), cores, group_size=group_size), draw(affinities)
    most = len(machine.groups) if affinity is Affinity.SPREAD else cores
    return Measurement(
        draw(ops),
        machine,
        Case(draw(st.integers(1, most)), affinity),
        tuple(draw(st.lists(sample, min_size=1, max_size=4))),
        draw(attributes),
    )
