"""Conditioning on samples, against the textbook's formulas; what is told most; what a choice may cost."""

import numpy as np
import pytest

from threadcast.models.case_gaussian import CaseGaussian, expected_regret

THREADS = list(range(1, 9))
QUIET = np.full(8, 1e-4)


def given(gaussian, where, values, samples, *, scale=1.0, level=0.0, noise=1e-4):
    scales, levels = np.full(len(values), scale), np.full(len(values), level)
    return gaussian.given(where, values, np.tile(noise / samples, (len(values), 1)), scales, levels)


def drawn(count, *, seed=0, holes=0.0):
    rng = np.random.default_rng(seed)
    level, slope = rng.standard_normal((2, count, 1))
    curves = 0.5 * level + 0.3 * slope * np.log(THREADS) + 0.02 * rng.standard_normal((count, len(THREADS)))
    curves[rng.random(curves.shape) < holes] = np.nan
    return curves


def test_a_sample_narrows_the_curve_as_the_formula_says():
    gaussian = CaseGaussian.fitted(drawn(400), THREADS, noise=QUIET)
    values, counts = np.array([[0.4, -0.2]]), np.array([1.0, 4.0])
    mean, variance = given(gaussian, [1, 6], values, counts)
    c = gaussian.covariance
    within = c[np.ix_([1, 6], [1, 6])] + np.diag(gaussian.noise[[1, 6]] / counts)
    gain = c[:, [1, 6]] @ np.linalg.inv(within)
    np.testing.assert_allclose(mean[0], gaussian.mean + gain @ (values[0] - gaussian.mean[[1, 6]]), rtol=1e-9)
    np.testing.assert_allclose(variance[0], np.diag(c - gain @ c[[1, 6]]), rtol=1e-6)
    left = gaussian.remaining([1, 6], gaussian.noise[[1, 6]] / counts)
    np.testing.assert_allclose(np.diag(left), variance[0], rtol=1e-6)


def test_a_wider_scale_and_a_level_are_a_wider_covariance():
    gaussian = CaseGaussian.fitted(drawn(400), THREADS, noise=QUIET)
    wider = CaseGaussian(2 * gaussian.mean, 4 * gaussian.covariance + 0.5, gaussian.noise)
    values, counts = np.array([[0.4, -0.2]]), np.ones(2)
    for found, expected in zip(
        given(gaussian, [1, 6], values, counts, scale=2.0, level=0.5), given(wider, [1, 6], values, counts), strict=True
    ):
        np.testing.assert_allclose(found, expected, rtol=1e-9)


def test_holes_in_what_is_learned_from_are_borne():
    whole, holed = (CaseGaussian.fitted(drawn(400, holes=share), THREADS, noise=QUIET) for share in (0.0, 0.4))
    np.testing.assert_allclose(holed.covariance, whole.covariance, atol=0.12)
    assert np.linalg.eigvalsh(holed.covariance).min() > 0


def test_few_ops_lean_on_what_is_smooth():
    few = CaseGaussian.fitted(drawn(4), THREADS, noise=QUIET)
    assert np.linalg.eigvalsh(few.covariance).min() > 0
    correlation = few.covariance / np.sqrt(np.outer(*[np.diag(few.covariance)] * 2))
    assert correlation[0, 1] > correlation[0, 7]


def test_the_most_informative_case_leaves_the_least_variance():
    gaussian = CaseGaussian.fitted(drawn(300), THREADS, noise=QUIET)
    left = gaussian.remaining([0], QUIET[:1])
    rest = {at: np.trace(gaussian.remaining([0, at], QUIET[:2])) for at in range(1, 8)}
    assert gaussian.most_informative(left, list(rest), np.ones(8)) == min(rest, key=rest.get)


def test_the_regret_of_a_sure_choice_is_none_and_of_a_toss_up_some():
    sure, likely = expected_regret(np.array([0.0, 1.0, 2.0]), 1e-6 * np.eye(3))
    assert sure == 0.0
    assert likely.tolist() == [1.0, 0.0, 0.0]
    toss, likely = expected_regret(np.zeros(3), 0.04 * np.eye(3))
    assert 0.05 < toss < 0.5
    assert likely.sum() == pytest.approx(1)
    assert likely.max() < 0.6
