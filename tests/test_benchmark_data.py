"""The sets of times that benchmarks read: those that ship, and ADSALA's wide tables."""

from __future__ import annotations

import gzip
import importlib
from pathlib import Path
from typing import Any

import pytest

from threadcast.core import Machine
from threadcast.core.errors import InvalidInput, NotFound
from threadcast.store.long_form import read_long_form


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The function of this name in a module of the benchmarks."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "benchmarks"))
    return lambda module, name: getattr(importlib.import_module(module), name)


def test_every_set_has_every_operation_at_every_thread_count(read: Any) -> None:
    recorded = read("recorded_sets", "recorded")
    measurements = recorded("amd-epyc-2c")
    by_op: dict[str, set[int]] = {}
    for one in measurements:
        by_op.setdefault(one.op.key, set()).add(one.case.threads)
        assert one.seconds > 0
        assert len(one.machine) == 2
    assert set(map(frozenset, by_op.values())) == {frozenset({1, 2})}
    assert {"convolution", "addmm", "sgd_update", "batch_norm"} <= {one.op.kind for one in measurements}
    assert len(recorded()) >= len(measurements)


def test_a_set_that_is_not_there_is_named_with_those_that_are(read: Any, tmp_path: Path) -> None:
    recorded = read("recorded_sets", "recorded")
    with pytest.raises(NotFound, match="amd-epyc-2c"):
        recorded("cray-1")
    with pytest.raises(NotFound, match="none"):
        recorded("cray-1", folder=tmp_path)


def test_the_wide_layout_gives_a_measurement_a_shape_and_thread_count(read: Any, tmp_path: Path) -> None:
    path = tmp_path / "sgemm_box.csv.gz"
    path.write_bytes(gzip.compress(b"m,k,n,rep,t1,t2\n2,3,4,1,10,6\n2,3,4,2,12,8\n5,6,7,1,30,20\n"))
    loaded = read("adsala", "adsala_wide")(path)
    times = [(m.case.threads, [s.seconds for s in m.samples]) for m in loaded]
    assert times == [(1, [10e-6, 12e-6]), (2, [6e-6, 8e-6]), (1, [30e-6]), (2, [20e-6])]
    assert [spec.shape for spec in loaded[0].op.inputs] == [(2, 3), (3, 4)]
    assert (loaded[0].op.flops, loaded[0].machine) == (2 * 2 * 3 * 4, Machine.uniform("sgemm_box", 2))
    general = read_long_form(path, columns=["seconds=t*:us"])
    assert [(m.case.threads, [s.seconds for s in m.samples]) for m in general] == times


def test_the_wide_layout_of_a_dot_product_has_one_length(read: Any, tmp_path: Path) -> None:
    path = tmp_path / "sdot.csv"
    path.write_text("n,rep,t1,t4\n1000,1,5,2\n")
    one, four = read("adsala", "adsala_wide")(path)
    assert (one.op.kind, one.op.flops, four.case.threads, len(four.machine)) == ("dot", 2000.0, 4, 4)
    path.write_text("n,rep,t1,t4\n1000,1,-5,2\n")
    with pytest.raises(InvalidInput):
        read("adsala", "adsala_wide")(path)
