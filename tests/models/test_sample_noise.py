"""How samples scatter is learned by how long they take, and told apart by what they are medians of."""

import numpy as np
import pytest

from tests.models.synthetic_ops import MACHINE, make_ops
from threadcast.core import Case, Measurement, Sample
from threadcast.models.measured import group
from threadcast.models.sample_noise import NARROW, SampleNoise


def measured(seconds, *, share=0.25, narrow=0.005, added_s=1e-3, repeats=8, seed=0):
    """Ops of such lengths, of whose samples a share takes `added_s` longer."""
    random = np.random.default_rng(seed)
    found = []
    for op, true_s in zip(make_ops(len(seconds)), seconds, strict=True):
        times = true_s * np.exp(narrow * random.standard_normal(repeats)) + added_s * (random.random(repeats) < share)
        found.append(Measurement(op, MACHINE, Case(1), tuple(map(Sample, times.tolist()))))
    return group(found)


@pytest.fixture(scope="module")
def noise():
    return SampleNoise.fitted(measured(np.geomspace(2e-3, 2.0, 600)))


def around(noise, seconds, *, samples=1.0, together=3):
    at = np.full((1, together), np.log(seconds))
    return noise.around(at, np.full(at.shape, samples))


def test_short_samples_scatter_more_and_to_the_slow_side(noise):
    short, long = around(noise, 3e-3), around(noise, 1.0)
    assert short.variances[0, 0, 1] > 20 * long.variances[0, 0, 1]
    assert 0.1 < short.offsets[0, 0, 1] < 1.2 * np.log(4 / 3)
    assert np.sqrt(short.variances[0, 0, 0]) == pytest.approx(0.005, rel=0.5)
    assert short.shares[0, 0, 1] == pytest.approx(0.25, abs=0.1)


def test_shares_are_of_a_whole_and_medians_are_seldom_off(noise):
    one, many = around(noise, 3e-3), around(noise, 3e-3, samples=8.0)
    np.testing.assert_allclose(one.shares.sum(axis=-1), 1)
    assert many.shares[0, 0, 1] < one.shares[0, 0, 1] / 10
    assert many.variances[0, 0, 0] == pytest.approx(one.variances[0, 0, 0] / 8)


def test_what_counts_for_less_than_a_sample_is_doubted_more(noise):
    new, old = around(noise, 3e-3), around(noise, 3e-3, samples=1 / 6)
    assert old.shares[0, 0, 2] > new.shares[0, 0, 2]
    assert old.variances[0, 0, 0] > new.variances[0, 0, 0]


def test_two_samples_cannot_contradict_each_other(noise):
    assert around(noise, 3e-3, together=2).shares[..., 2].max() == 0
    assert around(noise, 3e-3, together=3).shares[..., 2].min() > 0


def test_without_repeated_samples_conventions_hold():
    noise = SampleNoise.fitted(measured(np.geomspace(1e-3, 1.0, 50), repeats=1))
    assert np.sqrt(around(noise, 0.1).variances[0, 0, 0]) == pytest.approx(NARROW)


def test_what_was_stored_is_the_same_and_nonsense_is_refused(noise):
    arrays = noise.to_arrays()
    np.testing.assert_array_equal(around(SampleNoise.from_arrays(arrays), 0.01).shares, around(noise, 0.01).shares)
    for change in (
        {"knots": arrays["knots"][::-1]}, {"narrow": -arrays["narrow"]}, {"shares": arrays["shares"] + 1},
        {"wide": arrays["wide"][:1]},
    ):  # fmt: skip
        with pytest.raises(ValueError, match="noise"):
            SampleNoise.from_arrays({**arrays, **change})
