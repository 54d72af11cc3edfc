"""Forecasts of slow-downs learn from measured pairs by class, and their intervals hold what they say."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest

from threadcast.collector.corun_forecast import CoRunForecast, bandwidth_bound
from threadcast.core.op_class import OpClass

M, C, T = OpClass.MEMORY, OpClass.COMPUTE, OpClass.TINY
OPS = {M: ("add", "sum"), C: ("mm", "conv"), T: ("neg", "cos")}
ALL = {M: 1 / 3, C: 1 / 3, T: 1 / 3}


def ratio(forecast: CoRunForecast, *classes: OpClass) -> float:
    own, beside = classes
    by = forecast.by_class()[own, beside]
    return by.high / by.low


def test_without_a_measured_pair_all_nine_pairs_of_classes_are_forecast_widely() -> None:
    found = CoRunForecast.of({C: ("mm",)}, bandwidth_bound=2.0).by_class()
    assert set(found) == set(product(OpClass, OpClass))
    assert all(by.low < 1.0 and by.high / by.low > 1.3 for by in found.values())  # so plans ignore them
    assert max(found, key=lambda classes: found[classes].median) == (M, M)


def test_a_measured_pair_narrows_every_forecast_most_those_of_its_classes() -> None:
    prior = CoRunForecast.of(OPS)
    after = prior.with_measured(("mm", "add"), math.exp(prior.mean[prior.pairs.index(("mm", "add"))]))
    narrowed = {classes: ratio(after, *classes) / ratio(prior, *classes) for classes in product(OpClass, OpClass)}
    assert max(narrowed.values()) < 1.0
    assert min(narrowed, key=narrowed.__getitem__) == (C, M)
    assert narrowed[C, T] < narrowed[T, C]
    assert narrowed[T, M] < narrowed[T, C]


def test_a_slow_pair_raises_the_forecasts_of_its_classes_more_than_the_others() -> None:
    prior = CoRunForecast.of(OPS)
    after = prior.with_measured(("mm", "conv"), 1.6).by_class()
    risen = {classes: after[classes].median / by.median for classes, by in prior.by_class().items()}
    assert min(risen.values()) > 1.0
    assert risen[C, C] == max(risen.values())
    assert risen[C, M] > risen[M, T]


def test_once_all_pairs_are_measured_the_median_is_their_mean_logarithm() -> None:
    forecast = CoRunForecast.of(OPS)
    for i, pair in enumerate(product([key for keys in OPS.values() for key in keys], repeat=2)):
        forecast = forecast.with_measured(pair, 1.0 + 0.01 * i)
    by = forecast.by_class()[M, M]
    assert by.median == pytest.approx((1.0 * 1.01 * 1.06 * 1.07) ** 0.25)
    assert by.high / by.low == pytest.approx(1.0, abs=1e-6)


def test_surprising_pairs_widen_the_forecasts_of_the_others() -> None:
    expected = surprising = CoRunForecast.of(OPS)
    for pair, factor in {("mm", "mm"): 1.1, ("mm", "conv"): 3.0, ("conv", "conv"): 1.0, ("conv", "mm"): 2.5}.items():
        expected, surprising = expected.with_measured(pair, 1.1), surprising.with_measured(pair, factor)
    assert ratio(surprising, M, T) > 1.5 * ratio(expected, M, T)


def test_a_tiny_neighbour_counts_by_the_core_that_it_keeps_busy() -> None:
    few, many = (CoRunForecast.of(OPS, cores=cores).by_class() for cores in (1, 34))
    assert few[C, T].median == few[C, C].median
    assert many[C, T].median == pytest.approx(few[C, T].median ** (1 / 34))


def test_the_next_pair_is_of_the_classes_that_matter() -> None:
    forecast = CoRunForecast.of(OPS)
    pairs = list(forecast.pairs)
    assert set(forecast.next_pair(pairs, {C: 1.0})) <= {"mm", "conv"}
    assert set(forecast.next_pair(pairs, {T: 1.0})) <= {"neg", "cos"}
    assert forecast.next_pair([("add", "mm")], {T: 1.0}) == ("add", "mm")


def test_the_width_is_that_of_the_widest_pair_of_these_classes() -> None:
    forecast = CoRunForecast.of(OPS).with_measured(("mm", "conv"), 1.1)
    found = forecast.by_class()
    assert forecast.width([C]) == pytest.approx(found[C, C].high / found[C, C].median - 1)
    assert forecast.width([C]) < forecast.width([C, T]) <= forecast.width(OPS)
    assert forecast.width(OPS) == max(by.high / by.median - 1 for by in found.values())


def test_intervals_hold_nine_in_ten_of_classes_that_were_not_measured() -> None:
    """Slow-downs are drawn from the prior itself, with classes' means as the truth."""
    prior = CoRunForecast.of(OPS)
    random, inside = np.random.default_rng(0), []
    root = np.linalg.cholesky(prior.covariance)
    for _ in range(150):
        real = prior.mean + root @ random.standard_normal(len(prior.mean))
        forecast = prior
        for _ in range(4):
            pair = forecast.next_pair([pair for i, pair in enumerate(prior.pairs) if i not in forecast.measured], ALL)
            forecast = forecast.with_measured(pair, math.exp(real[prior.pairs.index(pair)]))
        known = {prior.classes[i] for i in forecast.measured}
        for classes, by in forecast.by_class().items():
            if classes not in known:
                mean = np.mean([real[i] for i, one in enumerate(prior.classes) if one == classes])
                inside.append(by.low <= math.exp(mean) <= by.high)
    assert 0.86 <= np.mean(inside) <= 0.94


def test_the_bandwidth_bound_is_between_one_and_two() -> None:
    assert bandwidth_bound(1e9, 8e9, cores=4) == 1.0
    assert bandwidth_bound(2e9, 8e9, cores=3) == 1.5
    assert bandwidth_bound(8e9, 8e9, cores=4) == 2.0
