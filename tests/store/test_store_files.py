"""What becomes of files: found, made, migrated, refused."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from sqlalchemy import create_engine

from tests import refused_calls
from tests.store.next_release import NEXT, become_next_release
from threadcast.core import Measurement
from threadcast.core.errors import StoreError
from threadcast.core.settings import Settings
from threadcast.runtime.plans.step_forecasts import is_there
from threadcast.store import Store, sqlite_file
from threadcast.store.database import SCRIPTS
from threadcast.store.schema import REVISIONS, VERSION_TABLE, metadata

Measure = Callable[..., Measurement]


def test_the_default_store_is_in_the_users_data_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    with Store.open() as store:
        assert store.counts().measurements == 0
    assert (tmp_path / "threadcast" / "threadcast.db").is_file()
    with Store.open(Settings.read()["store"], create=False) as same:
        assert same.counts().measurements == 0


@pytest.mark.parametrize(
    "name", ["%41", "%", "100%zz", "a?b=c", "a#b", "a b+c", "é 北", "x@y:z&", "'\"", "\udcff", "a\nb", "~", "%25"]
)
def test_the_default_store_is_in_a_folder_of_any_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, measure: Measure
) -> None:
    home = tmp_path / name / name
    monkeypatch.setenv("XDG_DATA_HOME", str(home))
    url, file = Settings.read()["store"], home / "threadcast/threadcast.db"
    assert not is_there(url)
    for spelling in (url, None, str(file), file):
        with Store.open(spelling) as store:
            store.add([measure()])
        assert is_there(url)
        assert is_there(str(file))
    with Store.open(url, create=False) as store:
        assert (store.counts().measurements, store.check()) == (4, [])
    assert [found for found in tmp_path.rglob("*") if found.is_file()] == [file]


def test_closing_leaves_one_file_in_wal_mode(store_path: Path, measure: Measure) -> None:
    with Store.open(store_path) as store:
        store.add([measure()])
    assert os.listdir(store_path.parent) == [store_path.name]
    with closing(sqlite3.connect(store_path)) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_a_store_that_is_not_there_is_not_made_unless_asked(store_path: Path) -> None:
    with pytest.raises(StoreError, match="no store at"):
        Store.open(store_path, create=False)
    assert os.listdir(store_path.parent) == []


@pytest.mark.parametrize("released", [None, *REVISIONS])
def test_every_schema_ever_released_becomes_the_one_that_the_code_expects(
    store_url: Path | str, released: str | None
) -> None:
    url = f"sqlite:///{store_url}" if isinstance(store_url, Path) else store_url.replace("://", "+psycopg://")
    engine = create_engine(url)
    if released is not None:
        with engine.begin() as connection:
            config = Config()
            config.set_main_option("script_location", SCRIPTS)
            config.attributes["connection"] = connection
            command.upgrade(config, released)
            connection.exec_driver_sql("INSERT INTO batches (idempotency_key) VALUES ('k')")
    with Store.open(store_url) as store:
        assert store.revision == REVISIONS[-1]
        assert store.add([], idempotency_key="k") == 0
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE})
        assert compare_metadata(context, metadata) == []
    engine.dispose()


def test_an_older_store_is_migrated_with_all_that_it_holds(
    store_path: Path, measure: Measure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Store.open(store_path) as store:
        store.add([measure()])
        before = store.measurements()
    become_next_release(tmp_path / "migrations", monkeypatch)
    with Store.open(store_path) as store:
        assert store.revision == NEXT
        assert [replace(m, stored_s=None) for m in store.measurements()] == [replace(m, stored_s=None) for m in before]
        assert [m.stored_s for m in store.measurements()] == [1.0]
        assert store.check() == []


def test_a_folder_that_cannot_be_written_to_is_named_as_the_reason(store_path: Path) -> None:
    Store.open(store_path).close()
    beside = store_path.with_name(f"{store_path.name}-shm")
    beside.symlink_to(beside)  # SQLite cannot make this file, as in a read-only folder
    with pytest.raises(StoreError, match=rf"{store_path}: unable to open.*its folder must not be read-only"):
        Store.open(store_path)


def test_a_newer_schema_is_refused_and_left_alone(store_path: Path) -> None:
    Store.open(store_path).close()
    with closing(sqlite3.connect(store_path)) as connection:
        connection.execute(f"UPDATE {VERSION_TABLE} SET version_num = '9999'")
        connection.commit()
    before = store_path.read_bytes()
    with pytest.raises(StoreError, match=r"'9999'.*newer threadcast.*upgrade"):
        Store.open(store_path)
    assert (store_path.read_bytes(), os.listdir(store_path.parent)) == (before, [store_path.name])


def foreign(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE measurements (x)")


def foreign_in_wal_mode(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("CREATE TABLE alembic_version (version_num)")


def whole(path: Path, *, keep: float) -> None:
    Store.open(path).close()
    with path.open("r+b") as file:
        file.truncate(int(path.stat().st_size * keep))


def damaged_inside(path: Path) -> None:
    Store.open(path).close()
    content = bytearray(path.read_bytes())
    content[100:400] = b"\xff" * 300  # the root of the table of tables
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: path.write_text("m,k,n\n" * 50), "not a SQLite database"),
        (lambda path: path.write_bytes(b""), "truncated"),
        (lambda path: path.write_bytes(b"SQLite"), "truncated"),
        (lambda path: whole(path, keep=0.5), "truncated"),
        (lambda path: whole(path, keep=0.99), "truncated"),
        (foreign, "not a measurement store"),
        (foreign_in_wal_mode, "not a measurement store"),
        (damaged_inside, "damaged"),
        (Path.mkdir, "directory"),
    ],
)
def test_what_is_no_store_is_refused_and_left_byte_for_byte(
    store_path: Path, make: Callable[[Path], object], message: str
) -> None:
    make(store_path)
    content = store_path.read_bytes() if store_path.is_file() else None
    with pytest.raises(StoreError, match=message):
        Store.open(store_path)
    assert os.listdir(store_path.parent) == [store_path.name]
    assert content is None or store_path.read_bytes() == content


def test_a_store_left_in_the_middle_of_a_checkpoint_is_whole(
    store_path: Path, tmp_path: Path, measure: Measure
) -> None:
    wal = Path(f"{store_path}-wal")
    with Store.open(store_path) as store:
        before = store_path.read_bytes()
        store.add([measure(i) for i in range(1, 41)])
        log = wal.read_bytes()
    after = store_path.read_bytes()
    assert len(before) < len(after)
    for copied in range(0, len(after), 4096):  # as when the process is killed or the disk is full by then
        store_path.write_bytes(after[:copied] + before[copied:])
        wal.write_bytes(log)
        with Store.open(store_path) as store:
            assert store.counts().measurements == 40
            assert store.check() == []


@pytest.mark.parametrize("read_by_another", [False, True])
def test_a_new_file_appears_only_with_all_that_is_in_its_wal(store_path: Path, read_by_another: bool) -> None:
    with ExitStack() as stack:

        def fill(draft: Path) -> None:  # what is left where no checkpoint could be made, as on a full disk
            connections = [stack.enter_context(closing(sqlite3.connect(draft))) for _ in range(2)]
            connections[0].execute("PRAGMA journal_mode = WAL")
            if read_by_another:
                connections[1].execute("BEGIN")
                connections[1].execute("SELECT * FROM sqlite_master").fetchall()
            connections[0].executescript(f"CREATE TABLE {VERSION_TABLE} (a); CREATE TABLE t (a)")

        if read_by_another:
            with pytest.raises(StoreError, match=f"{store_path} cannot be created: .*; free some space"):
                sqlite_file.create(store_path, fill)
            assert os.listdir(store_path.parent) == []
        else:
            sqlite_file.create(store_path, fill)
            sqlite_file.require_store(store_path, version_table=VERSION_TABLE)


OPENED = "import sys\nfrom threadcast.store import Store\nStore.open(sys.argv[1]).add([])\n"


@pytest.mark.skipif(not refused_calls.POSSIBLE, reason="calls are refused by their numbers on x86-64")
@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize(
    ("lacking", "words"),
    [
        ("hard links", "its file system makes no hard links (Operation not permitted)"),
        ("shared mmap", "its file system shares no memory between processes (mmap)"),
    ],
)
def test_what_a_file_system_lacks_is_named(
    store_path: Path, measure: Measure, lacking: str, words: str, known: bool
) -> None:
    if known:
        with Store.open(store_path) as store:
            store.add([measure()])
    done = subprocess.run(
        [*refused_calls.command(lacking), sys.executable, "-c", OPENED, str(store_path)], capture_output=True, text=True
    )
    if known and lacking == "hard links":
        assert (done.returncode, done.stderr) == (0, "")
        return
    assert words in (said := done.stderr.splitlines()[-1])
    assert "StoreError" in said
    assert "choose another place" in said
    assert "free some space" not in said
    assert os.path.exists(store_path) == known


def left_without_database(path: Path, measure: Measure) -> bytes:
    """What is in the WAL of a store that was killed, and whose database was then deleted."""
    with Store.open(path) as store, closing(sqlite3.connect(path)):
        store.add([measure()])
        wal = path.with_name(path.name + "-wal")
        left = wal.read_bytes()
    path.unlink()
    wal.write_bytes(left)
    return left


def test_a_wal_that_is_left_is_not_written_into_a_new_store(store_path: Path, measure: Measure) -> None:
    left = left_without_database(store_path, measure)
    wal = store_path.with_name(store_path.name + "-wal")
    with pytest.raises(StoreError, match=rf"{wal} is left of an earlier store .* move or delete"):
        Store.open(store_path)
    assert os.listdir(store_path.parent) == [wal.name]
    assert wal.read_bytes() == left
    wal.unlink()
    with Store.open(store_path) as store:
        assert store.counts().measurements == 0


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("nonsense://x/y", "no store is kept in nonsense"),
        ("sqlite://", "needs a file"),
        ("sqlite:///a.sqlite?mode=ro", "no options"),
        ("://", "not a database URL"),
    ],
)
def test_a_url_that_cannot_be_used_is_a_store_error(url: str, message: str) -> None:
    with pytest.raises(StoreError, match=message):
        Store.open(url)


def test_a_row_that_was_damaged_is_an_error_that_check_finds(store_path: Path, measure: Measure) -> None:
    with Store.open(store_path) as store:
        store.add([measure()])
        with closing(sqlite3.connect(store_path)) as connection:
            connection.execute("UPDATE measurements SET samples = x'00'")
            connection.commit()
        with pytest.raises(StoreError, match="damaged row"):
            store.measurements()
        assert any("damaged row" in line for line in store.check())


def test_check_finds_an_op_that_no_longer_has_its_key(store_path: Path, measure: Measure) -> None:
    with Store.open(store_path) as store:
        store.add([measure()])
        with closing(sqlite3.connect(store_path)) as connection:
            connection.execute("UPDATE ops SET key = 'mm-0'")
            connection.commit()
        assert store.check() == [f"ops.key mm-0 would now be {measure().op.key}"]
