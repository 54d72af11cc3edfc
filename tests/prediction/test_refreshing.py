"""Old curves are answered at once and asked for anew by a helper thread, which ends."""

from __future__ import annotations

import threading

from tests.prediction.predicting import MACHINE, OPS, PATIENT_S, Service, assert_same, local
from tests.waiting import eventually
from threadcast.core import Op
from threadcast.prediction.refresher import Refresher
from threadcast.prediction.remote import RemotePredictor


def refreshing() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "threadcast-refresh"]


def test_stale_curves_are_answered_without_waiting_and_are_new_afterwards(service: Service) -> None:
    remote = RemotePredictor(service.url, MACHINE, deadline_s=PATIENT_S, fresh_s=0.0, last_resort=False)
    remote.curves(OPS)
    answered = threading.Event()
    service.before, service.predictor = lambda: answered.wait(PATIENT_S), local(0.5, version="serial_share@2")
    table = remote.curves(OPS)
    assert_same(table, local().curves(OPS))
    assert table.model == "serial_share@1"
    assert (remote.status.source_of_curves, remote.status.stale) == ("stale cache", 1)
    assert remote.status.age_s > 0
    answered.set()
    eventually(lambda: remote.status.refreshed)
    assert_same(remote.curves(OPS), local(0.5).curves(OPS))
    assert remote.status.model == "serial_share@2"
    remote.close()


def test_fresh_curves_are_not_asked_for_again(service: Service) -> None:
    remote = RemotePredictor(service.url, MACHINE, deadline_s=PATIENT_S)
    for _ in range(3):
        remote.curves(OPS)
    assert len(service.questions) == 1
    assert (remote.status.cached, remote.status.stale) == (2, 0)


def test_stale_curves_outlast_a_service_that_is_down(service: Service) -> None:
    remote = RemotePredictor(service.url, MACHINE, deadline_s=PATIENT_S, fresh_s=0.0, fallback=local(0.9))
    remote.curves(OPS)
    service.status = 500
    assert_same(remote.curves(OPS), local().curves(OPS))
    eventually(lambda: remote.status.last_error)
    table = remote.curves(OPS)
    assert_same(table, local().curves(OPS))
    assert table.model == "serial_share@1"
    assert remote.status.fallbacks == 0
    remote.close()


def test_many_stale_calls_have_one_helper_thread_which_ends(service: Service) -> None:
    remote = RemotePredictor(service.url, MACHINE, deadline_s=PATIENT_S, fresh_s=0.0)
    remote.curves(OPS)
    answered = threading.Event()
    service.before = lambda: answered.wait(PATIENT_S)
    for _ in range(50):
        remote.curves(OPS)
        assert len(refreshing()) == 1
    answered.set()
    eventually(lambda: not refreshing())
    assert len(service.questions) <= 3
    remote.close()


def test_closing_ends_the_helper_thread_in_the_middle_of_its_request(service: Service) -> None:
    remote = RemotePredictor(service.url, MACHINE, deadline_s=PATIENT_S, fresh_s=0.0)
    remote.curves(OPS)
    answered, asked = threading.Event(), threading.Event()
    service.before = lambda: (asked.set(), answered.wait(PATIENT_S))
    remote.curves(OPS)
    assert asked.wait(PATIENT_S)
    remote.close()
    assert not refreshing()
    remote.curves(OPS)
    assert not refreshing()
    answered.set()


def test_what_is_wanted_meanwhile_is_done_next() -> None:
    asked: list[list[str]] = []
    going, go_on = threading.Event(), threading.Event()

    def work(ops: list[Op]) -> None:
        asked.append([op.key for op in ops])
        going.set()
        assert go_on.wait(PATIENT_S)

    refresher = Refresher(work)  # type: ignore[arg-type]
    refresher.want(OPS[:1])
    assert going.wait(PATIENT_S)
    refresher.want(OPS[1:2])
    refresher.want(OPS[1:])
    go_on.set()
    eventually(lambda: not refreshing())
    assert asked == [[OPS[0].key], [OPS[1].key, OPS[2].key]]
