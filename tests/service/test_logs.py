"""The log names requests and keys, shows no key, and can be read by a program."""

from __future__ import annotations

import json
import logging
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import urllib3

from tests.service.service_data import OPS
from tests.service.test_server import LONG_S, running
from threadcast.service import logs
from threadcast.service.keys import add_key
from threadcast.service.logs import Access, AccessLog
from threadcast.service.settings import ServiceSettings

ACCESS = Access("192.0.2.1", "GET", "/v1/info", 200, 10, 1.5, "me-1", "ci")


@pytest.fixture
def written(capsys: pytest.CaptureFixture[str]) -> Iterator[Callable[[], str]]:
    """Reads what was written to stderr; the loggers are as they were afterwards."""
    root, access = logging.getLogger(), logging.getLogger("threadcast.access")
    before = [(log, list(log.handlers), log.level, log.propagate) for log in (root, access)]
    yield lambda: capsys.readouterr().err
    for log, handlers, level, propagate in before:
        log.handlers[:], log.propagate = handlers, propagate
        log.setLevel(level)


def of_request() -> dict[str, str]:
    return {"request_id": "me-1", "key": "ci"}


@pytest.mark.parametrize("form", ["text", "json"])
def test_no_line_shows_a_key_or_is_forged(written: Callable[[], str], tmp_path: Path, form: logs.Form) -> None:
    token = add_key(tmp_path / "keys.json", "ci", ["read"])
    logs.configure(form)
    try:
        raise RuntimeError(f"a fault with {token}")
    except RuntimeError:
        logging.getLogger("a").exception("%s\n2026-01-01 WARNING forged \x1b[2J", token)
    text = written()
    assert token not in text
    assert text.count("tc_(hidden)") == 2
    assert "\x1b" not in text
    assert not any(line.startswith("2026-01-01") for line in text.splitlines())


def test_the_access_log_is_written_when_it_is_closed(written: Callable[[], str]) -> None:
    logs.configure("json")
    access = AccessLog()
    for i in range(100):
        access.note(replace(ACCESS, bytes=i))
    access.close()
    lines = [json.loads(line) for line in written().splitlines()]
    assert [line["bytes"] for line in lines] == list(range(100))
    assert lines[0]["message"] == '192.0.2.1 "GET /v1/info" 200 0 B 1.5 ms'
    members = {"client", "method", "path", "status", "bytes", "duration_ms", "request_id", "key"}
    assert members < lines[0].keys()


def test_lines_are_dropped_where_nobody_reads_them_and_counted(
    written: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "WAITING_LINES", 5)
    logs.configure("text")
    (handler,) = logging.getLogger().handlers
    access = AccessLog()
    handler.acquire()  # as a pipe that is full
    for _ in range(20):
        access.note(ACCESS)
    handler.release()
    access.close()
    text = written()
    shown, dropped = text.count("GET"), re.search(r"(\d+) lines of the access log", text)
    assert dropped is not None
    assert int(dropped[1]) + shown == 20
    assert shown <= 7


def test_a_service_logs_every_request_with_its_id_and_the_name_of_its_key(
    settings: ServiceSettings, tmp_path: Path
) -> None:
    """Also those that the server itself refuses, and what the application says meanwhile."""
    shutil.copytree(settings.models, tmp_path / "registry")
    token = add_key(tmp_path / "keys.json", "ci", ["read"])
    (tmp_path / "threadcast.toml").write_text(
        '[service]\naccess_log = true\nlog_format = "json"\nmax_body_bytes = 999\n'
    )
    mine = replace(settings, models=tmp_path / "registry")
    with running(mine, tmp_path, "--keys", str(tmp_path / "keys.json")) as server:

        def send(method: str, path: str, request_id: str, body: bytes = b"") -> urllib3.BaseHTTPResponse:
            headers = {"Authorization": f"Bearer {token}", "X-Request-Id": request_id}
            return urllib3.request(method, server.url + path, body=body, headers=headers, timeout=LONG_S, retries=False)

        assert send("GET", f"/v1/info?key={token}", "ask-1").headers["X-Request-Id"] == "ask-1"
        long = send("POST", "/v1/predictions", "ask-2", b"x" * 1000)
        assert (long.status, long.headers["X-Request-Id"], long.json()["reference"]) == (413, "ask-2", "ask-2")
        assert send("GET", "/v1/models/nobody", "ask-3").json()["reference"] == "ask-3"
        (mine.models / "versions" / "roofline@2" / "model.json").write_text("{}")
        assert send("GET", f"/v1/curves/{OPS[0].key}?model=roofline@2", "ask-4").status == 503
        unknown = urllib3.request("GET", server.url + f"/v1/models/{token}", retries=False)
        server.end()
    assert token not in server.errors
    lines: list[dict[str, Any]] = [json.loads(line) for line in server.errors.splitlines()]
    access = {line["request_id"]: line for line in lines if line["logger"] == "threadcast.access"}
    found = [tuple(access[f"ask-{i}"].get(name) for name in ("path", "status", "key")) for i in range(1, 5)]
    assert found == [
        ("/v1/info", 200, "ci"), ("/v1/predictions", 413, None), ("/v1/models/nobody", 404, "ci"),
        (f"/v1/curves/{OPS[0].key}", 503, "ci"),
    ]  # fmt: skip
    assert access["ask-1"]["bytes"] > 100
    assert 0 < access["ask-1"]["duration_ms"] < LONG_S * 1e3
    assert access[unknown.headers["X-Request-Id"]]["path"] == "/v1/models/tc_(hidden)"
    (failed,) = [line for line in lines if line["logger"] == "threadcast.service.problems"]
    assert (failed["level"], failed["request_id"], failed["key"]) == ("ERROR", "ask-4", "ci")
    assert "ArtefactError" in failed["exc_info"]
