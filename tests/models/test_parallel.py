"""Work in chunks on several threads, each of which multiplies matrices by itself."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from tests.waiting import HANGS_S
from threadcast.models.parallel import CHUNK, in_chunks

OPS = range(3 * CHUNK)


def blas_threads() -> set[int]:
    return {library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"}


def test_linear_algebra_has_one_thread_while_chunks_are_worked_at_and_its_own_again_after_that_or_an_error() -> None:
    meanwhile = []

    def forecast(some: range) -> np.ndarray:
        meanwhile.append(blas_threads())
        return np.array(some, dtype=np.float64)[:, None]

    with threadpool_limits(2, user_api="blas"):
        assert in_chunks(forecast, OPS, jobs=2)[:, 0].tolist() == list(OPS)
        assert meanwhile == [{1}] * 3
        assert blas_threads() == {2}
        with pytest.raises(ZeroDivisionError):
            in_chunks(lambda some: 1 / 0, OPS, jobs=2)
        assert blas_threads() == {2}


def test_callers_that_overlap_leave_the_limit_as_it_was() -> None:
    entered, may_leave = threading.Event(), threading.Event()

    def first(some: range) -> np.ndarray:
        entered.set()
        assert may_leave.wait(HANGS_S)
        return np.array(some, dtype=np.float64)[:, None]

    def second(some: range) -> np.ndarray:
        return np.array(some, dtype=np.float64)[:, None]

    with threadpool_limits(2, user_api="blas"), ThreadPoolExecutor(2) as callers:
        one = callers.submit(in_chunks, first, OPS, jobs=2)
        assert entered.wait(HANGS_S)
        other = callers.submit(in_chunks, second, OPS, jobs=2)
        while not other.running():
            pass
        may_leave.set()
        assert one.result(HANGS_S).tolist() == other.result(HANGS_S).tolist()
        assert blas_threads() == {2}
    assert len(blas_threads()) == 1
