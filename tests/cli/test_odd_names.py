"""Files and folders whose names are not UTF-8: commands take them, and say them escaped."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.cli.commands import invoke
from threadcast.store import Store

NAME = os.fsdecode(b"b\xffd")
SAID = r"b\udcffd"
TABLE = "op,threads,seconds\n" + "".join(f"mm{i},{t},{(i + 1) / t}\n" for i in range(4) for t in (1, 2))


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current one: with a folder of this name, in which there is a table of it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("THREADCAST_STORE", f"{NAME}/store.db")
    (tmp_path / NAME).mkdir()
    (tmp_path / NAME / f"{NAME}.csv").write_text(TABLE)
    return tmp_path / NAME


@pytest.mark.parametrize("store", [f"{NAME}/other.db", f"sqlite:///{NAME}/other.db"])
def test_tables_and_stores_come_and_go(folder: Path, store: str) -> None:
    for command in (
        ["import", f"{NAME}/{NAME}.csv"], ["export", f"{NAME}/out.csv"], ["export", f"{NAME}/out.parquet"],
        ["import", f"{NAME}/out.parquet"], ["backup", f"{NAME}/backup.db"], ["check"], ["info"],
        ["restore", f"{NAME}/backup.db", "--store", store],
    ):  # fmt: skip
        for flags in ([], ["--json"]):
            done = invoke("db", *command, *flags)
            if flags and done.exit_code == 1:
                assert "holds measurements already" in done.stderr or f"{SAID}/backup.db exists" in done.stderr
                continue
            assert done.exit_code == 0, done.output
            assert not flags or json.loads(done.stdout)
    with Store.open(store, create=False) as opened:
        assert [machine.name for machine in opened.machines()] == [SAID]  # by the file's name
        assert (opened.counts().measurements, opened.check()) == (8, [])


@pytest.mark.parametrize(
    "words",
    [
        ["db", "import", f"{NAME}.csv"], ["db", "import", f"{NAME}/{NAME}.csv", "--machine", NAME],
        ["db", "export", "out.csv", "--network", NAME], ["plan", f"{NAME}/none.json"], ["plan", f"{NAME}/{NAME}.csv"],
        ["models", "show", NAME], ["predict", f"{NAME}.py:build"], ["exec", "--", NAME], [NAME],
    ],
)  # fmt: skip
@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_errors_say_the_name(words: list[str], flags: list[str]) -> None:
    done = invoke(*(words if "exec" in words else words + flags))
    assert done.exit_code in (1, 2, 127)
    assert SAID in done.stderr or "b\N{REPLACEMENT CHARACTER}d" in done.stderr  # click's own
    if flags and done.exit_code == 1 and "exec" not in words:
        assert json.loads(done.stdout)["error"]["message"]
