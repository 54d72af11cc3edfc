"""A service over a store of synthetic measurements and a registry with a fitted model."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from flask.testing import FlaskClient

from tests.service.service_data import GRAPH, MEASURED
from tests.waiting import HANGS_S
from threadcast.models.registry import ModelRegistry
from threadcast.models.roofline import Roofline
from threadcast.service.app import Service, create_app
from threadcast.service.settings import ServiceSettings
from threadcast.store import Store


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A registry with two versions of a fitted roofline, the first of them promoted."""
    root = tmp_path_factory.mktemp("models")
    registry = ModelRegistry(root)
    first = registry.save(Roofline().fit(MEASURED), trained_on={"measurements": len(MEASURED)}, metrics={})
    registry.save(Roofline().fit(MEASURED[:8]), trained_on={"measurements": 8}, metrics={"accuracy": 0.5})
    registry.set_alias("champion", first)
    return root


@pytest.fixture(scope="session")
def filled_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store that holds MEASURED and GRAPH, to be copied: making one waits for the disk many times."""
    path = tmp_path_factory.mktemp("store") / "store.sqlite"
    with Store.open(path) as store:
        store.add(MEASURED)
        store.add_graph("net", GRAPH)
    return path


@pytest.fixture
def settings(tmp_path: Path, models: Path, filled_store: Path) -> ServiceSettings:
    """Settings over a store of its own that holds MEASURED and GRAPH."""
    path = tmp_path / "store.sqlite"
    shutil.copy(filled_store, path)
    return ServiceSettings(store=path, models=models, deadline_s=HANGS_S)


@pytest.fixture
def app(settings: ServiceSettings) -> Iterator[Service]:
    """The application over `settings`."""
    made = create_app(settings)
    yield made
    made.extensions["threadcast"].store.close()


@pytest.fixture
def client(app: Service) -> FlaskClient:
    """A client of `app`."""
    return app.test_client()
