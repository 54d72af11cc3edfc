"""Campaigns: what is measured, in which order, what is kept; decisions on scripted times, resumption for real."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from threadcast.collector.busy import CpuTimes, LoadWatch
from threadcast.collector.campaign import IN_VAIN, Campaign
from threadcast.collector.campaign_report import CampaignProgress
from threadcast.collector.lone import LoneOps
from threadcast.collector.proposers import EvenlySpread, EveryCase
from threadcast.collector.timing import Goal
from threadcast.core import Case, Machine, Measurement, Op, OpGraph, Sample, TensorSpec
from threadcast.core.errors import CaptureError, InvalidInput, MeasurementError
from threadcast.core.topology import read_machine
from threadcast.store import Store
from threadcast.threads.memory import memory_regime

FOUR = Machine.uniform("four", 4)


def op(side: int) -> Op:
    square = TensorSpec((side, side))
    attributes = {"target": "aten.mm.default", "args": [{"t": 0}, {"t": 1}], "kwargs": {}}
    return Op("mm", (square, square), attributes, (square,))


def graph_of(*sides: int) -> OpGraph:
    return OpGraph(tuple(f"op{i}" for i in range(len(sides))), tuple(map(op, sides)))


@dataclass
class Scripted:
    """A measurer on made-up times, with a clock that they move."""

    machine: Machine = FOUR
    seconds: Callable[[Op, Case], float] = lambda op, case: op.inputs[0].shape[0] / case.threads
    conditions: dict[str, object] = field(default_factory=lambda: {"cache": "warm"})
    teams: list[Case] = field(default_factory=list)
    log: list[tuple[int, Case, float]] = field(default_factory=list)
    now_s: float = 0.0

    @contextmanager
    def at(self, case: Case) -> Iterator[Callable[[Op, Goal], Measurement]]:
        self.teams.append(case)

        def measure(op: Op, goal: Goal) -> Measurement:
            self.log.append((op.inputs[0].shape[0], case, goal.budget_s))
            seconds = self.seconds(op, case)
            self.now_s += goal.budget_s
            return Measurement(op, self.machine, case, (Sample(seconds),), {**self.conditions, "converged": True})

        yield measure


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "store.db") as opened:
        yield opened


def campaign(measurer: Scripted, proposer: object, store: Store, **more: object) -> Campaign:
    more = {"clock": lambda: measurer.now_s, **more}
    return Campaign(measurer, proposer, store, **more)  # type: ignore[arg-type]


def stored(store: Store) -> Counter[tuple[str, Case]]:
    return Counter((found.op.key, found.case) for found in store.measurements())


def test_each_distinct_op_is_measured_once_in_every_case(store):
    bench = Scripted()
    report = campaign(bench, EveryCase(), store).run(graph_of(8, 16, 8, 8))
    assert report.measured == 2 * 4
    assert bench.teams == sorted(FOUR.cases()), "a team is made once a case"
    assert stored(store) == Counter({(op(s).key, case): 1 for s in (8, 16) for case in FOUR.cases()})
    assert {key: len(found) for key, found in report.observed.items()} == {op(8).key: 4, op(16).key: 4}


class Climb:
    """Doubles threads while that helps, and starts large ops with two: asks ops for different cases in a round."""

    def propose(self, op: Op, observed: Sequence[Measurement], machine: Machine) -> Case | None:
        if not observed:
            return Case(1 if op.inputs[0].shape[0] < 32 else 2)
        if len(observed) > 1 and observed[-1].seconds > observed[-2].seconds:
            return None
        threads = observed[-1].case.threads * 2
        return Case(threads) if threads <= len(machine) else None


def test_a_model_that_adapts_is_followed_op_by_op(store):
    bench = Scripted(seconds=lambda op, case: abs(case.threads - op.inputs[0].shape[0] / 16))
    report = campaign(bench, Climb(), store).run(graph_of(16, 32))
    measured = {key: [found.case.threads for found in found_of] for key, found_of in report.observed.items()}
    assert measured == {op(16).key: [1, 2], op(32).key: [2, 4]}
    assert bench.teams == [Case(1), Case(2), Case(2), Case(4)]


def test_a_case_asked_for_twice_is_an_error_and_no_endless_loop(store):
    class Stubborn:
        def propose(self, op: Op, observed: Sequence[Measurement], machine: Machine) -> Case:
            return Case(1)

    with pytest.raises(MeasurementError, match=r"Stubborn asked for 1 compact of mm-\w+ again"):
        campaign(Scripted(), Stubborn(), store).run(graph_of(8))
    assert len(stored(store)) == 1


def test_what_the_store_has_is_reused(store):
    campaign(Scripted(), EvenlySpread(2), store).run(graph_of(8, 16))
    bench = Scripted()
    report = campaign(bench, EveryCase(), store).run(graph_of(8, 16, 32))
    assert report.reused == 4
    assert report.measured == 3 * 4 - 4
    assert max(stored(store).values()) == 1
    assert all(len(found) == 4 for found in report.observed.values())
    again = Scripted()
    report = campaign(again, EveryCase(), store, watch=watch_of(again, lambda at_s: 1.0)).run(graph_of(8, 16, 32))
    assert (report.measured, report.reused, again.log) == (0, 12, [])


def test_measurements_of_another_machine_or_other_conditions_are_not_reused(store):
    campaign(Scripted(), EveryCase(), store).run(graph_of(8))
    cold = campaign(Scripted(conditions={"cache": "cold"}), EveryCase(), store).run(graph_of(8))
    other = campaign(Scripted(machine=Machine.uniform("other", 4)), EveryCase(), store).run(graph_of(8))
    assert (cold.measured, other.measured) == (4, 4)


def test_an_op_that_fails_is_reported_and_the_others_are_measured(store):
    def seconds(op: Op, case: Case) -> float:
        if op.inputs[0].shape[0] == 16 and case.threads == 2:
            raise RuntimeError("could not create a primitive")
        return 1.0

    told: list[CampaignProgress] = []
    bench = Scripted(seconds=seconds)
    report = campaign(bench, EveryCase(), store, on_progress=told.append).run(graph_of(8, 16, 32))
    assert report.failed == {op(16).key: "at 2 compact: RuntimeError: could not create a primitive"}
    assert {key: len(found) for key, found in report.observed.items()} == {op(8).key: 4, op(16).key: 1, op(32).key: 4}
    assert (told[-1].done, told[-1].total) == (10, 10)


def test_progress_counts_up_to_the_total(store):
    told: list[CampaignProgress] = []
    campaign(Scripted(), EvenlySpread(1), store).run(graph_of(8))
    campaign(Scripted(), EveryCase(), store, on_progress=told.append).run(graph_of(8, 16))
    assert [progress.done for progress in told] == list(range(2, 9))
    assert {(progress.total, progress.reused) for progress in told} == {(8, 1)}


def test_the_budget_goes_where_the_steps_time_is(store):
    bench = Scripted()
    campaign(bench, EvenlySpread(1), store, mean_s=0.1).run(graph_of(512, 8, 8, 8, 16))
    budgets = {side: budget_s for side, _, budget_s in bench.log}
    assert budgets[512] > 2 * budgets[16]
    assert sum(budgets.values()) == pytest.approx(3 * 0.1)


def watch_of(bench: Scripted, busy: Callable[[float], float]) -> LoadWatch:
    """A watch of a machine of which others use the share that `busy` says at each second, on the measurer's clock."""
    used, seen_s = 0.0, bench.now_s

    def read() -> CpuTimes:
        nonlocal used, seen_s
        used, seen_s = used + (bench.now_s - seen_s) * busy(seen_s), bench.now_s
        return CpuTimes(dict.fromkeys(range(4), (round(used * 1000), 0, round(seen_s * 1000))), 0.0, seen_s)

    def sleep(seconds: float) -> None:
        bench.now_s += seconds

    return LoadWatch(read, sleep=sleep)


def test_a_busy_machine_is_measured_after_a_wait_and_called_disturbed(store):
    bench, said = Scripted(), []
    report = campaign(
        bench, EveryCase(), store, mean_s=0.6, watch=watch_of(bench, lambda at_s: 0.4), say=said.append
    ).run(graph_of(8))
    assert (len(said), bench.now_s >= 30.0) == (1, True)
    assert report.load is not None
    assert report.load.share == pytest.approx(0.4, abs=0.01)
    assert (report.disturbed, report.repeated, report.measured) == (4, 4, 4)
    assert all(m.disturbed for m in store.measurements())


def test_what_others_disturbed_for_a_while_is_measured_again(store):
    bench = Scripted()
    watch = watch_of(bench, lambda at_s: 0.5 if 2.0 <= at_s < 4.0 else 0.0)
    report = campaign(bench, EveryCase(), store, mean_s=1.0, watch=watch).run(graph_of(8, 16))
    assert report.repeated > 0
    assert report.disturbed == 0
    for known in report.observed.values():
        assert {m.case for m in known if not m.disturbed} == set(FOUR.cases())


def test_repetitions_end_when_they_are_disturbed_again_and_again_and_a_later_campaign_goes_on(store):
    busy, graph = Scripted(), graph_of(8, 16, 32, 64)
    report = campaign(busy, EveryCase(), store, mean_s=1.0, watch=watch_of(busy, lambda at_s: 0.5)).run(graph)
    assert (report.repeated, report.disturbed) == (IN_VAIN, 16)
    quiet = Scripted()
    report = campaign(quiet, EveryCase(), store, mean_s=1.0, watch=watch_of(quiet, lambda at_s: 0.0)).run(graph)
    assert (report.repeated, report.disturbed) == (16, 0)


def test_an_interruption_keeps_what_was_measured(store):
    def interrupt(progress: CampaignProgress) -> None:
        if progress.done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        campaign(Scripted(), EveryCase(), store, on_progress=interrupt).run(graph_of(8, 16))
    assert len(stored(store)) == 3


# From here on ops are really run.

PAIR = read_machine(cores=min(2, len(read_machine())))


def test_a_real_op_is_measured_with_samples_counters_and_conditions(store):
    lone, before = LoneOps(PAIR), threading.active_count()
    report = Campaign(lone, EveryCase(), store, mean_s=0.02).run(graph_of(32))
    assert report.failed == {}
    for found in store.measurements():
        assert found.case in PAIR.cases()
        assert found.seconds > 0
        assert found.conditions["cache"] == "rotated"
        assert found.conditions["converged"] in (True, False)
        assert (found.counter("task_clock_ns") or 0) > 0
        assert found.counter("cycles") is not None or "cycles" in str(found.conditions["unread_counters"])
    assert threading.active_count() == before


def test_an_op_that_cannot_be_made_fails_alone(store):
    nameless = Op("mystery", (TensorSpec((2,)),))
    graph = OpGraph(("a", "b"), (nameless, op(8)))
    report = Campaign(LoneOps(PAIR), EvenlySpread(1), store, mean_s=0.01).run(graph)
    assert CaptureError.__name__ in report.failed[nameless.key]
    assert len(report.observed[op(8).key]) == 1


def test_a_case_that_the_machine_has_not_is_refused():
    with pytest.raises(InvalidInput, match="threads=999"), LoneOps(PAIR).at(Case(999)):
        pass


def test_ctrl_c_during_a_long_timing_ends_it_and_its_threads(store):
    Campaign(LoneOps(PAIR), EvenlySpread(1), store, mean_s=0.01).run(graph_of(8))
    hours = Campaign(LoneOps(PAIR), EvenlySpread(1), store, mean_s=3600, tolerance=1e-12)
    main, before = threading.get_ident(), threading.active_count()

    def interrupt_when_timing() -> None:
        # enumerate() has threads that are only being started too; an interrupt there hits Python's own start().
        while not any(t.name.startswith("threadcast-team") and t.is_alive() for t in threading.enumerate()):
            pass
        signal.pthread_kill(main, signal.SIGINT)

    waiter = threading.Thread(target=interrupt_when_timing)
    waiter.start()
    with pytest.raises(KeyboardInterrupt):
        hours.run(graph_of(8, 64))
    waiter.join()
    assert len(stored(store)) == 1
    assert threading.active_count() == before, threading.enumerate()


CAMPAIGN = """
import sys
from test_campaign import PAIR, graph_of
from threadcast.collector.campaign import Campaign
from threadcast.collector.lone import LoneOps
from threadcast.threads.memory import keep_freed_memory
from threadcast.collector.proposers import EveryCase
from threadcast.store import Store

if sys.argv[2] == "kept":
    keep_freed_memory()
store = Store.open(sys.argv[1])
campaign = Campaign(
    LoneOps(PAIR), EveryCase(), store, mean_s=0.01,
    on_progress=lambda progress: print(progress.done, flush=True),
)
campaign.run(graph_of(*range(8, 48)))
"""


def test_a_campaign_killed_with_kill_9_goes_on_without_measuring_anything_twice(tmp_path):
    path = str(tmp_path / "store.db")
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", CAMPAIGN, path, memory_regime()]  # this process's may be a condition that differs
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as killed:
        assert killed.stdout is not None
        told = next(int(line) for line in killed.stdout if int(line) >= 10)
        os.kill(killed.pid, signal.SIGKILL)
    assert killed.returncode == -signal.SIGKILL
    with Store.open(path) as store:
        kept = len(store.measurements())
        expected = 40 * len(PAIR.cases())
        assert told <= kept < expected
        report = Campaign(LoneOps(PAIR), EveryCase(), store, mean_s=0.01).run(graph_of(*range(8, 48)))
        assert (report.measured, report.reused) == (expected - kept, kept)
        times = stored(store)
    assert len(times) == expected
    assert set(times.values()) == {1}
