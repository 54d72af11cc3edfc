"""What `threadcast serve --check` looks at: everything that would keep a service from starting or from answering."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from threadcast.core.errors import NoStore, ThreadcastError
from threadcast.service.settings import ServiceSettings


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was checked: whether it is in order, and what was found."""

    what: str
    ok: bool
    said: str


def check(settings: ServiceSettings, *, host: str, port: int, allow_public: bool) -> Iterator[Finding]:
    """Check the store, the model, a prediction with both, the keys, TLS, the address, the folders that are written to,
    and other settings.

    Nothing is changed, but that an older store is brought up to date, as by `threadcast serve`. Where store or model
    are not in order there is no finding on predictions.
    """
    checks: tuple[tuple[str, Callable[[], str]], ...] = (
        ("store", lambda: _store(settings)),
        ("model", lambda: _model(settings)),
        ("prediction", lambda: _prediction(settings)),
        ("keys", lambda: _keys(settings)),
        ("tls", lambda: _tls(settings)),
        ("address", lambda: _address(settings, host, port, allow_public=allow_public)),
        ("temporary files", lambda: _writable(Path(tempfile.gettempdir()))),
    )
    failed = set[str]()
    for what, find in checks:
        if what == "prediction" and failed:
            continue
        try:
            yield Finding(what, True, find())
        except (ThreadcastError, OSError) as error:
            failed.add(what)
            yield Finding(what, False, str(error))


def _store(settings: ServiceSettings) -> str:
    from threadcast.store import Store

    try:
        with Store.open(settings.store, create=False) as store:
            store.add([])  # fails where it cannot be written to
            return f"{store.name} has schema {store.revision} and can be written to"
    except NoStore:
        return _new_store(settings)


def _new_store(settings: ServiceSettings) -> str:
    """Check whether a store can be made, which `threadcast serve` does where there is none."""
    from threadcast.store import sqlite_file
    from threadcast.store.database import locate

    url, path = locate(settings.store)
    if path is None:
        return f"{url.render_as_string()} is empty; a store will be made there"
    sqlite_file.refuse_journals(path)
    folder = next(folder for folder in path.absolute().parents if os.path.lexists(folder))
    return f"none yet; one will be made at {path}: {_writable(folder)}"


def _prediction(settings: ServiceSettings) -> str:
    """Predict as `threadcast serve` does before it answers; without a store, with an empty one."""
    from threadcast.service.app import create_app
    from threadcast.service.context import EXTENSION, Context
    from threadcast.service.readiness import predict_one
    from threadcast.store import Store

    with tempfile.TemporaryDirectory() as empty:
        try:
            Store.open(settings.store, create=False).close()
        except NoStore:
            settings = replace(settings, store=Path(empty, "store.sqlite"))
        app = create_app(replace(settings, keys=None))
        here: Context = app.extensions[EXTENSION]
        try:
            return f"made by {predict_one(here.store, here.predictor)}"
        finally:
            here.store.close()


def _model(settings: ServiceSettings) -> str:
    from threadcast.models.registry import ModelRegistry
    from threadcast.models.untrained import VERSION

    registry = ModelRegistry(settings.models)
    if settings.untrained:
        return f"none is registered as {settings.model} in {settings.models}: {VERSION} forecasts"
    registry.load(settings.model)
    return f"{settings.model} is {registry.manifest(settings.model).version}, in {settings.models}"


def _keys(settings: ServiceSettings) -> str:
    from threadcast.service.keys import read_keys

    if settings.keys is None:
        return "none: whoever can reach the service may do everything"
    keys = read_keys(settings.keys)
    if not any(key.allows("read") for key in keys):
        raise OSError(f"{settings.keys} has no key that may read; make one with `threadcast keys add`")
    if settings.keys.stat().st_mode & 0o022:
        raise OSError(f"{settings.keys} can be written to by others, who could let themselves in; run chmod 600")
    return f"{len(keys)} in {settings.keys}"


def _tls(settings: ServiceSettings) -> str:
    from threadcast.service.server import tls_context

    return "none: plain HTTP" if tls_context(settings) is None else f"{settings.tls_cert} and its key fit"


def _address(settings: ServiceSettings, host: str, port: int, *, allow_public: bool) -> str:
    from threadcast.service.server import listen

    with listen(host, port, allow_public=allow_public, keys=settings.keys is not None):
        return f"{host}:{port} is free"


def _writable(folder: Path) -> str:
    with tempfile.NamedTemporaryFile(dir=folder) as file:
        file.write(b"\0" * 4096)
        file.flush()
        os.fsync(file.fileno())
    return f"{folder} can be written to"
