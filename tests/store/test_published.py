from __future__ import annotations

import csv
import statistics
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from threadcast.core import Measurement
from threadcast.store import Store
from threadcast.store.published import (
    data_directory,
    gbm_training_time,
    minibude_thunderx2,
    ncnn_network_latency,
)

LOADERS = (ncnn_network_latency, gbm_training_time, minibude_thunderx2)


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("load", LOADERS)
def test_a_published_set_has_one_measurement_a_case_on_machines_that_can_run_it(
    load: Callable[[], list[Measurement]], store_path: Path
) -> None:
    loaded = load()
    assert max(Counter((m.machine, m.op, m.case) for m in loaded).values()) == 1
    assert all(m.case in m.machine.cases() for m in loaded)
    assert all(sample.seconds > 0 for m in loaded for sample in m.samples)
    with Store.open(store_path) as store:
        store.add(loaded)
        assert store.measurements() == loaded


def test_training_times_come_from_the_placement_that_shares_least() -> None:
    rows = rows_of(data_directory() / "published" / "gbm_training_time.csv")
    loaded = gbm_training_time()
    settings = {(row["file"], row["library"], row["size_Mrows"], row["threads"]) for row in rows}
    assert len(loaded) == len(settings)
    (m,) = (
        m
        for m in loaded
        if m.machine.name == "analysis/multicore/results/res"
        and dict(m.op.attributes) == {"library": "xgboost", "million_rows": 10.0}
        and m.case.threads == 32
    )
    wanted = {"file": "analysis/multicore/results/res.csv", "library": "xgboost", "threads": "32", "mode": "NUMA"}
    runs = [float(row["time_s"]) for row in rows if wanted.items() <= row.items() and float(row["size_Mrows"]) == 10]
    assert [s.seconds for s in m.samples] == runs
    assert m.seconds == statistics.median(runs)
    assert m.conditions == {"mode": "NUMA", "cpuset": "0-31"}


def test_every_set_has_a_card_with_its_source_and_licence() -> None:
    published, papers = data_directory() / "published", data_directory() / "papers"
    for name in ("ncnn_network_latency", "gbm_training_time", "minibude_thunderx2"):
        card = (published / f"{name}.md").read_text()
        assert f"licences/{name}.txt" in card
        assert "commit" in card
        assert (published / "licences" / f"{name}.txt").stat().st_size > 500
    tables = {path.name for path in papers.glob("*.csv")}
    assert len(tables) == 10
    assert all(name in (papers / "README.md").read_text() for name in tables)
