"""A child that was forked while a thread of its parent held a lock of a remote predictor answers all the same."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable

import pytest

from tests.prediction.predicting import MACHINE, OPS, PATIENT_S, Service
from threadcast.prediction.remote import RemotePredictor

pytestmark = pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")


def parts_of(part: object) -> Iterable[object]:
    """The object and all of ours that it holds."""
    yield part
    for held in getattr(part, "__dict__", {}).values():
        if type(held).__module__.startswith("threadcast."):
            yield from parts_of(held)


def test_a_child_forked_while_every_lock_was_held_answers_from_cache_service_and_fallback(service: Service) -> None:
    remote = RemotePredictor(service.url, MACHINE, deadline_s=PATIENT_S)
    remote.curves(OPS[:1])
    locks = [part.__dict__["_lock"] for part in parts_of(remote) if "_lock" in getattr(part, "__dict__", {})]
    assert len(locks) >= 4
    for lock in locks:
        lock.__enter__()
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        try:
            remote.curves(OPS[:1])
            remote.curves(OPS)
            os._exit(0)
        finally:
            os._exit(1)
    for lock in locks:
        lock.__exit__(None, None, None)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
