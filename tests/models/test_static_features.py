"""What is told of ops and cases before anything is measured."""

import numpy as np

from threadcast.core import Affinity, Case, Machine, Op, TensorSpec
from threadcast.models.static_features import FEW, UNKNOWN, describe, joint_features, work

MACHINE = Machine.uniform("twelve", 12, group_size=4)
CASES = (Case(1), Case(5), Case(12), Case(3, Affinity.SPREAD))


def product(m, k, n):
    return Op("mm", (TensorSpec((m, k)), TensorSpec((k, n))), outputs=(TensorSpec((m, n)),))


OPS = [product(48, 64, 480), product(480, 64, 48), Op("add", (TensorSpec((7,)),), outputs=(TensorSpec((7,)),))]


def test_there_is_a_number_for_every_op_in_every_case():
    found = joint_features(OPS, MACHINE, CASES)
    assert found.shape[:2] == (3, 4)
    assert found.dtype == np.float32
    assert np.all(np.isfinite(found))
    assert (found == UNKNOWN).any()  # no caches, no clocks


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


def test_many_ops_are_described_to_the_last_bit_as_one_by_one():
    random = np.random.default_rng(0)
    sides = [*random.integers(1, 5_000, (40, 3)).tolist(), [0, 3, 4], [3, 3, 0], [0, 2, 0], [2**31, 2, 2**31 - 1]]
    ops = [product(*map(int, of_op)) for of_op in sides]
    assert len(ops) > FEW
    for some in (ops, [*ops, Op("relu", (TensorSpec((2, 3, 4)),), outputs=(TensorSpec((2, 3, 4)),)), Op("wait")]):
        assert np.array_equal(describe(some), np.concatenate([describe([op]) for op in some]))
        assert np.array_equal(work(some), np.concatenate([work([op]) for op in some]))
