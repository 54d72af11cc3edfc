"""A machine that becomes slower: what the service tells of it, on every kind of model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from flask.testing import FlaskClient

from tests.models.synthetic_ops import make_ops, measure_all
from threadcast.core import Machine, Op
from threadcast.models import registry_of_kinds
from threadcast.models.registry import ModelRegistry
from threadcast.service.app import create_app
from threadcast.service.settings import ServiceSettings
from threadcast.service.stored_documents import MOST_CHANGED, StoredDocuments
from threadcast.store import Store
from threadcast.store.machine_changes import MachineChanges

MACHINE = Machine.uniform("four", 4, group_size=2)
OPS = make_ops(24)
SLOWER, UNCHANGED, UNMEASURED = OPS[:8], OPS[8:16], OPS[16:]
MEASURED = measure_all(OPS, machine=MACHINE)
FACTOR = 3.0
BEFORE_S = {(m.op.key, m.case): m.seconds for m in MEASURED}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FlaskClient]:
    """A service with a fitted model of every kind, over measurements of all ops and then of half of them again."""
    folder = tmp_path_factory.mktemp("changes")
    registry = ModelRegistry(folder / "models")
    for name in registry_of_kinds.names():
        options = {"samples": 2} if name in registry_of_kinds.REGRESSORS else {}
        options |= {"trees": 20} if registry_of_kinds.takes(name, "trees") else {}
        model = registry_of_kinds.create(name, **options).fit(MEASURED)
        version = registry.save(model, trained_on={}, metrics={})
        registry.set_alias(name.replace("_", "-"), version)
        if name == "roofline":
            registry.set_alias("champion", version)
    with Store.open(folder / "store.sqlite") as store:
        store.add(MEASURED)
    app = create_app(ServiceSettings(store=folder / "store.sqlite", models=folder / "models"))
    client = app.test_client()
    for name in ("roofline", "learned-curve"):  # answers that the service keeps are of the past afterwards
        assert get(client, OPS[0], name)["source"][0] == ["measured"] * len(MACHINE.cases())
    case = MACHINE.cases()[0]
    for op, factor in [(op, FACTOR) for op in SLOWER] + [(op, 1.0) for op in UNCHANGED]:
        seconds = [factor * BEFORE_S[op.key, case] * noise for noise in (0.98, 1.0, 1.03)]
        entry = {"op": op.key, "threads": case.threads, "affinity": case.affinity.value, "seconds": seconds}
        sent = client.post("/v1/measurements", json={"machine": MACHINE.fingerprint, "measurements": [entry]})
        assert sent.status_code == 201, sent.text
    yield client
    app.extensions["threadcast"].store.close()


def get(client: FlaskClient, op: Op, model: str) -> dict[str, Any]:
    response = client.get(f"/v1/curves/{op.key}", query_string={"model": model})
    assert response.status_code == 200, response.text
    document: dict[str, Any] = response.get_json()
    return document


def points(client: FlaskClient, op: Op, model: str) -> list[tuple[str, float, float, float]]:
    """Source, and low, seconds and high over the seconds before, of each case."""
    found = get(client, op, model)
    before = [BEFORE_S[op.key, case] for case in MACHINE.cases()]
    rows = zip(found["source"][0], found["low"][0], found["seconds"][0], found["high"][0], before, strict=True)
    return [(source, low / old, seconds / old, high / old) for source, low, seconds, high, old in rows]


def test_changes_are_in_memory_of_so_many_machines_only(tmp_path: Path) -> None:
    read = list[str]()
    with Store.open(tmp_path / "store.sqlite") as store:

        class Counting:
            last_measurement = store.last_measurement

            def changes(self, machine: str) -> MachineChanges:
                read.append(machine)
                return store.changes(machine)

        stored = StoredDocuments(Counting())  # type: ignore[arg-type]
        for _ in range(2):
            stored.changes("first")
        assert read == ["first"]
        for i in range(MOST_CHANGED):
            stored.changes(f"machine-{i}")
        stored.changes("first")
    assert read.count("first") == 2


KINDS = [name.replace("_", "-") for name in registry_of_kinds.names()]


@pytest.mark.parametrize("model", KINDS)
def test_three_new_samples_show_a_slow_down_with_intervals_that_hold(client: FlaskClient, model: str) -> None:
    for op in SLOWER:
        first, *others = points(client, op, model)
        assert (first[0], first[2]) == ("measured", pytest.approx(FACTOR))
        assert first[1] < 0.97 * FACTOR < 1.03 * FACTOR < first[3]
        for source, low, seconds, high in others:
            assert source == "extrapolated"
            assert seconds == pytest.approx(FACTOR, rel=0.05)
            assert low <= 1
            assert high >= FACTOR


@pytest.mark.parametrize("model", KINDS)
def test_what_was_measured_again_and_has_not_changed_stays(client: FlaskClient, model: str) -> None:
    for op in UNCHANGED:
        for source, low, seconds, high in points(client, op, model):
            assert source == "measured"
            assert seconds == pytest.approx(1.0, rel=0.05)
            assert 0.8 < low <= high < 1.25


@pytest.mark.parametrize("model", KINDS)
def test_ops_that_nobody_measured_since_are_in_doubt(client: FlaskClient, model: str) -> None:
    for op in UNMEASURED:
        for source, low, seconds, high in points(client, op, model):
            assert source == "extrapolated"
            assert low <= 1 <= FACTOR <= high
            assert 0.9 < seconds < 1.1 * FACTOR


def test_measured_once_more_they_hold_again(client: FlaskClient) -> None:
    op, seconds = UNMEASURED[0], BEFORE_S
    entries = [
        {
            "op": op.key, "threads": c.threads, "affinity": c.affinity.value,
            "seconds": [FACTOR * seconds[op.key, c] * n for n in (0.99, 1.0, 1.01)],
        }
        for c in MACHINE.cases()
    ]  # fmt: skip
    sent = client.post("/v1/measurements", json={"machine": MACHINE.fingerprint, "measurements": entries})
    assert sent.status_code == 201, sent.text
    for source, low, now, high in points(client, op, "champion"):
        assert (source, now) == ("measured", pytest.approx(FACTOR))
        assert 0.7 * FACTOR < low < high < 1.4 * FACTOR
