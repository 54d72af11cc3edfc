"""Slow-downs of classes come from timed pairs on disjoint cores."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from threadcast.collector.calibration import Calibration
from threadcast.collector.corun import ROUNDS, halves, limits_of, measure_corun, prior_of, representatives, work_shares
from threadcast.collector.corun_partner import Partner, serve
from threadcast.collector.lone import Measure
from threadcast.collector.timing import Goal
from threadcast.core import Case, Machine, Measurement, Op, Sample, TensorSpec
from threadcast.core.errors import MeasurementError
from threadcast.core.op_class import ClassLimits, OpClass
from threadcast.core.topology import read_machine

M, C, T = OpClass.MEMORY, OpClass.COMPUTE, OpClass.TINY
LIMITS = ClassLimits(1e10, 1e9, 1e-6)
TWO = Machine.uniform("two", 2)
ADD = {"target": "aten.add.Tensor", "args": [{"t": 0}, {"t": 0}], "kwargs": {}}


def op(kind: str, flops: float, moved: float, **attributes: int) -> Op:
    return Op(kind, attributes=attributes, cost=(flops, moved))


MEMORY, COMPUTE, TINY = op("add", 1e6, 1e7), op("mm", 1e9, 1e6), op("relu", 10, 10)


class Bench:
    """Ops that take a second alone and `slowed[op, beside]` seconds beside another."""

    def __init__(self, slowed: dict[tuple[str, str], float]) -> None:
        self.slowed = slowed
        self.timed: list[tuple[str, str | None]] = []
        self.cores: list[tuple[int, ...]] = []
        self._prepared: Op | None = None
        self._running = False

    @contextmanager
    def lone(self, machine: Machine) -> Iterator[Measure]:
        self.cores.append(tuple(core.id for core in machine.cores))

        def measure(what: Op, goal: Goal) -> Measurement:
            beside = self._prepared.kind if self._prepared is not None and self._running else None
            self.timed.append((what.kind, beside))
            by = 1.0 if beside is None else self.slowed.get((what.kind, beside), 1.0)
            return Measurement(what, machine, Case(1), (Sample(by * what.flops),))

        yield measure

    @contextmanager
    def partner(self, machine: Machine) -> Iterator[Bench]:
        self.cores.append(tuple(core.id for core in machine.cores))
        yield self

    def prepare(self, what: Op) -> None:
        self._prepared = None  # as `Partner` does
        if what.kind == "broken":
            raise MeasurementError("it cannot run")
        self._prepared = what

    @contextmanager
    def running(self) -> Iterator[None]:
        if self._prepared is None:
            raise MeasurementError("prepare one first")
        self._running = True
        yield
        self._running = False


def test_a_classs_slowdown_is_the_median_over_its_pairs_of_time_beside_over_time_alone() -> None:
    other = op("sum", 1e5, 1e7)
    bench = Bench({("add", "add"): 2.0, ("add", "sum"): 1.8, ("sum", "add"): 1.6, ("add", "mm"): 1.25})
    machine = Machine.uniform("four", 4)
    report = measure_corun(
        [MEMORY, COMPUTE, other, MEMORY], machine, LIMITS, most=None, narrow=0.0,
        lone=bench.lone, partner=bench.partner,
    )  # fmt: skip
    table = report.table
    assert (table.machine, table.cores, table.limits) == (machine, 2, LIMITS)
    assert table.slowdowns[M, M].median == pytest.approx(1.7)  # of 2, 1.8, 1.6 and 1
    assert table.slowdowns[M, M].pairs == 4
    assert table.slowdowns[M, C].median == pytest.approx(1.125)
    assert table.slowdowns[C, M].median == table.slowdowns[C, C].median == 1.0
    assert report.failed == {}
    assert bench.cores == [(0, 1), (2, 3)]


def test_alone_and_beside_take_turns() -> None:
    bench = Bench({})
    measure_corun([COMPUTE], TWO, LIMITS, lone=bench.lone, partner=bench.partner)
    assert bench.timed == [("mm", None), ("mm", "mm")] * ROUNDS


def test_a_pair_that_fails_is_left_out_and_said() -> None:
    bench = Bench({})
    broken = op("broken", 1e5, 1e7)
    told: list[tuple[int, int]] = []
    report = measure_corun(
        [COMPUTE, broken], TWO, LIMITS, narrow=0.0, lone=bench.lone, partner=bench.partner,
        on_progress=lambda done, total: told.append((done, total)),
    )  # fmt: skip
    assert set(report.failed) == {(COMPUTE.key, broken.key), (broken.key, broken.key)}
    assert set(report.table.slowdowns) == {(C, C), (M, C)}
    assert "cannot run" in report.failed[COMPUTE.key, broken.key]
    assert told == [(1, 4), (2, 4), (3, 4), (4, 4)]


def test_only_pairs_beside_an_op_that_cannot_be_prepared_fail() -> None:
    bench, broken = Bench({}), [op("broken", 1e5, 1e7, n=i) for i in range(2)]
    ops = [COMPUTE, MEMORY, *broken, TINY]
    report = measure_corun(ops, TWO, LIMITS, each=3, most=None, narrow=0.0, lone=bench.lone, partner=bench.partner)
    assert set(report.failed) == {(one.key, other.key) for one in ops for other in broken}
    assert len(report.pairs) == len(ops) * 3


def test_one_measured_pair_does_not_make_its_classes_certain() -> None:
    for factor in (1.0, 1.5):
        bench = Bench({(COMPUTE.kind, COMPUTE.kind): factor})
        report = measure_corun([COMPUTE], TWO, LIMITS, lone=bench.lone, partner=bench.partner)
        found = report.table.forecasts[C, C]
        assert report.table.slowdowns[C, C].pairs == 1
        assert found.low < 0.95 * found.median < 0.95 * found.high
        assert abs(found.median - factor) < 0.35


def test_few_pairs_are_measured_and_the_other_classes_are_forecast_from_them() -> None:
    ops = [MEMORY, op("sum", 1e5, 1e7), COMPUTE, op("conv", 1e9, 2e6), TINY, op("neg", 20, 20)]
    slow = Bench({(one.kind, other.kind): 1.5 for one in ops for other in ops})
    quick = Bench({})
    tables = {}
    for name, bench in (("slow", slow), ("quick", quick)):
        report = measure_corun(ops, TWO, LIMITS, most=5, narrow=0.0, lone=bench.lone, partner=bench.partner)
        tables[name] = report.table
        assert len(report.pairs) == 5
        assert len(report.table.forecasts) == 9
        assert len(report.table.slowdowns) <= 5
    for classes, by in tables["slow"].forecasts.items():
        assert by.median > tables["quick"].forecasts[classes].median + 0.15


def test_no_pair_is_measured_once_the_forecasts_are_narrow() -> None:
    ops = [MEMORY, op("sum", 1e5, 1e7), COMPUTE, op("conv", 1e9, 2e6)]
    counts = {}
    for narrow in (0.9, 0.2, 0.1, 0.0):
        bench = Bench({})
        report = measure_corun(ops, TWO, LIMITS, most=None, narrow=narrow, lone=bench.lone, partner=bench.partner)
        counts[narrow] = len(report.pairs)
    assert counts[0.9] == 0
    assert 0 < counts[0.2] < counts[0.1] < counts[0.0] == 16


def test_pairs_of_the_classes_with_most_work_are_measured_first() -> None:
    ops = [MEMORY, *[op("mm", 1e10, 1e6, n=i) for i in range(2)], TINY]
    report = measure_corun(ops, TWO, LIMITS, most=2, narrow=0.0, lone=Bench({}).lone, partner=Bench({}).partner)
    assert set(report.table.slowdowns) == {(C, C)}
    shares = work_shares(ops, LIMITS)
    assert sum(shares.values()) == pytest.approx(1.0)
    assert shares[C] == pytest.approx(2 / (2 + 0.01), rel=1e-3)  # seconds: 1 each, and 10 MB at 1 GB/s


def test_the_prior_knows_the_machines_bandwidth_and_halves() -> None:
    limited = Calibration("eight", 5e10, 2e10, 4e10, {1: 2e-6})
    machine = Machine.uniform("eight", 8)
    free = Calibration("eight", 5e10, 1e9, 8e9, {1: 2e-6})
    slower, same = (prior_of(calibration, machine)({}).by_class() for calibration in (limited, free))
    assert slower[M, M].median > 1.1 * slower[C, C].median
    assert same[M, M].median == pytest.approx(same[C, C].median)


def test_representatives_have_most_work_and_different_kinds() -> None:
    often = [op("mul", 1e5, 2e6)] * 6  # 12 MB a step
    found = representatives([op("add", 1e5, 1e7), op("add", 1e5, 1.1e7, n=2), *often, op("view", 0, 0), TINY], LIMITS)
    assert [o.kind for o in found[M]] == ["mul", "add"]
    assert found[M][1].bytes_moved == 1.1e7
    assert found[T] == (TINY,)
    assert C not in found
    assert len(representatives([op("add", 1, 1e7, n=i) for i in range(5)], LIMITS)[M]) == 2


def test_the_halves_are_disjoint_and_share_no_cache_group_where_they_can() -> None:
    machine = Machine.uniform("tiles", 9, group_size=4)
    first, second = halves(machine)
    assert [core.id for core in first.cores] == [0, 1, 2, 3]
    assert [core.id for core in second.cores] == [4, 5, 6, 7]
    with pytest.raises(MeasurementError, match="one core"):
        halves(Machine.uniform("one", 1))


def test_limits_share_out_the_bandwidth_of_all_cores() -> None:
    calibration = Calibration("four", 5e10, 2e10, 4e10, {1: 2e-6, 4: 9e-6})
    assert limits_of(calibration, Machine.uniform("four", 4)) == ClassLimits(5e10, 1e10, 2e-6)


REAL = Op("add", (TensorSpec((64, 64)),), ADD)


@pytest.mark.skipif(len(read_machine()) < 2, reason="needs two cores")
def test_two_real_ops_are_measured_beside_each_other() -> None:
    report = measure_corun([REAL], read_machine(), LIMITS, mean_s=0.01)
    assert report.failed == {}
    (found,) = report.table.slowdowns.values()
    assert found.median > 0.1
    assert report.pairs.keys() == {(REAL.key, REAL.key)}


def test_the_process_beside_tells_what_failed_and_goes_on_and_leaves_no_process() -> None:
    machine = read_machine()
    with Partner(machine.limited_to([machine.cores[0].id])) as partner:
        process = partner._process
        with pytest.raises(MeasurementError, match="prepare one"), partner.running():
            pass
        with pytest.raises(MeasurementError, match=r"no operator aten\.nothing\.default"):
            partner.prepare(Op("nothing", attributes={"target": "aten.nothing.default", "args": [], "kwargs": {}}))
        partner.prepare(REAL)
        with partner.running():
            while _cpu_ticks(process.pid) < 1:
                os.sched_yield()
    assert process.returncode == 0


def _cpu_ticks(pid: int) -> int:
    with open(f"/proc/{pid}/stat") as file:
        return int(file.read().rpartition(")")[2].split()[11])


def test_a_process_beside_that_dies_is_reported() -> None:
    machine = read_machine()
    with Partner(machine.limited_to([machine.cores[0].id])) as partner:
        partner._process.kill()
        partner._process.wait()
        with pytest.raises(MeasurementError, match="ended"):
            partner.prepare(REAL)


def test_every_request_gets_one_answer() -> None:
    machine = read_machine().limited_to([read_machine().cores[0].id])
    requests = [
        {"machine": machine.to_json(), "memory": "returned"},
        {"op": REAL.to_json()},
        {"run": True},
        {"run": False},
    ]
    answers = io.StringIO()
    serve(io.StringIO("".join(json.dumps(request) + "\n" for request in requests)), answers)
    assert answers.getvalue().splitlines() == ["{}"] * 4
