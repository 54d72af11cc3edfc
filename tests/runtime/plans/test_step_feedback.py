"""What looks have shown is stored by a process; whatever fails there is said once and disturbs no step."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import eventually
from threadcast.core import Case, Machine, Op, OpGraph, TensorSpec
from threadcast.runtime.plans.step_feedback import StepFeedback
from threadcast.runtime.plans.step_rows import IN_STEP, rows_of
from threadcast.store import Store

MACHINE = Machine.uniform("four cores", 4)
SPEC = TensorSpec((8, 8), "float32")
GRAPH = OpGraph(("op0",), (Op("mm", (SPEC, SPEC), outputs=(SPEC,)),), ())
KEY = GRAPH.ops[0].key
LOOKED = {KEY: {Case(4): [1.0, 1.5], Case(1): [2.0]}}
Looked = Mapping[str, Mapping[Case, list[float]]]


class Process:
    """A process that has ended, or goes on for ever (None)."""

    def __init__(self, status: int | None, said: bytes = b"") -> None:
        self.status, self.stderr, self.killed = status, io.BytesIO(said), False

    def poll(self) -> int | None:
        return self.status

    def kill(self) -> None:
        self.killed = True

    def wait(self) -> None:
        """It has ended."""


class World:
    """Processes that are given documents."""

    def __init__(self, status: int | None = 0, said: bytes = b"") -> None:
        self.documents, self.processes, self._ends = list[Any](), list[Process](), (status, said)
        self.feedback = StepFeedback("sqlite://", MACHINE, start=self._start)

    def _start(self, store: str, document: bytes) -> Any:
        assert store == "sqlite://"
        self.documents.append(json.loads(document))
        self.processes.append(Process(*self._ends))
        return self.processes[-1]


def test_what_looks_have_shown_is_stored_by_operator_and_case() -> None:
    world = World()
    world.feedback.add_looks([(GRAPH, {}), (GRAPH, LOOKED)])
    (document,) = world.documents
    rows = rows_of(document)
    assert all((row.machine, row.conditions["cache"]) == (MACHINE, IN_STEP) for row in rows)
    assert {row.case: [sample.seconds for sample in row.samples] for row in rows} == LOOKED[KEY]


def test_it_works_until_its_process_ends() -> None:
    world = World(None)
    assert not world.feedback.working
    world.feedback.add_looks([(GRAPH, LOOKED)])
    assert world.feedback.working
    world.processes[0].status = 0
    assert not world.feedback.working


@pytest.mark.parametrize(
    ("said", "reason"), [(b"one\nthe service answered 503\n", "the service answered 503"), (b"", "it failed")]
)
def test_a_failure_is_said_once(said: bytes, reason: str, caplog: pytest.LogCaptureFixture) -> None:
    world = World(1, said)
    with caplog.at_level(logging.WARNING, logger="threadcast"):
        for _ in range(3):
            world.feedback.add_looks([(GRAPH, LOOKED)])
        world.feedback.close()
    assert [record.message.rpartition(": ")[2] for record in caplog.records] == [reason]
    assert all(process.killed for process in world.processes)


def test_a_process_that_cannot_be_started_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    def fails(*_: object) -> Any:
        raise OSError("no memory")

    feedback = StepFeedback("sqlite://", MACHINE, start=fails)
    for _ in range(2):
        feedback.add_looks([(GRAPH, LOOKED)])
    assert [record.message.rpartition(": ")[2] for record in caplog.records] == ["no memory"]


def run_process(folder: Path, said: Callable[[], bool]) -> None:
    feedback = StepFeedback(f"sqlite:///{folder / 'store.sqlite'}", MACHINE)
    feedback.add_looks([(GRAPH, LOOKED)])
    assert feedback._process is not None
    feedback._process.wait(timeout=60)
    feedback.close()
    eventually(said)


@pytest.mark.system
def test_the_process_adds_to_the_store(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run_process(tmp_path, lambda: True)
    with Store.open(tmp_path / "store.sqlite") as store:
        found = store.measurements(machine=MACHINE.fingerprint)
    assert {(row.op.key, row.case.threads, row.seconds) for row in found} == {(KEY, 4, 1.25), (KEY, 1, 2.0)}
    assert not caplog.records


@pytest.mark.system
def test_a_service_that_is_not_there_keeps_nothing_from_the_local_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("THREADCAST_ENGINE_FEEDBACK", "http://127.0.0.1:9")
    run_process(tmp_path, lambda: bool(caplog.records))
    assert "the service cannot be reached" in caplog.text
    with Store.open(tmp_path / "store.sqlite") as store:
        assert len(store.measurements(machine=MACHINE.fingerprint)) == 2
