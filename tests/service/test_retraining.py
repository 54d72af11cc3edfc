"""When the service retrains, and that it does so beside answering."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.models.synthetic_ops import make_ops, measure_all
from tests.models.test_retraining import slower
from tests.service.test_server import LONG_S, arguments, refused, running
from tests.waiting import eventually
from threadcast.core import Measurement
from threadcast.models.learned_curve import LearnedCurve
from threadcast.models.registry import ModelRegistry
from threadcast.service.retraining import Retrainer
from threadcast.service.settings import ServiceSettings
from threadcast.store import Store


@pytest.fixture(scope="module")
def measured() -> list[Measurement]:
    return list(measure_all(make_ops(60)))


@pytest.fixture(scope="module")
def fitted(measured: list[Measurement]) -> LearnedCurve:
    return LearnedCurve(trees=20, samples=0).fit(measured)


@pytest.fixture
def place(tmp_path: Path, measured: list[Measurement], fitted: LearnedCurve) -> ServiceSettings:
    """A store, and a registry with a champion that learned from it."""
    registry = ModelRegistry(tmp_path / "models")
    registry.set_alias("champion", registry.save(fitted, trained_on={}, metrics={}))
    with Store.open(tmp_path / "store.sqlite") as store:
        store.add(measured)
    return ServiceSettings(store=tmp_path / "store.sqlite", models=tmp_path / "models")


def retrainer(store: Store, place: ServiceSettings, *, every_s: float = 0.0, drift: float = 0.0) -> Retrainer:
    return Retrainer(store, ModelRegistry(place.models), "champion", every_s, drift, trained_s=0.0)


def test_on_schedule_it_retrains_when_there_is_something_new(
    place: ServiceSettings, measured: list[Measurement]
) -> None:
    with Store.open(place.store) as store:
        trainer = retrainer(store, place, every_s=60.0)
        assert trainer.step(100.0) is None  # nothing new
        store.add(slower(measured, 2.0))
        assert trainer.step(59.0) is None  # not yet
        assert trainer.step(60.0) == "learned_curve@2"
        assert trainer.step(1e6) is None  # nothing new
    registry = ModelRegistry(place.models)
    assert [move.version for move in registry.history("champion")] == ["learned_curve@1", "learned_curve@2"]
    manifest = registry.manifest("champion")
    assert manifest.trained_on["retrained_from"] == "learned_curve@1"
    assert manifest.metrics["held out"]["accuracy"] > 0.5


def test_it_retrains_when_measurements_drift(place: ServiceSettings, measured: list[Measurement]) -> None:
    with Store.open(place.store) as store:
        trainer = retrainer(store, place, drift=1.5)
        store.add(slower(measured, 1.01))
        assert trainer.step(1.0) is None
        store.add(slower(measured, 3.0)[:2])  # too few to tell
        store.add(slower(measured, 3.0))
        assert trainer.step(2.0) == "learned_curve@2"


def test_a_candidate_that_is_no_better_is_not_registered(place: ServiceSettings, measured: list[Measurement]) -> None:
    with Store.open(place.store) as store:
        trainer = retrainer(store, place, every_s=1.0)
        store.add(measured[:1])
        assert trainer.step(2.0) is None
    registry = ModelRegistry(place.models)
    assert registry.versions() == ["learned_curve@1"]


def test_a_server_retrains_beside_answering_and_one_call_goes_back(
    place: ServiceSettings, measured: list[Measurement], tmp_path: Path
) -> None:
    (tmp_path / "threadcast.toml").write_text("[service]\nretrain_drift = 1.5\n")

    def champion() -> str:
        return str(json.loads(server.get("/health/ready").data)["model"])

    with running(place, tmp_path) as server:
        assert champion() == "learned_curve@1"
        with Store.open(place.store) as store:
            store.add(slower(measured, 3.0))
        assert eventually(lambda: champion() == "learned_curve@2", LONG_S)
        assert server.post("/v1/models/aliases/champion/rollback", {}).status == 200
        assert champion() == "learned_curve@1"
        server.process.terminate()
        server.process.wait(LONG_S)
        assert not server.left()
    assert "champion is learned_curve@2, in place of learned_curve@1" in server.errors


def test_one_version_cannot_be_retrained(place: ServiceSettings, tmp_path: Path) -> None:
    (tmp_path / "threadcast.toml").write_text("[service]\nretrain_every_s = 60\n")
    line = refused(arguments(place, "--model", "learned_curve@1"), tmp_path)
    assert "retraining moves an alias" in line
