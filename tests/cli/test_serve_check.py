"""`threadcast serve --check`: a line for each thing that was looked at, and exit code 1 where one is wrong."""

from __future__ import annotations

import json
import socket
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.cli.commands import invoke
from threadcast.core import Case, Machine, Measurement, Op, Sample
from threadcast.models.hill_climb import HillClimb
from threadcast.models.registry import ModelRegistry
from threadcast.service.keys import add_key
from threadcast.store import Store


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("THREADCAST_STORE", "store.db")
    monkeypatch.setenv("THREADCAST_MODELS", "models")
    Store.open("store.db").close()
    registry = ModelRegistry(tmp_path / "models")
    registry.set_alias("champion", registry.save(HillClimb(), trained_on={}, metrics={}))
    add_key(tmp_path / "keys.json", "ci", ["read"])
    return tmp_path


def wrong(*arguments: str) -> dict[str, str]:
    """What is wrong, by what was looked at."""
    result = invoke("serve", "--check", "--port", "0", *arguments, "--json")
    found: dict[str, Any] = json.loads(result.stdout)
    failed = {one["what"]: one["said"] for one in found["checks"] if not one["ok"]}
    assert result.exit_code == (1 if failed else 0)
    return failed


def test_what_is_in_order_is_said_line_by_line(folder: Path) -> None:
    assert wrong() == wrong("--keys", "keys.json") == {}
    shown = invoke("serve", "--check", "--port", "0", "--keys", "keys.json").stdout
    assert "ok     model: champion is hill_climb@1" in shown
    assert "ok     keys: 1 in keys.json" in shown


def test_each_thing_that_is_wrong_is_named(folder: Path) -> None:
    (folder / "bad.json").write_text("{}")
    (folder / "bad.pem").write_text("no certificate")
    found = wrong(
        "--store",
        "bad.json",
        "--model",
        "missing",
        "--keys",
        "bad.json",
        "--tls-cert",
        "bad.pem",
        "--host",
        "no.such.host",
    )
    assert set(found) == {"store", "model", "keys", "tls", "address"}
    assert "bad.json is not a SQLite database" in found["store"]
    assert "no model or alias 'missing'" in found["model"]
    assert "bad.json is no key file" in found["keys"]
    assert "bad.pem" in found["tls"]


def test_a_store_that_would_be_made_is_in_order_and_is_not_made(folder: Path) -> None:
    before = sorted(folder.iterdir())
    assert wrong("--store", "new/none.db") == {}
    assert "none yet; one will be made at new/none.db" in invoke("serve", "--check", "--store", "new/none.db").stdout
    assert sorted(folder.iterdir()) == before
    (folder / "file").touch()
    assert set(wrong("--store", "file/none.db")) == {"store"}
    (folder / "left.db-wal").write_text("left")
    assert "left of an earlier store" in wrong("--store", "left.db")["store"]


def test_a_store_that_no_prediction_can_be_made_from_is_found(folder: Path) -> None:
    machine = Machine.uniform("m", 1)
    with Store.open("store.db") as store:
        store.add([Measurement(Op("mm"), machine, Case(1), (Sample(1.0),))])
    assert wrong() == {}
    with closing(sqlite3.connect("store.db")) as connection:
        connection.execute("UPDATE machines SET document = '{'")
        connection.commit()
    found = wrong()
    assert set(found) == {"prediction"}
    assert "holds a damaged row" in found["prediction"]


def test_a_port_in_use_and_keys_that_others_may_write_are_found(folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert set(wrong("--port", str(taken.getsockname()[1]))) == {"address"}
    (folder / "keys.json").chmod(0o666)
    assert "chmod 600" in wrong("--keys", "keys.json")["keys"]


def test_an_address_that_others_reach_needs_keys(folder: Path) -> None:
    assert set(wrong("--host", "0.0.0.0")) == {"address"}
    assert wrong("--host", "0.0.0.0", "--keys", "keys.json") == wrong("--host", "0.0.0.0", "--allow-public") == {}
