"""Traced steps are stored when they say something new; whatever fails there is said once and disturbs no step."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import eventually
from threadcast.core import Affinity, Case, Machine, Op, OpGraph, Placement, TensorSpec, Trace
from threadcast.runtime.plans import step_feedback
from threadcast.runtime.plans.step_feedback import CHANGED, SUMMARY_S, StepFeedback
from threadcast.runtime.plans.step_rows import IN_STEP, rows_of
from threadcast.store import Store

MACHINE = Machine.uniform("four cores", 4)


def graph_of(*sizes: int) -> OpGraph:
    def product(rows: int) -> Op:
        spec = TensorSpec((rows, rows), "float32")
        return Op("mm", (spec, spec), outputs=(spec,))

    return OpGraph(tuple(f"op{i}" for i in range(len(sizes))), tuple(map(product, sizes)), ())


GRAPH = graph_of(8, 16, 8)


def trace_of(*placed: tuple[tuple[int, ...], float, float]) -> Trace:
    ops = tuple(Placement(f"op{i}", cores, len(cores), begin, end) for i, (cores, begin, end) in enumerate(placed))
    return Trace(4, "search", ops)


def chain(factor: float = 1.0) -> Trace:
    """One op after the other."""
    return trace_of(((0, 1, 2, 3), 0.0, factor), ((0, 1), factor, 3 * factor), ((0, 1, 2, 3), 3 * factor, 4.5 * factor))


class Ended:
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
    """A clock, and processes that are given documents."""

    def __init__(self) -> None:
        self.now_s, self.documents, self.processes = 0.0, list[Any](), list[Ended]()
        self.ends: tuple[int | None, bytes] = 0, b""
        self.feedback = StepFeedback("sqlite://", MACHINE, clock=lambda: self.now_s, start=self._start)

    def _start(self, store: str, document: bytes) -> Any:
        assert store == "sqlite://"
        self.documents.append(json.loads(document))
        self.processes.append(Ended(*self.ends))
        return self.processes[-1]

    def minute(self, trace: Trace, graph: OpGraph = GRAPH) -> dict[tuple[str, Case], list[float]]:
        """A minute with a traced step; what was given to be stored by its end."""
        self.now_s += SUMMARY_S
        assert self.feedback.due()
        before = len(self.documents)
        self.feedback.add(graph, trace)
        assert not self.feedback.due()
        rows = [row for document in self.documents[before:] for row in rows_of(document)]
        assert all((row.machine, row.conditions["cache"]) == (MACHINE, IN_STEP) for row in rows)
        return {(row.op.key, row.case): [sample.seconds for sample in row.samples] for row in rows}


@pytest.fixture
def world() -> Iterator[World]:
    found = World()
    yield found
    found.feedback.close()


def test_a_step_is_traced_once_a_minute(world: World) -> None:
    assert not world.feedback.due()
    world.now_s += SUMMARY_S - 1
    assert not world.feedback.due()
    world.minute(chain())


def test_the_times_of_operators_that_ran_alone_are_stored_by_case(world: World) -> None:
    small, large = GRAPH.ops[0].key, GRAPH.ops[1].key
    assert world.minute(chain()) == {(small, Case(4)): [1.0, 1.5], (large, Case(2)): [2.0]}


def test_operators_side_by_side_are_left_out(world: World) -> None:
    found = world.minute(trace_of(((0, 1), 0.0, 1.0), ((2, 3), 0.5, 2.0), ((0, 1, 2, 3), 2.0, 3.0)))
    assert found == {(GRAPH.ops[2].key, Case(4)): [1.0]}


def test_threads_on_as_many_cache_groups_are_spread(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine.uniform("pairs", 4, group_size=2)
    graph, trace = graph_of(8), Trace(4, "search", (Placement("op0", (0, 2), 2, 0.0, 1.0),))
    assert list(step_feedback._alone(graph, trace, machine)) == [(graph.ops[0].key, Case(2, Affinity.SPREAD))]


def test_what_has_not_changed_is_not_stored_again(world: World) -> None:
    first = world.minute(chain())
    for factor in (1.1, 0.9, 2.0, 1.0, 2.0):
        assert not world.minute(chain(factor)), "one disturbed step is no change"
    assert world.minute(chain(2.0)).keys() == first.keys()
    assert not world.minute(chain(2.0 * CHANGED * 0.99))


def test_operators_of_another_graph_are_stored_when_they_come(world: World) -> None:
    world.minute(chain())
    other = graph_of(32)
    assert list(world.minute(trace_of(((0,), 0.0, 1.0)), other)) == [(other.ops[0].key, Case(1))]


def test_a_graph_that_was_planned_without_looks_stores_nothing(world: World) -> None:
    world.feedback.add_looks([(GRAPH, {})])
    assert not world.documents
    world.feedback.add_looks([(GRAPH, {}), (GRAPH, {GRAPH.ops[0].key: {Case(4): [1.0]}})])
    assert len(world.documents) == 1


def test_what_looks_have_shown_has_a_minute_to_be_stored(world: World) -> None:
    world.ends = None, b""
    world.now_s = SUMMARY_S / 2
    assert not world.feedback.working
    world.feedback.add_looks([(GRAPH, {GRAPH.ops[0].key: {Case(4): [1.0]}})])
    assert world.feedback.working
    world.now_s += SUMMARY_S - 1
    assert not world.feedback.due(), "a traced step would end the process"
    world.processes[0].status = 0
    assert not world.feedback.working


@pytest.mark.parametrize(
    ("status", "said", "reason"),
    [
        (1, b"one\nthe service answered 503\n", "the service answered 503"),
        (1, b"", "it failed"),
        (None, b"", "it took more than 60 s"),
    ],
)
def test_a_failure_is_said_once(
    world: World, status: int | None, said: bytes, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    world.ends = status, said
    with caplog.at_level(logging.WARNING, logger="threadcast"):
        for size in (8, 16, 32, 64):
            world.minute(trace_of(((0,), 0.0, 1.0)), graph_of(size))
    assert [record.message.rpartition(": ")[2] for record in caplog.records] == [reason]
    assert len(world.processes) == 4
    assert all(process.killed for process in world.processes[:3])


def test_a_process_that_cannot_be_started_is_said_once(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_: object) -> Any:
        raise OSError("no memory")

    monkeypatch.setattr(world.feedback, "_start", fails)
    world.minute(chain())
    world.minute(chain())
    assert [record.message.rpartition(": ")[2] for record in caplog.records] == ["no memory"]


def run_process(folder: Path, said: Callable[[], bool]) -> None:
    now_s = [0.0]
    feedback = StepFeedback(f"sqlite:///{folder / 'store.sqlite'}", MACHINE, clock=lambda: now_s[0])
    now_s[0] = SUMMARY_S
    feedback.add(GRAPH, chain())
    process = feedback._process
    assert process is not None
    process.wait(timeout=60)
    now_s[0] *= 2
    feedback.add(GRAPH, chain())
    eventually(said)
    feedback.close()


@pytest.mark.system
def test_the_process_adds_to_the_store(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run_process(tmp_path, lambda: True)
    with Store.open(tmp_path / "store.sqlite") as store:
        found = store.measurements(machine=MACHINE.fingerprint)
    assert sorted((row.op.key, row.case.threads, row.seconds) for row in found) == sorted(
        [(GRAPH.ops[0].key, 4, 1.25), (GRAPH.ops[1].key, 2, 2.0)]
    )
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
