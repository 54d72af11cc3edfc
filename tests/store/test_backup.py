"""Backups: of one moment, whole or absent, and restorable."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path

import pytest

from tests.models.synthetic_ops import make_ops, measure_all
from tests.waiting import eventually
from threadcast.core import Measurement, Op, OpGraph
from threadcast.core.errors import StoreError
from threadcast.store import Store
from threadcast.store.backup import back_up, restore
from threadcast.store.receipts import Receipt


@pytest.fixture(scope="module")
def measured() -> list[Measurement]:
    return list(measure_all(make_ops(8)))


@pytest.fixture
def url(tmp_path: Path) -> str:
    """Where there is no store yet."""
    return str(tmp_path / "store.db")


def fill(url: str, measured: list[Measurement]) -> None:
    with Store.open(url) as store:
        store.add_once(measured, Receipt("k", "digest", "answer"), keep_s=None)
        store.add_graph("net", OpGraph(("a",), (Op("relu"),)))
        store.add_plan("p", "{}", most=5)


def content(url: str | Path) -> tuple[object, ...]:
    with Store.open(url, create=False) as store:
        assert store.check() == []
        return store.measurements(), store.graphs(), store.plan("p"), store.counts()


def test_a_backup_holds_all_and_comes_back(url: str, measured: list[Measurement], tmp_path: Path) -> None:
    fill(url, measured)
    before = content(url)
    back_up(url, tmp_path / "backup.db")
    assert content(tmp_path / "backup.db") == before
    restore(tmp_path / "backup.db", tmp_path / "again.db", replace=False)
    assert content(tmp_path / "again.db") == before
    with Store.open(tmp_path / "again.db") as store:  # ids go on, and keys are remembered
        last = store.last_measurement()
        assert store.add(measured[:1]) == 1
        assert store.last_measurement() == last + 1
        assert store.add_once(measured, Receipt("k", "digest"), keep_s=None) == Receipt("k", "digest", "answer")
    for copy, program in ((back_up, "pg_dump"), (lambda *given: restore(*given[::-1], replace=True), "pg_restore")):
        with pytest.raises(StoreError, match=f"{program} does this for PostgreSQL"):
            copy("postgresql://user@host/base", tmp_path / ("again.db" if program == "pg_restore" else "new.db"))


def test_what_is_there_is_replaced_only_on_demand_and_then_wholly(
    url: str, measured: list[Measurement], tmp_path: Path
) -> None:
    fill(url, measured)
    before = content(url)
    back_up(url, tmp_path / "backup.db")
    with Store.open(url) as live:  # somebody has it open
        live.add(measured * 3)
        after = content(url)
        with pytest.raises(StoreError, match="--replace"):
            restore(tmp_path / "backup.db", url, replace=False)
        assert content(url) == after
        restore(tmp_path / "backup.db", url, replace=True)
        assert (live.measurements(), live.counts()) == (before[0], before[3])
        assert live.add(measured[:1]) == 1
    assert not list(tmp_path.glob(".*"))


def test_a_backup_is_of_one_moment_while_others_write(url: str, measured: list[Measurement], tmp_path: Path) -> None:
    """Every write has two measurements, so a backup has an even number of them."""
    fill(url, [])
    done, written = threading.Event(), []

    def write() -> None:
        with Store.open(url) as store:
            while not done.is_set():
                store.add(measured[:2])
                written.append(2)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        found = []
        for number in range(4):
            target = len(written) + 3
            eventually(lambda least=target: len(written) >= least)
            back_up(url, tmp_path / f"{number}.db")
            with Store.open(tmp_path / f"{number}.db") as store:
                found.append(store.counts().measurements)
                assert store.check() == []
    finally:
        done.set()
        writer.join()
    assert all(count % 2 == 0 for count in found)
    assert found == sorted(set(found))


def test_refusals_change_nothing(tmp_path: Path, measured: list[Measurement]) -> None:
    fill(str(tmp_path / "store.db"), measured)
    before = content(tmp_path / "store.db")
    back_up(tmp_path / "store.db", tmp_path / "backup.db")
    with pytest.raises(StoreError, match="a backup is a new file"):
        back_up(tmp_path / "store.db", tmp_path / "backup.db")
    with pytest.raises(StoreError, match="no store at"):
        back_up(tmp_path / "none.db", tmp_path / "other.db")
    with pytest.raises(StoreError, match="there is no backup"):
        restore(tmp_path / "none.db", tmp_path / "store.db", replace=True)
    (tmp_path / "text.db").write_text("no database")
    with pytest.raises(StoreError, match="not a SQLite database"):
        restore(tmp_path / "text.db", tmp_path / "store.db", replace=True)
    whole = (tmp_path / "backup.db").read_bytes()
    page = 4096
    for at in (3, 7):  # a page in the middle, so that the header is right
        (tmp_path / "bad.db").write_bytes(whole[: at * page] + os.urandom(page) + whole[(at + 1) * page :])
        with pytest.raises(StoreError):
            restore(tmp_path / "bad.db", tmp_path / "store.db", replace=True)
    assert content(tmp_path / "store.db") == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["backup.db", "bad.db", "store.db", "text.db"]


def test_the_wal_of_a_deleted_store_is_not_written_into_a_restored_one(
    tmp_path: Path, measured: list[Measurement]
) -> None:
    path, wal = tmp_path / "store.db", tmp_path / "store.db-wal"
    fill(str(path), measured)
    back_up(path, tmp_path / "backup.db")
    with Store.open(path) as store, closing(sqlite3.connect(path)):
        store.add(measured)
        left = wal.read_bytes()  # as a killed process leaves it
    path.unlink()
    wal.write_bytes(left)
    with pytest.raises(StoreError, match=r"store\.db-wal is left of an earlier store"):
        restore(tmp_path / "backup.db", path, replace=False)
    wal.unlink()
    restore(tmp_path / "backup.db", path, replace=False)
    assert content(path) == content(tmp_path / "backup.db")


SLOW = """
import sys, time
from pathlib import Path
from threadcast.store import backup, sqlite_file
copy = backup._copy_file
def slowly(source, target):
    copy(source, target)
    if {when}:
        print("now", flush=True)
        sys.stdin.read()
backup._copy_file = slowly
{what}
"""


@pytest.mark.parametrize("what", ["back_up", "restore"])
def test_killed_in_the_middle_it_leaves_the_target_as_it_was(
    what: str, tmp_path: Path, measured: list[Measurement]
) -> None:
    """The process is killed when the draft is written and nothing has taken the target's place yet."""
    store, backup_file = tmp_path / "store.db", tmp_path / "backup.db"
    fill(str(store), measured)
    if what == "restore":
        back_up(store, backup_file)
        with Store.open(store) as live:
            live.add(measured)
        call = f"backup.restore(Path({str(backup_file)!r}), Path({str(store)!r}), replace=True)"
    else:
        call = f"backup.back_up(Path({str(store)!r}), Path({str(backup_file)!r}))"
    before = content(store)
    process = subprocess.Popen(
        [sys.executable, "-c", SLOW.format(when="target.name != 'store.db'", what=call)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"now\n"
        process.send_signal(signal.SIGKILL)
    assert content(store) == before
    assert backup_file.exists() == (what == "restore")
