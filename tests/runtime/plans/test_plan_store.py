"""A plan that was proven is run at once by the next process, if it is still one of the graph."""

from __future__ import annotations

import base64
import json
import os
import zlib
from contextlib import closing
from pathlib import Path

import pytest
import torch
from torch import Tensor

import threadcast
from tests.runtime.random_plans import made_up_curves, make_random_plan
from tests.waiting import eventually
from threadcast.capture.graph.capture import capture_forward
from threadcast.capture.graph.captured import Captured
from threadcast.core import Machine, Plan, read_machine
from threadcast.runtime.check import shadow
from threadcast.runtime.plans.malleable_plan import counts_below
from threadcast.runtime.plans.model_format import ModelFormat
from threadcast.runtime.plans.plan_store import BELIEVED, Extra, FasterGraphs, PlanStore, StoredPlan
from threadcast.runtime.plans.variant import MemoryFormat, Variant
from threadcast.runtime.tuner.call_plans import CallPlans
from threadcast.runtime.tuner.candidate import DEFAULT, VariantPlan, eager_in, plan_of
from threadcast.runtime.tuner.standings import LOOK, MOST_EAGER
from threadcast.runtime.tuner.tuning import Tuning
from threadcast.scheduler.policies import Problem


@pytest.fixture(scope="module")
def captured() -> Captured:
    return capture_forward(lambda x: (x * 2).sin() + (x + 1).cos(), torch.ones(8))


@pytest.fixture
def kept(captured: Captured, machine: Machine) -> StoredPlan:
    return StoredPlan(
        make_random_plan(captured.graph, (machine.cores[0].id,), seed=1), MemoryFormat.AS_GIVEN, 1e-3, eager_s=2e-3
    )


def test_what_is_kept_comes_back_for_the_same_graph_only(
    tmp_path: Path, captured: Captured, machine: Machine, kept: StoredPlan
) -> None:
    store = PlanStore(tmp_path / "plans", machine)
    assert store.read(captured.graph) is None
    store.write("call", captured.graph, kept)
    found = store.read(captured.graph)
    assert found is not None
    assert (found.plan, found.memory_format, found.step_s) == (kept.plan, MemoryFormat.AS_GIVEN, 1e-3)
    assert store.read(capture_forward(lambda x: x * 2, torch.ones(8)).graph) is None
    assert PlanStore(tmp_path / "plans", machine, among="openvino 2").read(captured.graph) is None
    other = Machine.uniform("other", 3)
    assert PlanStore(tmp_path / "plans", other).read(captured.graph) is None
    store.drop(captured.graph)
    assert store.read(captured.graph) is None


@pytest.mark.parametrize("planned", [False, True])
def test_what_was_slower_is_believed_by_some_processes(
    tmp_path: Path, captured: Captured, machine: Machine, planned: bool
) -> None:
    tried: frozenset[Extra] = frozenset({"formats", "backends"})
    PlanStore(tmp_path, machine).note_tried(captured.graph, tried, planned=planned)
    assert not PlanStore(tmp_path, machine).tried(captured.graph, planned=not planned), "something else was the best"
    assert not PlanStore(tmp_path, machine, among="openvino 2").tried(captured.graph, planned=planned)
    assert not PlanStore(tmp_path, Machine.uniform("other", 3)).tried(captured.graph, planned=planned)
    asked = [PlanStore(tmp_path, machine).tried(captured.graph, planned=planned) for _ in range(BELIEVED + 1)]
    assert asked == [tried] * (BELIEVED - 1) + [frozenset()] * 2
    PlanStore(tmp_path, machine).note_tried(captured.graph, tried, planned=planned)
    assert PlanStore(tmp_path, machine).tried(captured.graph, planned=planned) == tried
    for path in tmp_path.glob("*.tried"):
        path.write_text('{"tried": 3}')
    assert not PlanStore(tmp_path, machine).tried(captured.graph, planned=planned), "a damaged file is as good as none"


def test_the_layout_that_was_best_comes_first(
    tmp_path: Path, captured: Captured, machine: Machine, kept: StoredPlan
) -> None:
    store = PlanStore(tmp_path, machine)
    layouts: tuple[MemoryFormat, ...] = (MemoryFormat.AS_GIVEN, MemoryFormat.CHANNELS_LAST)
    assert store.formats_first("call", layouts) == layouts
    store.write("call", captured.graph, StoredPlan(kept.plan, MemoryFormat.CHANNELS_LAST, 1.0))
    assert store.formats_first("call", layouts) == layouts[::-1]
    assert store.formats_first("another", layouts) == layouts
    for path in tmp_path.glob("*.layout"):
        path.write_bytes(b"\xff\xfe")
    assert store.formats_first("call", layouts) == layouts, "a damaged file is as good as none"


def test_plans_that_were_not_used_for_longest_are_deleted_where_there_are_too_many(
    tmp_path: Path, captured: Captured, machine: Machine, kept: StoredPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("threadcast.runtime.plans.plan_store.MOST_FILES", 20)
    (tmp_path / "mine.json").write_text("{}")
    store = PlanStore(tmp_path, machine)
    graphs = [capture_forward(lambda x, n=n: x * n, torch.ones(8)).graph for n in range(30)]
    for age, graph in enumerate(graphs):
        store.write(age, graph, kept)
        for path in tmp_path.iterdir():  # all are older than what is written or read next
            os.utime(path, times=(path.stat().st_mtime - 100,) * 2)
        assert store.read(graphs[0]) is not None
        assert len(list(tmp_path.iterdir())) <= 21
    assert store.read(graphs[-1]) is not None
    assert store.read(graphs[1]) is None
    assert (tmp_path / "mine.json").exists()


@pytest.mark.parametrize("content", ["", "{", "[]", '{"layout": "odd", "step_s": 1, "plan": {}}', '{"layout": 3}'])
def test_a_damaged_file_is_as_good_as_none(
    content: str,
    tmp_path: Path,
    captured: Captured,
    machine: Machine,
    kept: StoredPlan,
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = PlanStore(tmp_path, machine)
    store.write("call", captured.graph, kept)
    for path in tmp_path.glob("*.json"):
        path.write_text(content)
    assert store.read(captured.graph) is None
    assert "made anew" in caplog.text


def test_a_folder_that_cannot_be_written_stops_nobody(
    captured: Captured, machine: Machine, kept: StoredPlan, caplog: pytest.LogCaptureFixture
) -> None:
    PlanStore(Path("/dev/null/plans"), machine).write("call", captured.graph, kept)
    assert "not stored" in caplog.text


def waves(x: Tensor) -> Tensor:
    return (x * 2).sin() + (x + 1).cos()


def keep_a_plan(x: Tensor, machine: Machine, *, step_s: float, curves: bool = False) -> Plan:
    """Keep a plan of `waves`, as if an earlier process had proven it."""
    with closing(threadcast.optimize(waves)) as call:
        call(x)
        (tuned,) = call._optimized._table.tunings
        captured = tuned.captured
        plan = make_random_plan(captured.graph, tuple(core.id for core in machine.cores), seed=2)
        problem = Problem(captured.graph, made_up_curves(captured.graph, machine), machine) if curves else None
        variant_plan = VariantPlan(Variant(MemoryFormat.AS_GIVEN), captured, plan, captured.graph, problem)
        tuned._stored.write(variant_plan, step_s)
        tuned._stored.note_tried(captured, frozenset({"fused", "backends"}))
    return plan


def test_a_kept_plan_runs_from_the_first_call_on(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.ones(8)
    plan = keep_a_plan(x, machine, step_s=1.0)
    monkeypatch.setenv("THREADCAST_ENGINE_LEAST_STEP_US", "1000000")  # others are timed first
    with closing(threadcast.optimize(waves)) as call:
        assert torch.equal(call(x), waves(x))
        assert (call.reports[0].runs, call.reports[0].plan) == ("plan", plan)


def test_a_kept_plan_that_memory_is_too_small_to_compare_is_left_for_later_processes(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.ones(8)
    plan = keep_a_plan(x, machine, step_s=1.0)
    with monkeypatch.context() as small, closing(threadcast.optimize(waves)) as call:
        small.setattr(shadow, "free_bytes", lambda: 10)
        for _ in range(2):
            assert torch.equal(call(x), waves(x))
        assert call.reports[0].runs != "plan"
        assert "cannot be compared" in call.reports[0].reason
    with closing(threadcast.optimize(waves)) as call:
        assert torch.equal(call(x), waves(x))
        assert (call.reports[0].runs, call.reports[0].plan) == ("plan", plan)


def test_a_kept_plan_that_has_become_slow_is_compared_again(machine: Machine) -> None:
    x = torch.ones(8)
    keep_a_plan(x, machine, step_s=1e-9)
    with closing(threadcast.optimize(waves)) as call:
        for _ in range(MOST_EAGER + LOOK + 2):
            assert torch.equal(call(x), waves(x))
        (tuned,) = call._optimized._table.tunings
        assert tuned.tournament.challenger == DEFAULT


@pytest.mark.parametrize(("stored", "other"), [tuple(MemoryFormat), tuple(MemoryFormat)[::-1]])
@pytest.mark.parametrize("tried", [(), ("formats",)])
def test_memory_formats_that_an_earlier_process_did_not_come_to_are_tried(
    stored: MemoryFormat, other: MemoryFormat, tried: tuple[Extra, ...], machine: Machine, tmp_path: Path
) -> None:
    images = torch.ones(2, 3, 8, 8)

    def convolved(x: Tensor) -> Tensor:
        return torch.nn.functional.conv2d(x, torch.ones(4, 3, 3, 3)).relu()

    captured, store = capture_forward(convolved, images), PlanStore(tmp_path, machine)
    plan = make_random_plan(captured.graph, tuple(core.id for core in machine.cores), seed=2)
    store.write("a call", captured.graph, StoredPlan(plan, stored, 1.0))
    store.note_tried(captured.graph, frozenset(tried), planned=True)
    formats = MemoryFormat.AS_GIVEN, MemoryFormat.CHANNELS_LAST
    with closing(
        Tuning(convolved, lambda _: captured, ModelFormat(None), formats, machine, call="a call", plans=store)
    ) as tuned:
        tuned(images)
        assert tuned.report.plan == plan
        waits = tuned.tournament.waits
        assert waits(plan_of(Variant(other))) == (not tried)
        assert waits(eager_in(MemoryFormat.CHANNELS_LAST)) == (stored is MemoryFormat.CHANNELS_LAST and not tried)


@pytest.mark.parametrize("damaged", ["nonsense", "", {}, base64.b85encode(zlib.compress(b"[]")).decode()])
def test_plans_for_fewer_cores_come_back_but_for_those_that_are_damaged(
    damaged: object, tmp_path: Path, captured: Captured, machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    whole, three, two = (make_random_plan(captured.graph, tuple(range(n)), seed=n) for n in (4, 3, 2))
    store = PlanStore(tmp_path, machine)
    store.write("call", captured.graph, StoredPlan(whole, MemoryFormat.AS_GIVEN, 1.0, fewer={3: three, 2: two}))
    found = store.read(captured.graph)
    assert found is not None
    assert dict(found.fewer) == {3: three, 2: two}
    (path,) = tmp_path.glob("*.json")
    document = json.loads(path.read_text())
    document["fewer"]["3"] = damaged
    path.write_text(json.dumps(document))
    found = store.read(captured.graph)
    assert found is not None
    assert sorted(found.fewer) == [2, 3]
    assert found.fewer.get(3) is None
    assert "3 cores is of no use" in caplog.text
    assert dict(found.fewer) == {2: two}


def test_a_plan_for_fewer_cores_takes_a_fifth_of_its_own_room_at_most_and_bounds_what_it_unpacks_to(
    tmp_path: Path, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = capture_forward(lambda x: [x := x * 1.5 for _ in range(500)][-1], torch.ones(8)).graph
    one, other = (make_random_plan(long, tuple(range(n)), seed=n) for n in (4, 3))
    store = PlanStore(tmp_path, machine)
    store.write("call", long, StoredPlan(one, MemoryFormat.AS_GIVEN, 1.0, fewer={3: other}))
    (path,) = tmp_path.glob("*.json")
    assert len(json.loads(path.read_text())["fewer"]["3"]) < len(json.dumps(other.to_json())) / 5
    monkeypatch.setattr("threadcast.runtime.plans.plan_store._MOST_BYTES", 1_000)
    found = store.read(long)
    assert found is not None
    assert found.fewer.get(3) is None


@pytest.mark.skipif(len(read_machine()) < 2, reason="one core has no fewer")
def test_plans_for_fewer_cores_that_a_process_ended_before_are_made_by_the_next(machine: Machine) -> None:
    x = torch.ones(8)
    keep_a_plan(x, machine, step_s=1.0, curves=True)
    with closing(threadcast.optimize(waves)) as call:
        call(x)
        (tuned,) = call._optimized._table.tunings
        plans, graph = tuned._stored._plans, tuned.captured.graph
        assert eventually(lambda: (stored := plans.read(graph)) is None or stored.fewer)
        found = plans.read(graph)
        assert found is not None
        assert sorted(found.fewer) == sorted(counts_below(len(read_machine())))
        assert found.curves is None, "nothing is left to be made"


def test_what_runs_a_program_is_noted_and_that_nothing_is_faster_is_believed_by_most_processes(tmp_path: Path) -> None:
    store, found = PlanStore(tmp_path, read_machine()), FasterGraphs(0.25, 0.5)
    store.note_program("a program", found)
    assert (store.program("a program"), store.program("another")) == (found, None)
    assert not store.is_program_left("a program")
    for _ in range(2):
        store.note_program("a program", None)
        assert store.program("a program") is None
        left = [store.is_program_left("a program") for _ in range(BELIEVED + 1)]
        assert left == [True] * (BELIEVED - 1) + [False] * 2


def test_a_backend_that_was_the_fastest_is_expected_to_gain_as_much_again(tmp_path: Path) -> None:
    graph, machine = capture_forward(lambda x: x.sin(), torch.ones(8)).graph, read_machine()
    store = PlanStore(tmp_path / "plans", machine, among="openvino 2026")
    before = store.backends(graph)
    store.note_backend(graph, 3.5, 0.01)
    noted = PlanStore(tmp_path / "plans", machine, among="openvino 2026").backends(graph)
    assert (noted.gain, noted.most, noted.step_s) == (3.5, 3.5, 0.01)
    others = store.backends(graph, {"openvino": 1e-3})
    assert (others.step_s, others.most < 1e3) == (None, True), "faster than any other"
    assert store.backends(graph, {"openvino": 0.5, "torch.compile": 0.5}).most == 0
    assert noted.cost_s < before.cost_s
    assert PlanStore(tmp_path / "plans", machine, among="openvino 2027").backends(graph) == before
    store.drop(graph)
    assert store.backends(graph) == before


def test_a_plan_that_loses_takes_no_note_of_a_backend_with_it(
    tmp_path: Path, captured: Captured, machine: Machine, kept: StoredPlan
) -> None:
    store = PlanStore(tmp_path, machine)
    plans = CallPlans(store, machine, call="a call")
    lost = VariantPlan(Variant(MemoryFormat.AS_GIVEN), captured, kept.plan, captured.graph)
    plans.write(lost, None)
    plans.note_backend(captured, 3.5, 0.01)
    assert store.read(captured.graph) is not None
    plans.lost(lost)
    assert store.read(captured.graph) is None
    assert (store.backends(captured.graph).gain, store.backends(captured.graph).step_s) == (3.5, 0.01)
