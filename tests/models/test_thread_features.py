"""What is told of how a thread count divides an op."""

import numpy as np

from threadcast.core import Affinity, Case, Op, TensorSpec
from threadcast.models.thread_features import thread_features

CASES = (Case(1), Case(6), Case(7), Case(12), Case(6, Affinity.SPREAD))


def product(m, k, n):
    return Op("mm", (TensorSpec((m, k)), TensorSpec((k, n))), outputs=(TensorSpec((m, n)),))


def test_every_op_is_told_in_every_case_alone_as_among_others():
    ops = [product(48, 64, 480), product(480, 64, 48)]
    found = thread_features(ops, CASES)
    assert found.shape[:2] == (2, 5)
    assert found.dtype == np.float32
    assert np.all(np.isfinite(found))
    for i, op in enumerate(ops):
        np.testing.assert_array_equal(thread_features([op], CASES)[0], found[i])


def test_a_side_by_thread_is_alike_where_it_is_cut_alike():
    once, twice = thread_features([product(48, 64, 480), product(96, 64, 480)], (Case(3), Case(6)))
    assert once[0, -3] == twice[1, -3]  # rows by thread
    assert once[0, -3] != once[1, -3]


def test_primes_and_affinities_are_told_apart():
    found = thread_features([product(48, 64, 480)], CASES)[0]
    assert len({row.tobytes() for row in found}) == len(CASES)
