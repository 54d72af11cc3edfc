"""While the planner is compiled, requests for plans wait; those that cannot are told why."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from flask.testing import FlaskClient

from tests.processes import own_children
from tests.service.service_data import CURVES, graph_document
from tests.waiting import eventually
from threadcast.scheduler import compile_planner
from threadcast.service import planners

PLAN = {"graph": graph_document(**CURVES), "cores": 2, "policy": "fifo"}


def compiling_processes() -> list[int]:
    return own_children(compile_planner.__name__)


@pytest.fixture
def compiling() -> Iterator[int]:
    """The process that compiles, stopped: it goes on only with SIGCONT."""
    with planners.compilation.beside():
        assert eventually(compiling_processes)
        [process] = compiling_processes()
        os.kill(process, signal.SIGSTOP)
        yield process
        os.kill(process, signal.SIGCONT)
    assert not Path(f"/proc/{process}").exists()


def planner_state(client: FlaskClient) -> str:
    answer = client.get("/health/ready")
    assert answer.status_code == 200, "predictions need no planner"
    state: str = answer.get_json()["planner"]
    return state


def test_a_plan_that_cannot_wait_is_refused_with_the_reason(compiling: int, client: FlaskClient) -> None:
    assert planner_state(client) == "compiling"
    answer = client.post("/v1/plans", json=PLAN, headers={"X-Deadline-S": "0.2"})
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "5")
    assert "the planner is being compiled" in answer.get_json()["detail"]


def test_plans_go_on_when_the_planner_is_compiled(compiling: int, client: FlaskClient) -> None:
    os.kill(compiling, signal.SIGCONT)
    assert client.post("/v1/plans", json=PLAN).status_code == 200
    assert planner_state(client) == "ready"


def test_a_compilation_that_fails_does_not_hold_plans_up(compiling: int, client: FlaskClient) -> None:
    os.kill(compiling, signal.SIGKILL)
    assert eventually(lambda: planner_state(client) == "ready")
    assert client.post("/v1/plans", json=PLAN).status_code == 200
