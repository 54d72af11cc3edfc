"""What is told of how a thread count divides an op."""

import numpy as np

from threadcast.core import Affinity, Case, Op, TensorSpec
from threadcast.models.thread_features import feature_names, thread_features

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
    rows = feature_names().index("log rows of a thread")
    assert once[0, rows] == twice[1, rows]
    assert once[0, rows] != once[1, rows]


def test_each_feature_has_a_name_that_says_what_it_is():
    described = Op("fft", attributes={"size": 1024.0, "kind": 2.0})
    names = feature_names(("kind", "size"))
    found = dict(zip(names, thread_features([described], (Case(6),), ("kind", "size"))[0, 0], strict=True))
    assert len(found) == len(names)
    assert (found["threads"], found["divisors"], found["largest prime"], found["spread"]) == (6, 4, 3, 0)
    assert found["of a thread: size"] == np.float32(1024 - np.log(6))
    own = dict(zip(feature_names(), thread_features([product(48, 64, 480)], (Case(2),))[0, 0], strict=True))
    assert own["log rows"] == np.float32(np.log(48))
    assert own["log columns of a thread"] == np.float32(np.log(480 / 2))
