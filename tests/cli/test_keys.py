"""`threadcast keys`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.commands import invoke
from threadcast.service.keys import KeyFile


@pytest.fixture(autouse=True)
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("THREADCAST_SERVICE_KEYS", "keys.json")
    return tmp_path / "keys.json"


def test_a_key_is_printed_once_and_then_known_by_its_name(file: Path) -> None:
    token = invoke("keys", "add", "ci", "--scope", "ingest", "--scope", "read").stdout.strip()
    found = KeyFile(file).find(token)
    assert found is not None
    assert (found.name, found.scopes) == ("ci", ("read", "ingest"))
    listed = invoke("keys", "list", "--json").stdout
    assert [(key["name"], key["scopes"]) for key in json.loads(listed)["keys"]] == [("ci", ["read", "ingest"])]
    assert token not in listed + invoke("keys", "list").stdout


def test_without_a_file_it_says_how_to_name_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("THREADCAST_SERVICE_KEYS")
    for arguments in (["add", "ci"], ["list"], ["remove", "ci"]):
        result = invoke("keys", *arguments)
        assert (result.exit_code, "--keys" in result.stderr) == (1, True)
