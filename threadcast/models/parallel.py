"""Work on several processes that have ended when it is done."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any


def run(tasks: Iterable[Any], *, jobs: int) -> Iterator[Any]:
    """Yield the results of `joblib.delayed` calls in their order, at most `jobs` at a time; one runs in this process.

    joblib would keep its workers for minutes in case that more comes; here they end with the last result, or
    when the caller stops early.
    """
    import joblib

    tasks = list(tasks)
    jobs = max(min(jobs, len(tasks)), 1)
    try:
        yield from joblib.Parallel(n_jobs=jobs, return_as="generator")(tasks)
    finally:
        if jobs != 1:
            from joblib.externals.loky import get_reusable_executor

            get_reusable_executor().shutdown(wait=True)
