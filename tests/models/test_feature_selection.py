"""Counters: normalised, and the informative ones found."""

from dataclasses import replace

import numpy as np
import pytest

from tests.models.synthetic_ops import make_ops, measure
from threadcast.core import Case, Sample
from threadcast.models.feature_selection import candidates, normalised, normaliser_of, select

OPS = make_ops(12)
MEASURED = [measure(op, Case(2)) for op in OPS]


def without(measurement, *names):
    kept = {name: value for name, value in measurement.samples[0].counters.items() if name not in names}
    return replace(measurement, samples=(Sample(measurement.seconds, {**kept, **dict.fromkeys(names)}),))


def test_counters_are_divided_by_instructions_where_there_are_any():
    assert normaliser_of(MEASURED) == "instructions"
    m = MEASURED[0]
    assert normalised(m, "branches", "instructions") == pytest.approx(0.1)


def test_counters_are_divided_by_flops_where_instructions_were_not_read():
    blind = [without(m, "instructions") for m in MEASURED]
    assert normaliser_of(blind) == "flops"
    assert normalised(blind[0], "branches", "flops") == MEASURED[0].counter("branches") / OPS[0].flops


def test_a_counter_that_was_not_read_is_not_a_number_and_never_zero():
    assert np.isnan(normalised(without(MEASURED[0], "cycles"), "cycles", "instructions"))
    assert np.isnan(normalised(without(MEASURED[0], "instructions"), "cycles", "instructions"))


@pytest.mark.parametrize(("count", "instructions"), [(1e308, 1e-3), (1e50, 1e6), (1.0, 0.0)])
def test_a_count_that_no_run_can_have_counts_as_not_read(count, instructions):
    counters = {"cycles": count, "instructions": instructions}
    misread = replace(MEASURED[0], samples=(Sample(1.0, counters),))
    assert np.isnan(normalised(misread, "cycles", "instructions"))


def test_candidates_were_mostly_read_vary_and_are_not_the_normaliser():
    seldom = [without(m, "cycles") for m in MEASURED[:7]] + MEASURED[7:]
    names = candidates(seldom, "instructions")
    assert "cycles" not in names  # read in 5 of 12
    assert "instructions" not in names
    assert "branch_misses" not in names  # always a thousandth of the instructions
    assert {"cache_misses", "l1d_loads"} <= set(names)


def test_the_tree_finds_the_informative_columns_and_drops_their_copies():
    rng = np.random.default_rng(0)
    values = rng.random((200, 6))
    values[:, 5] = values[:, 0] * 2 + 1  # says what column 0 says
    targets = np.stack([np.floor(values[:, 0] * 4), np.floor(values[:, 3] * 4) / 2], axis=1)
    chosen = select(values, ["a", "b", "c", "d", "e", "copy of a"], targets, keep=2)
    assert chosen in (("a", "d"), ("copy of a", "d"))


def test_columns_that_say_nothing_are_not_chosen_even_if_there_is_room():
    values = np.stack([np.arange(40.0), np.ones(40)], axis=1)
    assert select(values, ["used", "constant"], np.arange(40.0)[:, None]) == ("used",)
    assert select(np.empty((40, 0)), [], np.arange(40.0)[:, None]) == ()


def test_missing_values_do_not_stop_the_selection():
    values = np.stack([np.arange(40.0), np.full(40, np.nan)], axis=1)
    values[3, 0] = np.nan
    targets = np.arange(40.0)[:, None].copy()
    targets[5] = np.nan
    assert select(values, ["used", "never read"], targets) == ("used",)
