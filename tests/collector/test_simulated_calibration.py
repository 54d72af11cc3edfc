"""The constants in use are those that the two tables give, and the fit is as good as the document says."""

import copy
import pickle
from pathlib import Path

import numpy as np
import pytest

from benchmarks.xeon_phi_tables import calibrate, read_table
from threadcast.collector.simulated.calibrated import CALIBRATED
from threadcast.collector.simulated.constants import Constants
from threadcast.collector.simulated.demand import Pass
from threadcast.collector.simulated.xeon_phi import XeonPhi
from threadcast.core.errors import InvalidInput

PAPERS = Path(__file__).parents[2] / "data" / "papers"
TABLE_II, TABLE_III = PAPERS / "knl_best_threads_by_input.csv", PAPERS / "knl_corun_pair.csv"


def test_fitting_again_gives_the_constants_in_use():
    pytest.importorskip("scipy")
    found = calibrate(TABLE_II, TABLE_III)
    for name in ("flops_per_s", "reorder_s_per_byte"):
        assert dict(getattr(found, name)) == pytest.approx(dict(getattr(CALIBRATED, name)), rel=0.01)
    for name in ("share_bytes_per_s", "contention", "smt_throughput"):
        assert getattr(found, name) == pytest.approx(getattr(CALIBRATED, name), rel=0.01)


def test_constants_are_copied_and_pickled():
    assert copy.deepcopy(CALIBRATED) == pickle.loads(pickle.dumps(CALIBRATED)) == CALIBRATED


def test_the_fit_is_as_good_as_the_document_says():
    curves = [(row, XeonPhi().curve(row.op, np.arange(1, 69))) for row in read_table(TABLE_II)]
    errors = [abs(curve[row.best_threads - 1] / row.seconds - 1) for row, curve in curves]
    assert len(curves) == 9
    assert np.mean(errors) < 0.10
    assert max(errors) < 0.23
    assert all(abs(int(curve.argmin()) + 1 - row.best_threads) <= 8 for row, curve in curves)
    assert all(abs(curve[67] / curve[row.best_threads - 1] - 1 - row.gain_over_68) < 0.09 for row, curve in curves)


def test_impossible_constants_are_refused():
    rates, reorders = dict.fromkeys(Pass, 1e10), dict.fromkeys(Pass, 1e-9)
    with pytest.raises(InvalidInput, match="for each of forward, input, weight"):
        Constants({Pass.FORWARD: 1e10}, reorders, 1e10, 0.2, 1.03)
    with pytest.raises(InvalidInput, match="above 0"):
        Constants(rates, reorders, 0.0, 0.2, 1.03)
    with pytest.raises(InvalidInput, match=r"smt_throughput=0\.9"):
        Constants(rates, reorders, 1e10, 0.2, 0.9)
