"""Laws of time over threads: exact on what they describe, robust, never below zero."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.models.synthetic_ops import MACHINE, make_ops, measure_all
from threadcast.core import Affinity, Case, Machine, Measurement, Sample, Source
from threadcast.core.errors import ArtefactError, InvalidInput, ModelError
from threadcast.models import registry_of_kinds
from threadcast.models.measured import group
from threadcast.models.scaling_law import fit_weights

OP = make_ops(1)[0]
WIDE = Machine.uniform("wide", 64)
TRUTHS = {
    "amdahl": lambda p: 1e-3 + 2e-2 / p,
    "universal_scalability": lambda p: 2e-2 * (1 + 0.05 * (p - 1) + 1e-3 * p * (p - 1)) / p,
}


def timed(threads, *seconds):
    return Measurement(OP, WIDE, Case(threads), tuple(map(Sample, seconds)))


@pytest.mark.parametrize("name", TRUTHS)
def test_a_law_finds_itself_from_five_samples(name):
    model, truth = registry_of_kinds.create(name, samples=5), TRUTHS[name]
    observed = []
    while (case := model.propose(OP, observed, WIDE)) is not None:
        observed.append(timed(case.threads, truth(case.threads)))
    curve = model.predict(OP, observed, WIDE.cases(), machine=WIDE)
    wanted = [truth(case.threads) for case in WIDE.cases()]
    np.testing.assert_allclose(curve.seconds, wanted, rtol=1e-3)
    assert len(observed) == 5
    assert {curve.source[case.threads - 1] for case in (m.case for m in observed)} == {Source.MEASURED}


LAWS = st.sampled_from(sorted(TRUTHS))


@pytest.mark.parametrize("threads", [(2,), (4,), (8,), (2, 8), (4, 8), (2, 4)])
@pytest.mark.parametrize("name", TRUTHS)
def test_fewer_samples_than_terms_leave_time_at_one_thread(name, threads):
    def truth(p):
        return 3e-6 + 12e-6 / p + 2e-6 * p

    observed = [timed(p, truth(p)) for p in threads]
    curve = registry_of_kinds.create(name).predict(OP, observed, WIDE.cases(), machine=WIDE)
    assert truth(1) / 2 <= curve.seconds[0] <= truth(1) * 4
    assert curve.low[0] <= truth(1) <= curve.high[0]
    assert len(threads) > 1 or curve.best().threads == len(WIDE)


@given(LAWS, st.dictionaries(st.integers(1, 64), st.floats(1e-6, 1e-3), min_size=1, max_size=6))
def test_forecasts_are_at_least_what_linear_scaling_or_its_inverse_leaves(name, times):
    curve = registry_of_kinds.create(name).predict(
        OP, [timed(*item) for item in times.items()], WIDE.cases(), machine=WIDE
    )
    for case, seconds in zip(curve.cases, curve.seconds, strict=True):
        p = case.threads
        assert seconds >= min(s * min(p / n, n / p) for n, s in times.items()) * (1 - 1e-12)


@pytest.mark.parametrize("name", TRUTHS)
def test_samples_are_counted_by_affinity(name):
    """Of three samples of cores in pairs, two are compact: neither affinity has enough for three terms."""
    cases = (Case(4), Case(8), Case(2, Affinity.SPREAD))
    observed = [Measurement(OP, MACHINE, case, (Sample(1e-5 + 1e-6 * case.threads),)) for case in cases]
    curve = registry_of_kinds.create(name).predict(OP, observed, MACHINE.cases(), machine=MACHINE)
    assert curve.seconds.min() > 5e-6


def test_extrapolated_intervals_of_a_law_before_it_is_fitted_reach_linear_scaling():
    curve = registry_of_kinds.create("amdahl").predict(OP, [timed(8, 1.0, 1.0)], WIDE.cases(), machine=WIDE)
    for p in (1, 2, 16, 64):
        stretch = max(p / 8, 8 / p)
        assert curve.low[p - 1] <= 1 / stretch
        assert curve.high[p - 1] >= stretch


def test_one_outlier_among_many_samples_hardly_moves_a_law():
    threads = np.array([1.0, 2, 4, 8, 16, 32, 48, 64])
    seconds = 1e-3 + 2e-2 / threads
    terms = np.stack([np.ones_like(threads), 1 / threads], axis=1)
    spoilt = seconds.copy()
    spoilt[3] *= 3
    np.testing.assert_allclose(fit_weights(terms, seconds), [1e-3, 2e-2], rtol=1e-6)
    np.testing.assert_allclose(terms @ fit_weights(terms, spoilt), seconds, rtol=0.15)


def test_fitting_sets_the_interval_by_what_laws_miss():
    ops = measure_all(make_ops(30))
    unfitted = registry_of_kinds.create("amdahl", samples=3)
    fitted = registry_of_kinds.create("amdahl", samples=3).fit(ops[: len(ops) * 2 // 3])
    inside = total = 0
    for entry in group(ops[len(ops) * 2 // 3 :]):
        observed = []
        while (case := fitted.propose(entry.op, observed, MACHINE)) is not None:
            observed.append(entry.by_case[case])
        others = [case for case in entry.by_case if case not in {m.case for m in observed}]
        curve = fitted.predict(entry.op, observed, others, machine=MACHINE)
        true = np.array([entry.by_case[case].seconds for case in others])
        inside += int(np.sum((curve.low <= true) & (true <= curve.high)))
        total += len(others)
        assert np.all(unfitted.predict(entry.op, observed, others, machine=MACHINE).seconds == curve.seconds)
    assert inside / total >= 0.75


def test_an_affinity_without_samples_takes_the_others_law_widened():
    model = registry_of_kinds.create("amdahl")
    compact = [Measurement(OP, MACHINE, Case(p, Affinity.COMPACT), (Sample(1e-3 + 1e-2 / p),)) for p in (2, 4, 8)]
    curve = model.predict(OP, compact, (Case(3, Affinity.SPREAD), Case(6, Affinity.COMPACT)), machine=MACHINE)
    assert curve.source == (Source.EXTRAPOLATED, Source.LEARNED)
    assert curve.high[0] / curve.low[0] == pytest.approx(4 * curve.high[1] / curve.low[1])


def test_bad_options_files_and_missing_samples_are_errors():
    with pytest.raises(InvalidInput, match="samples=0"):
        registry_of_kinds.create("amdahl", samples=0)
    with pytest.raises(ModelError, match="nothing was measured"):
        registry_of_kinds.create("amdahl").predict(OP, [], WIDE.cases(), machine=WIDE)
    files = registry_of_kinds.create("universal_scalability").to_files()
    with pytest.raises(ArtefactError, match="not of 'amdahl'"):
        registry_of_kinds.create("amdahl").from_files(files)
