"""What is told of ops and cases before anything is measured."""

import numpy as np

from threadcast.core import Affinity, Case, Machine, Op, TensorSpec
from threadcast.models.static_features import UNKNOWN, describe, feature_names, joint_features, work

MACHINE = Machine.uniform("twelve", 12, group_size=4)
CASES = (Case(1), Case(5), Case(12), Case(3, Affinity.SPREAD))


def product(m, k, n):
    return Op("mm", (TensorSpec((m, k)), TensorSpec((k, n))), outputs=(TensorSpec((m, n)),))


OPS = [product(48, 64, 480), product(480, 64, 48), Op("add", (TensorSpec((7,)),), outputs=(TensorSpec((7,)),))]


def test_one_op_by_itself_is_told_as_among_others():
    together = joint_features(OPS, MACHINE, CASES)
    for i, op in enumerate(OPS):
        assert np.array_equal(joint_features([op], MACHINE, CASES)[0], together[i])
    for j, case in enumerate(CASES):
        alone = joint_features(OPS, MACHINE, [case])[:, 0]
        assert np.array_equal(alone, together[:, j])


def test_ops_cases_and_affinities_are_told_apart():
    found = joint_features(OPS, MACHINE, CASES)
    assert len({row.tobytes() for row in found.reshape(-1, found.shape[2])}) == len(OPS) * len(CASES)


def test_the_grid_follows_the_sides():
    """Twelve threads cut a wide matrix along its rows' length, a high one the other way, with equal parts."""
    across, along, high, wide = (joint_features(OPS, MACHINE, [Case(12)])[:2, 0, -10 + i] for i in range(4))
    assert (across[0], along[0]) == (1, 12)
    assert (across[1], along[1]) == (12, 1)
    np.testing.assert_allclose(np.exp([high[0], wide[0]]), [48, 40], rtol=1e-5)
    np.testing.assert_allclose(np.exp([high[1], wide[1]]), [40, 48], rtol=1e-5)


def test_work_grows_with_flops_and_bytes():
    small, large = work([product(8, 8, 8), product(16, 8, 8)])
    assert 0 < small < large
    assert work([Op("nothing")])[0] > 0


def test_ops_without_elements_or_tensors_are_described_too():
    empty = [product(0, 3, 4), product(3, 3, 0), product(0, 2, 0), Op("wait")]
    assert np.isfinite(describe(empty)).all()
    assert describe([]).shape == (0, 4)


def test_each_feature_has_a_name_that_says_what_it_is():
    machine = Machine.uniform("m", 8, group_size=4, threads_per_core=2)
    product = Op("mm", (TensorSpec((48, 64)), TensorSpec((64, 480))), outputs=(TensorSpec((48, 480)),))
    found = dict(zip(feature_names(), joint_features([product], machine, [Case(6)])[0, 0], strict=True))
    expected = {
        "inputs": 2, "threads": 6, "share of cores": 0.75, "smaller factor": 2, "larger factor": 3, "spread": 0,
        "divisors": 4, "sockets of machine": 1, "hardware threads of a core": 2, "log clock": UNKNOWN,
        "rows modulo 16": 0, "columns modulo 48": 0, "log cores of machine": np.log(8),
        "log side -2 of input 0": np.log(48),
        "log side -1 of output 0": np.log(480), "log side -3 of input 1": UNKNOWN, "log flops": np.log(product.flops),
        "log flops of a thread": np.log(product.flops) - np.log(6),
        "log inner cache": UNKNOWN, "cuts of rows": 1, "cuts of columns": 6,
        "log columns of a part": np.log(80), "rounding of rows to 48": 0,
    }  # fmt: skip
    assert {name: found[name] for name in expected} == {name: np.float32(value) for name, value in expected.items()}
    described = Op("fft", attributes={"size": 1024.0})
    assert len({*feature_names(("x", "x of a thread", "of a thread: x"))}) == len(feature_names()) + 6
    names = feature_names(("size",))
    assert joint_features([described], machine, [Case(1)], ("size",)).shape[2] == len(names) == len({*names})
