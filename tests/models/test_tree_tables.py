"""Forecasts by tables of trees are XGBoost's own, to the last bit."""

from __future__ import annotations

import numpy as np
import pytest
import xgboost

from threadcast.models import tree_tables
from threadcast.models.tree_tables import CaseForecasts, TreeTable

N_OPS, N_CASES, N_FEATURES = 30, 12, 7


def features(*, missing: float, seed: int = 0) -> np.ndarray:
    """(n_ops, n_cases, n_features): some columns are the same at all cases of an op, and a share is missing."""
    random = np.random.default_rng(seed)
    found = random.normal(size=(N_OPS, N_CASES, N_FEATURES)).astype(np.float32)
    found[:, :, :3] = found[:, :1, :3]
    found[:, :, 3] = np.round(found[:, :, 3])  # equal to thresholds
    found[random.random(found.shape) < missing] = np.nan
    return found


def grown(*, missing: float, trees: int = 40) -> xgboost.XGBRegressor:
    rows = features(missing=missing, seed=1).reshape(-1, N_FEATURES)
    known = np.nan_to_num(rows)
    targets = np.sin(known[:, 0] * 3) + known[:, 3] * known[:, 4] + (known[:, 5] > 0) + 3.3
    return xgboost.XGBRegressor(n_estimators=trees, max_depth=6, learning_rate=0.3, n_jobs=1).fit(rows, targets)


def by_xgboost(regressor: xgboost.XGBRegressor, asked: np.ndarray) -> np.ndarray:
    return regressor.get_booster().inplace_predict(asked.reshape(-1, N_FEATURES)).reshape(asked.shape[:2])


@pytest.mark.parametrize("learned_with", [0.0, 0.2])
@pytest.mark.parametrize("asked_with", [0.0, 0.05, 1.0])
def test_a_table_forecasts_what_xgboost_does_with_and_without_missing_values(
    learned_with: float, asked_with: float
) -> None:
    regressor, asked = grown(missing=learned_with), features(missing=asked_with, seed=2)
    table = TreeTable.of(bytes(regressor.get_booster().save_raw("json")))
    np.testing.assert_array_equal(table.forecast(asked), by_xgboost(regressor, asked))


def test_the_loop_forecasts_the_same_without_compilation(monkeypatch: pytest.MonkeyPatch) -> None:
    regressor, asked = grown(missing=0.1, trees=5), features(missing=0.1, seed=3)[:4]
    table = TreeTable.of(bytes(regressor.get_booster().save_raw("json")))
    monkeypatch.setattr(tree_tables, "_compiled", lambda: None)
    np.testing.assert_array_equal(table.forecast(asked), by_xgboost(regressor, asked))


def test_xgboost_forecasts_until_compiling_is_worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    regressor, asked = grown(missing=0.0), features(missing=0.0, seed=4)
    of_cases = CaseForecasts(regressor)
    monkeypatch.setattr(tree_tables, "WORTH_COMPILING", 2 * N_OPS * N_CASES)
    expected = by_xgboost(regressor, asked)
    tables = []
    for _ in range(3):
        np.testing.assert_array_equal(of_cases(asked), expected)
        tables.append(of_cases._table is not None)
    assert tables == [False, True, True]


@pytest.mark.parametrize("installed", [False, True])
def test_xgboost_goes_on_without_numba_or_where_a_table_is_wrong(
    monkeypatch: pytest.MonkeyPatch, installed: bool
) -> None:
    regressor, asked = grown(missing=0.0), features(missing=0.0, seed=5)
    of_cases = CaseForecasts(regressor)
    monkeypatch.setattr(tree_tables, "WORTH_COMPILING", 0)
    if installed:
        monkeypatch.setattr(TreeTable, "forecast", lambda self, some: np.zeros(some.shape[:2], dtype=np.float32))
    else:
        monkeypatch.setattr(tree_tables, "_compiled", lambda: None)
    for _ in range(2):
        np.testing.assert_array_equal(of_cases(asked), by_xgboost(regressor, asked))
    assert of_cases._table is None


def test_a_single_leaf_is_a_tree() -> None:
    rows = features(missing=0.0).reshape(-1, N_FEATURES)
    regressor = xgboost.XGBRegressor(n_estimators=3, max_depth=3, n_jobs=1).fit(rows, np.full(len(rows), 2.5))
    table = TreeTable.of(bytes(regressor.get_booster().save_raw("json")))
    asked = features(missing=0.0, seed=6)
    np.testing.assert_array_equal(table.forecast(asked), by_xgboost(regressor, asked))
