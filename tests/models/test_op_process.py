"""Curves of ops like those that were measured."""

from dataclasses import replace

import numpy as np

from tests.models.synthetic_ops import make_ops
from threadcast.models.op_process import TOGETHER, OpProcess, groups
from threadcast.models.static_features import describe

OPS = [op for op in make_ops(240) if op.kind == "mm"]


def curves_of(ops):
    """Two ways in which curves differ, each a function of what an op is."""
    m, n, each, _ = describe(ops).T
    cases = np.linspace(0, 1, 12)
    return np.sin(m)[:, None] * cases + 0.3 * (n + each)[:, None] * (1 - cases**2)


def test_ops_that_were_not_seen_are_forecast():
    process, _ = OpProcess.fitted(OPS[:60], curves_of(OPS[:60]), seed=0)
    wanted = curves_of(OPS[60:])
    error = np.abs(process.forecast(OPS[60:]) - wanted).mean()
    assert error < 0.35 * np.abs(wanted - wanted.mean(axis=0)).mean()


def test_what_is_left_is_the_error_without_the_op():
    ops, curves = OPS[:30], curves_of(OPS[:30])
    _, left = OpProcess.fitted(ops, curves, seed=0)
    without, _ = OpProcess.fitted(ops[1:], curves[1:], seed=0)
    own = curves[0] - without.forecast(ops[:1])[0]
    assert np.abs(left[0] - own).mean() < 0.5 * np.abs(curves[0] - curves.mean(axis=0)).mean() + 0.05
    assert np.abs(left).mean() < np.abs(curves - curves.mean(axis=0)).mean()


def test_another_kind_gets_the_mean():
    process, _ = OpProcess.fitted(OPS[:40], curves_of(OPS[:40]), seed=0)
    strange = [replace(OPS[0], kind="strange"), OPS[0]]
    found = process.forecast(strange)
    np.testing.assert_allclose(found[0], process.mean)
    assert np.abs(found[1] - curves_of(OPS[:1])[0]).mean() < np.abs(process.mean - curves_of(OPS[:1])[0]).mean()


def test_equal_curves_have_no_components():
    flat = np.ones((5, 4))
    process, left = OpProcess.fitted(OPS[:5], flat, seed=0)
    np.testing.assert_allclose(process.forecast(OPS[5:9]), 1.0)
    np.testing.assert_allclose(left, 0.0, atol=1e-12)


def test_equal_ops_are_no_trouble():
    ops = [OPS[0]] * 6
    process, left = OpProcess.fitted(ops, np.random.default_rng(0).standard_normal((6, 5)), seed=0)
    assert np.all(np.isfinite(process.forecast(OPS[:2])))
    assert np.all(np.isfinite(left))


def test_groups_cover_all_components_once():
    for count in (0, 1, 2, 5, 9, 24):
        covered = [i for group in groups(count) for i in range(*group.indices(count))]
        assert covered == list(range(count))


def test_each_of_few_ops_is_forecast_to_the_last_bit_as_it_is_alone():
    process, _ = OpProcess.fitted(OPS[:40], curves_of(OPS[:40]), seed=0)
    asked = [replace(op, kind="strange") if i % 5 == 3 else op for i, op in enumerate(OPS[40 : 40 + TOGETHER])]
    alone = [process.forecast([op])[0] for op in asked]
    for count in range(1, TOGETHER + 1):
        np.testing.assert_array_equal(process.forecast(asked[:count]), alone[:count])
