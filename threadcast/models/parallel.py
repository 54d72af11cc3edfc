"""Runs work in several processes that end with it, or on a cluster, which stays; linear algebra in one thread."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np

from threadcast.core.curve import Floats
from threadcast.core.errors import ModelError
from threadcast.models.xgboost_library import xgboost_library

T = TypeVar("T")

CONNECT_S = 10.0
"""Longest wait for a cluster's answer, in seconds."""

CHUNK = 256
"""Number of ops whose features are held in memory at once."""

_on_cluster: ContextVar[bool] = ContextVar("on_cluster", default=False)


@contextmanager
def cluster(address: str) -> Iterator[None]:
    """Within the block, `run` uses the Dask cluster whose scheduler is at `address`; ModelError where none answers.

    Its workers need threadcast and the models' libraries, in the versions of this process.
    """
    import distributed
    import joblib
    from distributed.comm.addressing import get_address_host_port

    connect: Callable[..., Any] = distributed.Client
    try:
        get_address_host_port(address)  # else a client that is not complete fails once more when it is deleted
        client = connect(address, timeout=CONNECT_S, set_as_default=False)
    except (OSError, ValueError) as error:
        raise ModelError(f"no Dask scheduler answers at {address}: {error}") from error
    with client:
        if not client.scheduler_info()["workers"]:
            raise ModelError(f"the Dask cluster at {address} has no workers; start `dask worker {address}`")
        _import_xgboost()
        client.run(_import_xgboost)
        before = _on_cluster.set(True)
        try:
            with joblib.parallel_config("dask", client=client):
                yield
        finally:
            _on_cluster.reset(before)


def _import_xgboost() -> None:
    """Dask reads models in threads of its own, beside those that fit, and two threads must not import it at once."""
    xgboost_library()


def run(tasks: Iterable[Any], *, jobs: int) -> Iterator[tuple[int, Any]]:
    """Yield (position, result) of each of these `joblib.delayed` calls as soon as it is done, in any order; at most
    `jobs` run at a time, with one job in this process.

    Within a block of `cluster` the calls run on the cluster, all at once. joblib would keep its own workers for minutes
    in case of more work; here they end with the last result, or when the caller stops early.
    """
    import joblib

    numbered = [joblib.delayed(_numbered)(number, task) for number, task in enumerate(tasks)]
    if _on_cluster.get():
        yield from joblib.Parallel(n_jobs=-1, return_as="generator_unordered")(numbered)
        return
    jobs = max(min(jobs, len(numbered)), 1)
    try:
        yield from joblib.Parallel(n_jobs=jobs, return_as="generator_unordered")(numbered)
    finally:
        if jobs != 1:
            from joblib.externals.loky import get_reusable_executor

            get_reusable_executor().shutdown(wait=True)


def _numbered(number: int, task: tuple[Callable[..., Any], Sequence[Any], dict[str, Any]]) -> tuple[int, Any]:
    function, arguments, options = task
    return number, function(*arguments, **options)


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Within the block, linear algebra runs in one thread: on small matrices the others would wait more than work, and
    on a busy machine hold the first one up by a factor of 50.

    The limit is the process's: of blocks that overlap, in any threads, the last one to end removes it.
    """
    _blas_limit.enter()
    try:
        yield
    finally:
        _blas_limit.leave()


class _BlasLimit:
    """Counts the blocks that want linear algebra in one thread."""

    def __init__(self) -> None:
        self._lock, self._blocks, self._limit = threading.Lock(), 0, ExitStack()

    def enter(self) -> None:
        with self._lock:
            if not self._blocks:
                self._limit.enter_context(_loaded_libraries(len(sys.modules)).limit(limits=1, user_api="blas"))
            self._blocks += 1

    def leave(self) -> None:
        with self._lock:
            self._blocks -= 1
            if not self._blocks:
                self._limit.close()


_blas_limit = _BlasLimit()


@lru_cache(maxsize=1)
def _loaded_libraries(modules: int) -> Any:
    """The libraries with threads of their own that are loaded; looked up again, which takes 3 ms and more, once the
    number of imported `modules` has changed."""
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


def in_chunks(forecast: Callable[[Sequence[T]], Floats], ops: Sequence[T]) -> Floats:
    """(n_ops, n_cases) from `forecast`, which returns one row for each op: called for `CHUNK` ops at a time."""
    parts = [ops[start : start + CHUNK] for start in range(0, len(ops), CHUNK)]
    return forecast(ops) if len(parts) == 1 else np.concatenate([forecast(part) for part in parts])
