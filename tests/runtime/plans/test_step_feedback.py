"""What looks have shown is stored by a process; whatever fails there is said once and disturbs no step."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.waiting import eventually
from threadcast.core import Case, Machine, Op, OpGraph, TensorSpec
from threadcast.runtime.plans.step_feedback import StepFeedback
from threadcast.runtime.plans.step_rows import IN_STEP
from threadcast.store import Store

MACHINE = Machine.uniform("four cores", 4)
SPEC = TensorSpec((8, 8), "float32")
GRAPH = OpGraph(("op0",), (Op("mm", (SPEC, SPEC), outputs=(SPEC,)),), ())
KEY = GRAPH.ops[0].key
LOOKED = {KEY: {Case(4): [1.0, 1.5], Case(1): [2.0]}}


@pytest.mark.parametrize("service", [None, "http://127.0.0.1:9"])
def test_what_looks_have_shown_is_stored_whether_a_service_is_there_or_not_which_is_said_once(
    service: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    if service is not None:
        monkeypatch.setenv("THREADCAST_ENGINE_FEEDBACK", service)
    feedback = StepFeedback(f"sqlite:///{tmp_path / 'store.sqlite'}", MACHINE)
    for _ in range(2 if service else 1):
        assert not feedback.working
        feedback.add_looks([(GRAPH, {}), (GRAPH, LOOKED)])
        assert feedback.working
        assert eventually(lambda: not feedback.working)
    feedback.close()
    with Store.open(tmp_path / "store.sqlite") as store:
        found = store.measurements(machine=MACHINE.fingerprint)
    assert {(row.op.key, row.case.threads, row.seconds) for row in found} == {(KEY, 4, 1.25), (KEY, 1, 2.0)}
    assert {row.conditions["cache"] for row in found} == {IN_STEP}
    assert ["the service cannot be reached" in message for message in caplog.messages] == [True] * bool(service)


def test_a_process_that_cannot_be_started_is_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sys, "executable", "/nonexistent/python")
    feedback = StepFeedback("sqlite://", MACHINE)
    for _ in range(2):
        feedback.add_looks([(GRAPH, LOOKED)])
    (said,) = caplog.messages
    assert "are not stored" in said
    assert "/nonexistent/python" in said
