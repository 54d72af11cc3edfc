"""The file of the keys."""

from __future__ import annotations

import contextlib
import json
import os
import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from threadcast.core.errors import ConfigError, InvalidInput
from threadcast.service import keys as keys_module
from threadcast.service.keys import KeyFile, add_key, read_keys, remove_key


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "keys.json"


def test_a_key_is_found_and_its_file_does_not_hold_it(path: Path) -> None:
    token = add_key(path, "ci", ["ingest", "read"])
    assert token.startswith("tc_")
    assert len(token) > 40
    assert token not in path.read_text()
    assert token.removeprefix("tc_") not in path.read_text()
    found = KeyFile(path).find(token)
    assert found is not None
    assert (found.name, found.scopes) == ("ci", ("read", "ingest"))


def test_the_file_is_for_its_owner(path: Path) -> None:
    os.umask(os.umask(0))
    add_key(path, "a", ["read"])
    add_key(path, "b", ["read"])
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.needs_root
def test_a_file_keeps_its_owner_and_group(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if os.geteuid():
        pytest.skip("only root may give files away")
    add_key(path, "a", ["read"])
    path.chmod(0o640)
    os.chown(path, 1234, 2345)
    add_key(path, "b", ["read"])
    found = path.stat()
    assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (1234, 2345, 0o640)

    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "chown", refuse)
    add_key(path, "c", ["read"])
    found = path.stat()
    assert found.st_gid != 2345
    assert stat.S_IMODE(found.st_mode) == 0o600  # not for this group


def test_keys_come_and_go_while_the_file_is_in_use(path: Path) -> None:
    first = add_key(path, "first", ["admin"])
    keys = KeyFile(path)
    second = add_key(path, "second", ["read"])
    assert keys.find(second) is not None
    remove_key(path, "first")
    assert keys.find(first) is None
    assert keys.find(second) is not None


def test_admin_allows_everything_and_the_others_only_themselves(path: Path) -> None:
    for scope in ("read", "ingest", "admin"):
        add_key(path, scope, [scope])
    allowed = {
        key.name: [scope for scope in ("read", "ingest", "admin") if key.allows(scope)] for key in read_keys(path)
    }
    assert allowed == {"read": ["read"], "ingest": ["ingest"], "admin": ["read", "ingest", "admin"]}


@pytest.mark.parametrize(
    ("name", "scopes"), [("", ["read"]), ("A b", ["read"]), ("a\n", ["read"]), ("a", []), ("a", ["root"])]
)
def test_what_is_no_key_is_refused_and_not_written(path: Path, name: str, scopes: list[str]) -> None:
    with pytest.raises(InvalidInput):
        add_key(path, name, scopes)
    assert not path.exists()


def test_of_keys_that_are_added_and_removed_at_once_none_is_lost(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add_key(path, "old", ["read"])
    write, both = keys_module._write, threading.Barrier(2)

    def write_together(*arguments: object) -> None:
        with contextlib.suppress(threading.BrokenBarrierError):
            both.wait(0.2)  # both have read the file, where nothing keeps them from it
        write(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(keys_module, "_write", write_together)
    with ThreadPoolExecutor() as pool:
        adding, removing = pool.submit(add_key, path, "new", ["read"]), pool.submit(remove_key, path, "old")
        adding.result()
        removing.result()
    assert [key.name for key in read_keys(path)] == ["new"]


GOOD = {"name": "a", "scopes": ["read"], "sha256": "0" * 64, "created": "2026-01-01T00:00:00+00:00"}


@pytest.mark.parametrize(
    "content",
    [
        "", "{}", '{"schema": "threadcast.keys/2", "keys": []}',
        *(json.dumps({"schema": "threadcast.keys/1", "keys": keys}) for keys in (
            {}, [1], [GOOD, GOOD], [{**GOOD, "sha256": "0"}], [{**GOOD, "scopes": ["root"]}], [{**GOOD, "scopes": [1]}],
            [{**GOOD, "scopes": []}],
        )),
    ],
)  # fmt: skip
def test_a_file_that_is_none_lets_nobody_in(path: Path, content: str) -> None:
    token = add_key(path, "a", ["read"])
    keys = KeyFile(path)
    path.write_text(content)
    with pytest.raises(ConfigError, match=str(path)):
        keys.find(token)
    with pytest.raises(ConfigError, match=str(path)):
        KeyFile(path)
