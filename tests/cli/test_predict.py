"""`threadcast predict --cores`: forecasts for a part of a machine."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.cli.commands import invoke
from tests.models.synthetic_ops import MACHINE, make_ops, measure_all
from threadcast.core import Affinity, Case, OpGraph
from threadcast.store import Store

OPS = make_ops(4)
pytestmark = pytest.mark.usefixtures("one_library_thread")


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store with the measurements of a graph's ops on eight cores in pairs."""
    monkeypatch.chdir(tmp_path)
    for name in ("XDG_CONFIG_HOME", "XDG_DATA_HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    with Store.open(tmp_path / "store.sqlite") as store:
        store.add(measure_all(OPS))
        store.add_graph("net/forward", OpGraph(tuple(map(str, range(len(OPS)))), tuple(OPS)))
    return tmp_path / "store.sqlite"


def predicted(what: str, store: Path, *more: str) -> dict[str, Any]:
    """What the document says, with the cases as such."""
    chosen = ("--machine", MACHINE.fingerprint, "--model", "hill_climb", "--store", str(store), *more, "--json")
    result = invoke("predict", what, *chosen)
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return {**found, "cases": [Case(case["threads"], case["affinity"]) for case in found["cases"]]}


def columns(table: dict[str, Any], cases: Sequence[Case]) -> list[list[float]]:
    return [[row[table["cases"].index(case)] for case in cases] for row in table["seconds"]]


@pytest.mark.parametrize("what", ["net/forward", OPS[0].key])
@pytest.mark.parametrize(
    ("cores", "cases", "of_all"),
    [
        ("2", [Case(1), Case(2)], [Case(1, Affinity.SPREAD), Case(2)]),
        ("4", [Case(1, Affinity.SPREAD), Case(2), Case(2, Affinity.SPREAD), Case(4)], None),
    ],
)
def test_a_part_of_a_machine_has_its_own_cases_with_the_times_of_the_whole(
    store: Path, what: str, cores: str, cases: list[Case], of_all: list[Case] | None
) -> None:
    """One thread is spread on eight cores in pairs, and compact on one pair."""
    whole, part = predicted(what, store), predicted(what, store, "--cores", cores)
    assert whole["cases"] == list(MACHINE.cases())
    assert part["cases"] == cases
    assert part["machine"] == MACHINE.limited_to(range(int(cores))).fingerprint
    assert part["seconds"] == columns(whole, of_all or cases)
    for op, seconds in zip(part["ops"], part["seconds"], strict=True):
        assert Case(**op["best"]) == cases[seconds.index(min(seconds))]
