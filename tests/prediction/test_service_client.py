"""Several attempts, one deadline, and a service that is left alone while it fails."""

from __future__ import annotations

import socket
from random import Random

import pytest

from tests.prediction.predicting import MACHINE, OPS, PATIENT_S, Service, assert_same, local
from threadcast.core.errors import DeadlineExceeded, NotAsked, ServiceRefused, ServiceUnavailable
from threadcast.prediction.bounded_request import BoundedClient, Request
from threadcast.prediction.http_answer import Answer
from threadcast.prediction.questions import PATH, Questions
from threadcast.prediction.remote import RemotePredictor
from threadcast.prediction.retries import ATTEMPTS
from threadcast.prediction.service_client import ServiceClient


class Time:
    """A clock that a sleep puts forward."""

    def __init__(self) -> None:
        self.now_s, self.slept = 1000.0, list[float]()

    def clock(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now_s += seconds


@pytest.fixture
def time() -> Time:
    return Time()


def client_of(url: str, time: Time) -> ServiceClient:
    return ServiceClient(BoundedClient(url), clock=time.clock, sleep=time.sleep, random=Random(0))


def question(*, safe: bool = True) -> Request:
    return Request(PATH, Questions(MACHINE, None).request(OPS).body, 10_000, safe=safe)


def content(answer: Answer) -> bytes:
    return answer.content


def test_a_failure_that_passes_is_not_seen(service: Service, time: Time) -> None:
    service.failures = [503, 429]
    assert client_of(service.url, time).ask(question(), content, until_s=time.now_s + PATIENT_S)
    assert service.statuses == [503, 429, 200]
    assert len(time.slept) == 2


def test_a_request_that_changes_something_is_made_once(service: Service, time: Time) -> None:
    service.failures = [503]
    with pytest.raises(ServiceRefused):
        client_of(service.url, time).ask(question(safe=False), content, until_s=time.now_s + PATIENT_S)
    assert service.statuses == [503]


def test_the_last_attempt_says_why(service: Service, time: Time) -> None:
    service.failures = [429] * (ATTEMPTS - 1)
    service.status = 503
    with pytest.raises(ServiceRefused, match="answered 503"):
        client_of(service.url, time).ask(question(), content, until_s=time.now_s + PATIENT_S)
    assert len(service.statuses) == ATTEMPTS


def test_a_retry_after_is_waited_for(service: Service, time: Time) -> None:
    service.failures, service.answer_headers = [503], {"Retry-After": "4"}
    client_of(service.url, time).ask(question(), content, until_s=time.now_s + PATIENT_S)
    assert 4.0 <= time.slept[0] <= 4.05


def test_a_retry_after_beyond_the_deadline_is_not_waited_for_and_kept_by_later_calls(
    service: Service, time: Time
) -> None:
    service.failures, service.answer_headers = [503], {"Retry-After": "4"}
    client = client_of(service.url, time)
    with pytest.raises(ServiceRefused):
        client.ask(question(), content, until_s=time.now_s + 1)
    assert time.slept == []
    with pytest.raises(NotAsked, match=r"not asked for 4\.0 s more"):
        client.ask(question(), content, until_s=time.now_s + 1)
    time.now_s += 4
    client.ask(question(), content, until_s=time.now_s + 1)
    assert service.statuses == [503, 200]


def test_without_time_left_nobody_is_asked(service: Service, time: Time) -> None:
    with pytest.raises(DeadlineExceeded, match="no time is left"):
        client_of(service.url, time).ask(question(), content, until_s=time.now_s)
    assert service.questions == []


@pytest.mark.parametrize("status", [404, 422])
def test_a_question_that_the_service_does_not_take_says_nothing_against_the_service(
    service: Service, time: Time, status: int
) -> None:
    service.status = status
    client = client_of(service.url, time)
    for _ in range(5):
        with pytest.raises(ServiceRefused):
            client.ask(question(), content, until_s=time.now_s + PATIENT_S)
    client._breaker.enter()


@pytest.mark.parametrize("status", [401, 403, 500])
def test_a_service_that_refuses_everything_is_left_alone(service: Service, time: Time, status: int) -> None:
    service.status = status
    client = client_of(service.url, time)
    for _ in range(5):
        with pytest.raises((ServiceRefused, ServiceUnavailable)):
            client.ask(question(), content, until_s=time.now_s + PATIENT_S)
    assert service.statuses == [status] * 3


def test_an_answer_that_cannot_be_used_counts_as_a_failure(service: Service) -> None:
    service.answer = lambda _: b"<html>It works!</html>"
    remote = RemotePredictor(service.url, MACHINE, deadline_s=PATIENT_S, fallback=local(0.3))
    for _ in range(5):
        remote.curves(OPS)
    assert len(service.questions) == 3
    assert remote.status.fallbacks == 5
    assert "not asked" in str(remote.status.last_error)


def test_a_service_that_is_gone_costs_the_first_call_its_attempts_and_the_next_ones_none(time: Time) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
    client = client_of(url, time)
    with pytest.raises(ServiceUnavailable, match="cannot be reached"):
        client.ask(question(), content, until_s=time.now_s + PATIENT_S)
    assert len(time.slept) == ATTEMPTS - 1
    with pytest.raises(NotAsked, match="not asked"):
        client.ask(question(), content, until_s=time.now_s + PATIENT_S)
    assert len(time.slept) == ATTEMPTS - 1


def test_the_service_is_told_how_long_somebody_waits(service: Service) -> None:
    RemotePredictor(service.url, MACHINE, deadline_s=PATIENT_S, last_resort=False).curves(OPS)
    assert 0 < float(service.headers[0]["X-Deadline-S"]) <= PATIENT_S


def test_a_closed_client_asks_nobody(service: Service) -> None:
    with RemotePredictor(service.url, MACHINE, deadline_s=PATIENT_S, fallback=local(0.3)) as remote:
        assert_same(remote.curves(OPS[:1]), local().curves(OPS[:1]))
    assert_same(remote.curves(OPS[:1]), local().curves(OPS[:1]))
    assert_same(remote.curves(OPS[1:]), local(0.3).curves(OPS[1:]))
    assert len(service.questions) == 1
