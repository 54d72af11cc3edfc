"""Curves through knots, on random knots."""

from hypothesis import given
from hypothesis import strategies as st

from threadcast.core import Affinity, Case, Source
from threadcast.models.interpolation import Knot, curve_through

cases = st.builds(Case, st.integers(1, 40), st.sampled_from(list(Affinity)))


@st.composite
def knots(draw):
    seconds = draw(st.floats(1e-6, 1e3))
    return Knot(seconds, seconds * draw(st.floats(0.1, 1)), seconds * draw(st.floats(1, 9)), Source.MEASURED)


@given(st.dictionaries(cases, knots(), min_size=1), st.lists(cases, min_size=1))
def test_knots_are_answered_as_they_are_and_the_rest_is_flagged(known, asked):
    curve = curve_through(known, asked)
    for case, seconds, source in zip(asked, curve.seconds, curve.source):
        if case in known:
            assert (seconds, source) == (known[case].seconds, Source.MEASURED)
        else:
            line = [c.threads for c in known if c.affinity is case.affinity]
            inside = bool(line) and min(line) < case.threads < max(line)
            assert source is (Source.INTERPOLATED if inside else Source.EXTRAPOLATED)


@given(st.dictionaries(cases, knots(), min_size=1), st.lists(cases, min_size=1))
def test_times_stay_between_the_least_and_the_most_known(known, asked):
    curve = curve_through(known, asked)
    assert curve.seconds.min() >= min(knot.seconds for knot in known.values()) * (1 - 1e-12)
    assert curve.seconds.max() <= max(knot.seconds for knot in known.values()) * (1 + 1e-12)
