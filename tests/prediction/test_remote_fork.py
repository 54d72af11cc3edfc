"""A forked process goes on with what its parent kept, on connections and threads of its own."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable

import pytest

from tests.prediction.predicting import MACHINE, OPS, PATIENT_S, Service
from tests.waiting import eventually
from threadcast.prediction.fork_lock import ForkLock
from threadcast.prediction.remote import RemotePredictor

pytestmark = pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")


def in_a_child(check: Callable[[], bool]) -> None:
    """Fork; the child ends by itself after PATIENT_S and reports whether `check()` held."""
    child = os.fork()
    if child == 0:
        signal.alarm(int(PATIENT_S))  # a child that hangs is killed
        try:
            os._exit(0 if check() else 1)
        finally:
            os._exit(2)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


def holding(lock: ForkLock) -> tuple[threading.Thread, threading.Event]:
    """A thread that holds the lock until the event is set."""
    held, end = threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            held.set()
            end.wait(PATIENT_S)

    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(PATIENT_S)
    return thread, end


@pytest.mark.parametrize(
    "lock_of",
    [
        lambda remote: remote._lock,
        lambda remote: remote._curves._lock,
        lambda remote: remote._refresher._lock,
        lambda remote: remote._client._breaker._lock,
        lambda remote: remote._client._http._lock,
    ],
    ids=["status", "curves", "refresher", "breaker", "exchanges"],
)
def test_no_lock_is_found_held(service: Service, lock_of: Callable[[RemotePredictor], ForkLock]) -> None:
    remote = RemotePredictor(service.url, MACHINE, deadline_s=PATIENT_S, fresh_s=0.0, last_resort=False)
    remote.curves(OPS[:1])
    thread, end = holding(lock_of(remote))
    in_a_child(lambda: len(remote.curves(OPS)) == 3 and len(remote.curves(OPS)) == 3)
    end.set()
    thread.join()


def test_the_parents_curves_are_there_and_nobody_is_asked(service: Service) -> None:
    remote = RemotePredictor(service.url, MACHINE, deadline_s=PATIENT_S)
    remote.curves(OPS)
    in_a_child(lambda: remote.curves(OPS).model == "serial_share@1")
    assert len(service.questions) == 1


def test_a_request_of_the_parent_goes_on_and_the_child_makes_its_own(service: Service) -> None:
    remote = RemotePredictor(service.url, MACHINE, deadline_s=PATIENT_S, last_resort=False)
    asked, answered = threading.Event(), threading.Event()
    service.before = lambda: (asked.set(), answered.wait(PATIENT_S)) if len(service.questions) == 1 else None
    tables = []
    thread = threading.Thread(target=lambda: tables.append(remote.curves(OPS)))
    thread.start()
    assert asked.wait(PATIENT_S)
    in_a_child(lambda: len(remote.curves(OPS)) == 3)
    answered.set()
    thread.join()
    assert len(tables[0]) == 3


def test_the_helper_thread_starts_anew_in_the_child(service: Service) -> None:
    remote = RemotePredictor(service.url, MACHINE, deadline_s=PATIENT_S, fresh_s=0.0)
    remote.curves(OPS)
    asked, answered = threading.Event(), threading.Event()
    service.before = lambda: (asked.set(), answered.wait(PATIENT_S)) if len(service.questions) == 2 else None
    remote.curves(OPS)
    assert asked.wait(PATIENT_S)

    def check() -> bool:
        remote.curves(OPS)
        eventually(lambda: remote.status.refreshed)
        return True

    in_a_child(check)
    answered.set()
    eventually(lambda: remote.status.refreshed)
    remote.close()
