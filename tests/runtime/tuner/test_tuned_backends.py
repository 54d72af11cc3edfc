"""Backends that a search finds beside the caller's steps: which of them run, are left and stored, when it works."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.runtime.compiler import needs_compiler
from tests.runtime.tuner.small_tuning import Clock, Found, function, made, run, run_until
from tests.waiting import attempts
from threadcast.capture.graph.capture import capture_forward
from threadcast.capture.graph.captured import Captured
from threadcast.core import Machine
from threadcast.runtime.operators import products
from threadcast.runtime.plans.backend_history import Forecast
from threadcast.runtime.plans.model_format import ModelFormat
from threadcast.runtime.plans.plan_store import BELIEVED, Extra, PlanStore
from threadcast.runtime.plans.variant import MemoryFormat
from threadcast.runtime.tuner import events as to
from threadcast.runtime.tuner import planning, tuning
from threadcast.runtime.tuner.candidate import DEFAULT, Kind, Way, backend
from threadcast.runtime.tuner.looks import Look
from threadcast.runtime.tuner.standings import LOOK
from threadcast.runtime.tuner.tournament import Tournament
from threadcast.runtime.tuner.tuning import Tuning
from threadcast.threads.affinity import thread_ids

pytestmark = pytest.mark.usefixtures("planned_at_once")


def stored_tried(tuning: Tuning, machine: Machine, folder: Path) -> frozenset[Extra]:
    """What a later process finds to have been tried beside the plan that is stored."""
    assert PlanStore(folder, machine).read(tuning.captured.graph) is not None
    return PlanStore(folder, machine).tried(tuning.captured.graph, planned=True)


def test_a_backend_is_left_when_it_no_longer_does_what_the_default_does(machine: Machine, tmp_path: Path) -> None:
    clock, unchanged = Clock(), True

    def fast(x: torch.Tensor) -> torch.Tensor:
        clock.now_s -= clock.other_s / 2
        return function(x)

    way = Way(backend("fast"), fast, lambda: unchanged)
    with made(clock, machine, tmp_path, backend=way) as tuned:
        run_until(tuned, lambda: not tuned.learning)
        assert tuned.report.runs == "fast"
        unchanged = False
        run(tuned, 1)
        assert tuned.report.measuring
        run_until(tuned, lambda: not tuned.learning)
        assert tuned.report.runs == "plan"
        run(tuned, 2 * LOOK)
        assert "backends" not in stored_tried(tuned, machine, tmp_path), "weights of later processes may stay"


def is_engines(thread: int) -> bool:
    return Path(f"/proc/self/task/{thread}/comm").read_text().startswith("tc-cpu")


@needs_compiler
@pytest.mark.parametrize("own_threads", [True, False])
def test_operators_between_calls_by_a_backend_start_no_workers(
    machine: Machine, tmp_path: Path, own_threads: bool
) -> None:
    """They would spin beside the backend's own threads, or share a core with the caller."""
    clock, x = Clock(), torch.randn(1 << 20)
    before = torch.get_num_threads()

    def fast(x: torch.Tensor) -> torch.Tensor:
        clock.now_s -= clock.other_s / 2
        return function(x)

    torch.set_num_threads(len(machine))
    try:
        with made(clock, machine, tmp_path, backend=Way(backend("fast"), fast, own_threads=own_threads)) as tuned:
            run_until(tuned, lambda: tuned.report.runs == "fast" and tuned.settled)
            run(tuned, 1)
            threads = set(thread_ids())
            x.sin()
            assert all(is_engines(made) for made in set(thread_ids()) - threads)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("backend_s", [0.1, 1.0, 2.0])
@pytest.mark.parametrize("plan_s", [0.5, 2.0])
def test_a_later_process_learns_nothing_again(
    machine: Machine, tmp_path: Path, plan_s: float, backend_s: float
) -> None:
    """Whatever has won: PyTorch takes 1 s. Each tenth process looks again."""
    runs, began, by_pytorch = [], [], list[int]()

    def of(seconds: float) -> Callable[[torch.Tensor], torch.Tensor]:
        def call(x: torch.Tensor) -> torch.Tensor:
            clock.now_s += seconds
            return function(x)

        return call

    for _ in range(BELIEVED + 1):
        clock = Clock(1e-6)
        with made(clock, machine, tmp_path, backend=Way(backend("found"), of(backend_s))) as tuned:
            tuned.budget.share = 0.9
            run_of = tuned._run_of

            def timed(runner: Any, run_of: Callable[[Any], Any] = run_of, clock: Clock = clock) -> Any:
                is_plan = isinstance(runner, Look) or runner.kind is Kind.PLAN
                by_pytorch[-1] += runner == DEFAULT

                def call(*arguments: Any) -> Any:
                    result, _ = run_of(runner)(*arguments)
                    clock.now_s += plan_s if is_plan else 0.0
                    return result, None

                return call

            by_pytorch.append(0)
            tuned._run_of = timed  # type: ignore[method-assign]
            run(tuned, 400)
            assert not tuned.learning
            runs.append(tuned.report.runs)
            began.append({str(one).split(",")[0] for one in tuned.tournament.standings} - {"default"})
    fastest = min({"plan": plan_s, "default": 1.0, "found": backend_s}.items(), key=lambda one: one[1])[0]
    assert runs == [fastest] * len(runs)
    assert began[0] == began[BELIEVED] == {"plan", "backends", "found"}
    assert fastest == "default" or max(by_pytorch[1:BELIEVED]) < 5, "it runs from the first calls on"
    if fastest == "found":  # a plan that had won before runs until it is opened
        began = [one - {"plan"} for one in began]
    again: set[str] = {"default": set(), "plan": {"plan"}, "found": {"backends", "found"}}[fastest]
    assert began[1:BELIEVED] == [again] * (BELIEVED - 1)


def test_backends_that_an_error_ended_are_tried_by_later_processes(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(search: Found, *, unlimited: bool = False) -> Way | None:
        raise OSError("no space left on device")

    monkeypatch.setattr(Found, "poll", fails)
    clock = Clock()
    with made(clock, machine, tmp_path, backend=Way(backend("slow"), clock.default)) as tuned:
        run_until(tuned, lambda: not tuned.learning)
        run(tuned, 2 * LOOK)
        assert tuned.report.runs == "plan"
        assert "backends" not in stored_tried(tuned, machine, tmp_path)


def test_a_backend_that_is_slower_alone_than_in_its_comparison_makes_way_for_the_plan(
    machine: Machine, tmp_path: Path
) -> None:
    clock = Clock(0.05)

    def misleading(x: torch.Tensor) -> torch.Tensor:
        first = tuned.tournament.comparison is not None and "misleading" not in tuned.report.verdicts
        clock.now_s += -clock.other_s / 2 if first else 3 * clock.default_s
        return function(x)

    with made(clock, machine, tmp_path, backend=Way(backend("misleading"), misleading), looks=100) as tuned:
        tuned.budget.share = 0.9  # the search is not waited for
        run_until(tuned, lambda: tuned.report.runs == "misleading")
        assert tuned.learning
        run_until(tuned, lambda: not tuned.learning)
        assert (tuned.report.runs, tuned.fastest.name) == ("plan", "plan, as given")
        assert tuned.report.verdicts["plan, as given"].over == "misleading"
        opened = [str(key) for key, one in tuned._candidates.items() if one.way is not None]
        assert opened == ["default", "eager, channels last", "plan, as given"]
        run(tuned, 3 * LOOK)
        assert tuned.report.runs == "plan"
        assert list(tmp_path.glob("*.json")), "stored for the next process"


def test_what_backends_may_gain_beyond_the_best_is_left(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with made(Clock(), machine, tmp_path, backend=Way(backend("slow"), function), looks=10_000) as tuned:
        run_until(tuned, lambda: tuned._backends.works and tuned.eager_s is not None)
        monkeypatch.setattr(Tournament, "gain_now", 3.0)
        tuned._of_backends = Forecast(2.0, 2.01, 1.0)
        assert tuned._backends_left == pytest.approx(1.0)
        tuned._of_backends = Forecast(2.0, 800.0, 1.0)
        assert tuned.gain_left == tuned._backends_left > 1000


def test_a_search_for_backends_is_waited_for_once_nothing_else_is_learned(machine: Machine, tmp_path: Path) -> None:
    with made(Clock(), machine, tmp_path, backend=Way(backend("slow"), function), looks=10_000) as tuned:
        tuned.wait(1.0)
        run_until(tuned, lambda: tuned._backends.works and tuned.eager_s is not None)
        search = tuned._backends._search
        assert isinstance(search, Found)
        assert search.waits == 0
        tuned.wait(1.0)
        assert search.waits == 1


def test_a_search_for_backends_works_beside_calls_that_follow_one_another(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning, "LITTLE", 1.0)  # this clock goes on by a third of a call whenever it is read
    clock = Clock(0.05)
    with made(clock, machine, tmp_path, backend=Way(backend("slow"), function), looks=2_000) as tuned:
        tuned.budget.share = 0.9  # it is not waited for
        run_until(tuned, lambda: tuned._backends.works and tuned.tournament.settled)
        search = tuned._backends._search
        assert isinstance(search, Found)
        run(tuned, tuning.IN_A_ROW + 1)
        before = search.waits
        run(tuned, 5)
        assert (search.rests, search.waits) == (False, before)
        run(tuned, 2 * tuning.IN_A_ROW)
        clock.now_s += 1.0  # the caller prints a line, say
        run(tuned, 1)
        assert (search.rests, search.waits) == (False, before)
        clock.now_s += 1.0
        run(tuned, 1)
        clock.now_s += 1.0  # the caller does something else
        run(tuned, 5)
        assert search.rests
        assert search.waits > before
        run(tuned, tuning.IN_A_ROW)
        assert not search.rests
        tuned.budget.charge(tuned.budget.left_s)
        run(tuned, 1)
        assert search.rests
        tuned.budget.charge(tuned.budget.left_s - 0.5 * tuning.BURST_S)
        before = search.waits
        run(tuned, 1)
        assert (search.rests, search.waits) == (True, before), "it works for some time, or not at all"
        tuned.budget.charge(-tuning.BURST_S)
        run(tuned, 2)
        assert not search.rests


@pytest.mark.parametrize("default_s", [0.0, 1.0])
def test_calls_leave_a_core_to_a_search_that_works_beside_them(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, default_s: float
) -> None:
    monkeypatch.setattr(tuning, "LITTLE", 2.0)
    clock, threads, before = Clock(0.05), list[int](), torch.get_num_threads()
    clock.default_s = default_s

    def default(x: torch.Tensor) -> torch.Tensor:
        threads.append(torch.get_num_threads())
        return clock.default(x)

    def cores_of_a_call() -> int:
        run(tuned, 1)
        if tuned.ran is None:
            return threads[-1]
        return len({core for op in tuned.ran.plan.ops for core in op.cores})

    found = Way(backend("slow"), function)
    torch.set_num_threads(len(machine))
    try:
        with made(clock, machine, tmp_path, backend=found, looks=2_000, default=default) as tuned:
            tuned.budget.share = 0.9  # it is not waited for
            tuned.budget.charge(-1e6)
            run_until(tuned, lambda: tuned._backends.works and tuned.tournament.settled)
            search, fewer = tuned._backends._search, max(1, len(machine) - 1)
            assert isinstance(search, Found)
            run_until(tuned, lambda: tuned._spares)
            assert (tuned.report.runs, cores_of_a_call()) == ("plan" if default_s else "default", fewer)
            search.has_turn = False  # another process's search is at work
            assert cores_of_a_call() == len(machine)
            search.has_turn = True
            assert cores_of_a_call() == fewer
            tuned.budget.charge(tuned.budget.left_s)
            run(tuned, 1)
            assert (search.rests, tuned.leaves_alone(math.inf)) == (True, default_s == 0.0)
            clock.now_s += 10.0  # calls that are left alone
            tuned.budget.charge(-1e6)
            run(tuned, 1)
            assert (search.rests, tuned.leaves_alone(math.inf)) == (False, False)
            clock.now_s += 10.0  # the caller does something else
            run(tuned, 1)
            clock.now_s += 10.0
            assert (cores_of_a_call(), search.rests) == (len(machine), True)
            run_until(tuned, lambda: tuned._spares)
            tuned._give_up("a plan raised")
            assert cores_of_a_call() == len(machine)
    finally:
        torch.set_num_threads(before)


def test_a_search_for_backends_works_between_calls_that_are_not_compared(machine: Machine, tmp_path: Path) -> None:
    with made(Clock(0.05), machine, tmp_path, backend=Way(backend("slow"), function)) as tuned:
        tuned.budget.share = 0.9  # it is not waited for
        run_until(tuned, lambda: tuned._backends.works)
        search = tuned._backends._search
        assert isinstance(search, Found)
        search._left += [None] * 400  # goes on after that
        run_until(tuned, lambda: tuned.tournament.comparison is not None)
        before = search.waits
        run(tuned, 1)
        assert (search.rests, search.waits) == (True, before)
        run_until(tuned, lambda: tuned.tournament.settled)
        for _ in range(10):
            before, alone = search.waits, tuned._backends.beside
            run(tuned, 1)
            assert search.rests, "nothing computes beside a call"
            assert tuned._backends.beside == (search.waits > before), "caches are cold after a turn"
            assert not (alone and tuned._backends.beside), "a call without a turn comes before the next one"
        assert search.waits


@pytest.mark.parametrize("reason", ["budget", "comparison of whole calls", "what promises more", "plan"])
def test_a_search_for_backends_takes_no_seconds_that_calls_or_others_need(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    with made(Clock(0.05), machine, tmp_path, backend=Way(backend("slow"), function), looks=2_000) as tuned:
        tuned.budget.share = 0.9  # it is not waited for
        run_until(tuned, lambda: tuned._backends.works)
        search, budget = tuned._backends._search, tuned.budget
        assert isinstance(search, Found)
        run_until(tuned, lambda: tuned.settled)
        with monkeypatch.context() as patch:
            if reason == "budget":
                patch.setattr(budget, "share", 0.05)
                budget.charge(budget.left_s + 10.0)
            elif reason == "comparison of whole calls":
                budget.rests = True
            elif reason == "plan":
                patch.setattr(planning.Planner, "works", True)
                budget.share = 1.0
                run(tuned, 1)
                assert search.rests, "also where the caller waits"
                budget.share = 0.9
            else:
                tuned.tournament.handle(to.Offered("better", gain=10.0, most=20.0, cost_s=1e3))
            before = search.waits
            run(tuned, 9)
            assert search.waits == before
        budget.rests = False
        if reason == "budget":
            budget.charge(-10.0)
        else:
            tuned.tournament.standings.pop("better", None)
        run(tuned, 9)
        assert search.waits > before


def test_a_search_takes_fewer_seconds_while_that_of_another_process_works(machine: Machine, tmp_path: Path) -> None:
    with made(Clock(0.001), machine, tmp_path, backend=Way(backend("slow"), function), looks=5_000) as tuned:
        tuned.budget.share = 0.9  # it is not waited for
        run_until(tuned, lambda: tuned._backends.works and tuned.settled)
        search, waited_s = tuned._backends._search, list[float]()
        assert isinstance(search, Found)
        for search.has_turn in (True, False):
            run(tuned, 200)  # the pace of the turn before is over
            search.waited_s = 0.0
            run(tuned, 400)
            waited_s.append(search.waited_s)
        assert waited_s[0] > 16 * waited_s[1] > 0


@needs_compiler
def test_backends_are_given_the_graph_of_pytorchs_operators(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(products, "serves", lambda: True)
    x, given = torch.randn(96, 96, generator=torch.Generator().manual_seed(0)), list[Captured]()

    def product(x: torch.Tensor) -> torch.Tensor:
        return x @ x

    def search(captured: Captured, *_: object) -> Found:
        given.append(captured)
        return Found(Way(backend("slow"), product))

    tuning = Tuning(
        product, lambda _: capture_forward(product, x), ModelFormat(None), [MemoryFormat.AS_GIVEN], machine,
        call="a product", plans=PlanStore(tmp_path, machine), backends=search,
    )  # fmt: skip
    with closing(tuning):
        for _ in attempts():
            torch.testing.assert_close(tuning(x), x @ x, rtol=1e-4, atol=1e-4)
            if given:
                break
    (captured,) = given
    assert [node.target for node in captured.program.nodes] == [torch.ops.aten.mm.default]
