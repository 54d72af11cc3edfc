"""Simulated measurements: marked, repeatable, as noisy as asked, with counts that belong together."""

import statistics
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.xeon_phi_tables import table_op
from threadcast.collector.campaign import Campaign
from threadcast.collector.simulated.source import SimulatedXeonPhi
from threadcast.core import Affinity, Case, Op, OpGraph, TensorSpec
from threadcast.core.errors import InvalidInput
from threadcast.models.hill_climb import HillClimb
from threadcast.store import Store

OP = table_op("Conv2D", "32x8x8x384")
TINY = Op("add", (TensorSpec((8,)), TensorSpec((8,))), outputs=(TensorSpec((8,)),))


def test_the_same_seed_gives_the_same_measurement_in_any_order_which_says_that_it_is_simulated():
    cases = SimulatedXeonPhi().model.machine.cases()
    one, other = SimulatedXeonPhi(seed=3), SimulatedXeonPhi(seed=3)
    forwards = [one(OP, case) for case in cases]
    backwards = [other(OP, case) for case in reversed(cases)]
    assert forwards == backwards[::-1]
    assert forwards[0].conditions["simulated"] is True
    assert "Simulated" in forwards[0].machine.name
    assert SimulatedXeonPhi(seed=4)(OP, cases[0]) != forwards[0]


def test_the_noise_is_of_the_size_asked_for():
    source = SimulatedXeonPhi(samples=4000, noise=0.05)
    measured = source(OP, Case(20))
    ratios = [sample.seconds / source.model.seconds(OP, Case(20)) for sample in measured.samples]
    assert statistics.stdev(ratios) == pytest.approx(0.05, rel=0.1)
    assert statistics.median(ratios) == pytest.approx(1.0, abs=0.01)


@pytest.mark.parametrize("bad", [{"samples": 0}, {"noise": -0.1}, {"noise": 1.0}])
def test_impossible_settings_are_refused(bad: dict):
    with pytest.raises(InvalidInput, match="samples="):
        SimulatedXeonPhi(**bad)


@given(st.integers(1, 34), st.sampled_from(list(Affinity)))
def test_counts_belong_together(threads: int, affinity: Affinity):
    sample = SimulatedXeonPhi(samples=1, noise=0.0)(OP, Case(threads, affinity)).samples[0]
    counts = sample.counters
    assert counts["cycles"] == pytest.approx(threads * sample.seconds * 1.4e9, rel=0.3)
    assert 0 < counts["cache_misses"] < counts["cache_references"] < counts["instructions"]
    assert counts["l1d_load_misses"] <= counts["l1d_loads"]


def test_tiles_that_are_spread_fetch_the_filter_more_often():
    source = SimulatedXeonPhi(samples=1, noise=0.0)
    compact, spread = (source(OP, Case(34, a)).counter("cache_misses") for a in Affinity)
    assert compact < spread


def test_counts_of_a_short_op_are_inaccurate():
    def spread_of(op: Op) -> float:
        counts = [sample.counters["cache_misses"] for sample in SimulatedXeonPhi(samples=200)(op, Case(2)).samples]
        return statistics.stdev(counts) / statistics.mean(counts)

    assert spread_of(TINY) > 5 * spread_of(OP)


def test_a_campaign_on_it_measures_what_the_hill_climb_asks_for_and_marks_it(tmp_path: Path):
    graph = OpGraph(("convolution", "add"), (OP, TINY))
    source, model = SimulatedXeonPhi(count=False), HillClimb(interval=16)
    with Store.open(f"sqlite:///{tmp_path / 'store.sqlite'}") as store:
        found = Campaign(source, model, store).run(graph).observed
        again = Campaign(source, model, store).run(graph)
    assert {m.case for m in found[OP.key]} >= {Case(1, Affinity.SPREAD), Case(2), Case(18)}
    assert all(m.conditions["simulated"] for measured in found.values() for m in measured)
    assert again.measured == 0
    assert again.reused == sum(map(len, found.values()))
