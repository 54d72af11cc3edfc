"""Requests that take too long are stopped, and what is stopped is really over."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from flask.testing import FlaskClient

from tests.clock import Clock
from tests.processes import own_children
from tests.service.service_data import CURVES, OPS, graph_document
from tests.waiting import HANGS_S, eventually
from threadcast.models.roofline import Roofline
from threadcast.scheduler.planner_process import PlannerProcess
from threadcast.scheduler.policies.critical_path import CriticalPath
from threadcast.service import planners
from threadcast.service.app import Service, create_app
from threadcast.service.deadlines import Deadline, computed_in_time
from threadcast.service.problems import Problem
from threadcast.service.settings import ServiceSettings

PLAN = {"graph": graph_document(**CURVES), "cores": 2}


def is_there(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def planning_processes() -> list[int]:
    return own_children("planner_process")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock by which deadlines are kept."""
    made = Clock()
    monkeypatch.setattr("threadcast.service.deadlines.monotonic", made)
    return made


@pytest.fixture
def hurried(settings: ServiceSettings, clock: Clock) -> Iterator[Service]:
    """An app that works at no request for more than 0.2 s of the clock."""
    made = create_app(replace(settings, deadline_s=0.2))
    yield made
    made.extensions["threadcast"].store.close()


def test_a_plan_that_takes_too_long_is_ended_with_its_process(
    client: FlaskClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    planners.close()
    assert client.post("/v1/plans", json=PLAN).status_code == 200
    [process] = planning_processes()
    os.kill(process, 19)  # SIGSTOP: it will take longer than any deadline
    with monkeypatch.context() as patch:
        wait = PlannerProcess.result
        patch.setattr(PlannerProcess, "result", lambda self, _: wait(self, 0.01))  # once asked, time is up
        answer = client.post("/v1/plans", json={**PLAN, "cores": 3})
    assert (answer.status_code, answer.content_type) == (503, "application/problem+json")
    assert answer.headers["Retry-After"] == "1"
    assert not is_there(process)
    assert client.post("/v1/plans", json={**PLAN, "cores": 3}).status_code == 200


def test_a_plan_over_which_processes_are_killed_again_and_again_is_refused(
    client: FlaskClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    planners.close()

    def killed(self: PlannerProcess, *args: object, **options: object) -> None:
        os.kill(self.pid, 9)

    monkeypatch.setattr(PlannerProcess, "ask", killed)
    answer = client.post("/v1/plans", json={**PLAN, "cores": 3})
    assert (answer.status_code, answer.content_type) == (503, "application/problem+json")
    assert "ended with status -9" in answer.json["detail"]
    assert planning_processes() == []


def test_who_waits_for_a_planning_process_waits_no_longer_than_the_deadline(client: FlaskClient) -> None:
    planners.close()
    assert client.post("/v1/plans", json=PLAN).status_code == 200
    [process] = planning_processes()
    os.kill(process, 19)
    answers = []

    def ask(cores: int) -> None:
        body, headers = {**PLAN, "cores": cores}, {"X-Deadline-S": "1"}
        answers.append(client.application.test_client().post("/v1/plans", json=body, headers=headers).status_code)

    threads = [threading.Thread(target=ask, args=(cores,)) for cores in (3, 4, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [503, 503, 503]


@pytest.fixture
def slow(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """Each forecast takes 0.15 s of the clock, and there is one for each op; gets an entry for each."""
    calls: list[None] = []
    original = Roofline.predict_many

    def slowly(*arguments: Any, **more: Any) -> object:
        calls.append(None)
        clock.now_s += 0.15
        return original(*arguments, **more)

    monkeypatch.setattr(Roofline, "predict_many", slowly)
    monkeypatch.setattr("threadcast.service.deadlines.OPS_AT_ONCE", 1)
    return calls


def test_a_prediction_that_takes_too_long_stops_between_ops(hurried: Service, slow: list[None]) -> None:
    before = set(threading.enumerate())
    answer = hurried.test_client().post("/v1/predictions", json={"ops": [op.key for op in OPS]})
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1")
    assert len(slow) == 2 < len(OPS)
    assert set(threading.enumerate()) <= before


class UpOnce(threading.Thread):
    """In place of a `threading.Timer`: the time is up once `begun` is set."""

    begun = threading.Event()

    def __init__(self, seconds: float, stop: Callable[[], None]) -> None:
        super().__init__()
        self.stop = stop

    def run(self) -> None:
        assert self.begun.wait(HANGS_S)
        self.stop()

    def cancel(self) -> None:
        """It has happened."""


def test_a_policy_that_takes_too_long_is_stopped(client: FlaskClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("threadcast.service.deadlines.Timer", UpOnce)

    def forever(*_: object) -> None:
        while True:
            try:
                UpOnce.begun.set()
            except Exception:  # noqa: BLE001 - what policies may do
                continue

    monkeypatch.setattr(CriticalPath, "__init__", forever)
    before = set(threading.enumerate())
    answer = client.post("/v1/decisions", json={"graph": "net", "ready": ["a"]})
    assert answer.status_code == 503
    assert eventually(lambda: set(threading.enumerate()) <= before)  # it was stopped in this thread, and none goes on


@pytest.fixture
def often_switched() -> Iterator[None]:
    """Threads take turns so often that what one sets for another is raised at any place."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def busy(seconds: float) -> None:
    end_s = time.perf_counter() + seconds
    while time.perf_counter() < end_s:
        pass


def test_what_ends_in_time_is_not_disturbed_afterwards(often_switched: None) -> None:
    for number in range(400):  # each ends about when its time is up
        until = Deadline(0.001)
        try:
            computed_in_time(until, lambda: busy(0.0009 + 0.00001 * (number % 30)))  # noqa: B023
        except Problem as problem:
            assert problem.status == 503  # noqa: PT017
        sum(range(100))


@pytest.mark.parametrize("sent", ["", "x", "0", "-1", "nan"])
def test_a_deadline_that_is_no_time_is_refused(client: FlaskClient, sent: str) -> None:
    answer = client.post("/v1/predictions", json={"ops": [OPS[0].key]}, headers={"X-Deadline-S": sent})
    problem = answer.get_json()
    assert (answer.status_code, problem["pointer"], problem["in"]) == (422, "/X-Deadline-S", "header")
