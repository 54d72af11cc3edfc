"""`threadcast db` on stores in a folder of its own."""

from __future__ import annotations

import json
import os
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from tests.cli.commands import invoke
from threadcast.core import Case, Machine, Measurement, Op, OpGraph, Sample
from threadcast.store import Store
from threadcast.store.long_form import read_long_form
from threadcast.store.schema import REVISIONS

TABLE = "machine,op,threads,repeat,seconds\nbox,gemm,1,1,0.5\nbox,gemm,1,2,0.6\nbox,gemm,4,1,0.2\n"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("THREADCAST_STORE", "store.db")
    (tmp_path / "table.csv").write_text(TABLE)
    return tmp_path


def db(*arguments: str) -> Result:
    return invoke("db", *arguments)


def document(*arguments: str) -> dict[str, Any]:
    result = db(*arguments, "--json")
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_an_imported_file_is_in_the_store_and_comes_out_equal(folder: Path) -> None:
    (row,) = document("import", "table.csv")["files"]
    assert row == {"file": "table.csv", "measurements": 2, "samples": 3}
    for name in ("out.csv", "out.csv.gz", "out.parquet"):
        assert document("export", name)["samples"] == 3
        assert read_long_form(folder / name) == read_long_form(folder / "table.csv")


def test_what_has_no_time_keeps_the_date_of_storing_in_another_store(folder: Path) -> None:
    def last_of(path: str) -> float | None:
        with Store.open(path) as store:
            return store.measurements()[-1].stored_s

    document("import", "table.csv")
    document("export", "out.csv")
    document("import", "out.csv", "--store", "other.db")
    assert last_of("other.db") == last_of("store.db")


def test_info_counts_what_there_is(folder: Path) -> None:
    document("import", "table.csv")
    with Store.open("store.db") as store:
        store.add_graph("net", OpGraph(("a",), (Op("relu"),)))
    found = document("info")
    assert (found["measurements"], found["samples"], found["ops"]) == (2, 3, 2)
    assert (found["graphs"], found["schema"]) == (["net"], REVISIONS[-1])
    assert [(machine["name"], machine["cores"]) for machine in found["machines"]] == [("box", 4)]
    shown = db("info").stdout
    assert "2 measurements of 2 ops, 3 samples" in shown
    assert found["machines"][0]["fingerprint"] in shown


def test_a_file_is_added_once_whatever_its_name(folder: Path) -> None:
    (folder / "copy.csv").write_text(TABLE)
    first, copy = document("import", "table.csv", "copy.csv")["files"]
    assert (first["measurements"], copy["measurements"]) == (2, 0)
    again = db("import", "copy.csv")
    assert "copy.csv was added before" in again.stderr
    assert document("info")["samples"] == 3


def test_measurements_of_an_export_that_are_there_are_not_added_again(folder: Path) -> None:
    document("import", "table.csv")
    machine, timed = Machine.uniform("m", 2), {"time": "2026-01-01T00:00:00Z"}
    made = [Measurement(Op("mm"), machine, Case(n), (Sample(1.0),), timed) for n in (1, 1, 2)]
    with Store.open("store.db") as store:
        store.add(made[:2])  # a true repetition
        for name in ("first.csv", "first.parquet"):
            document("export", name)
        store.add(made[2:])
    document("export", "all.csv")
    again = db("import", "first.csv", "first.parquet", "all.csv", "--json")
    assert [row["measurements"] for row in json.loads(again.stdout)["files"]] == [0, 0, 0]
    assert "all.csv: 5 of 5 measurements are in the store already" in again.stderr
    assert document("info")["samples"] == 6
    first, whole, twice = document("import", "first.csv", "all.csv", "first.parquet", "--store", "other.db")["files"]
    assert [(row["measurements"], row["samples"]) for row in (first, whole, twice)] == [(4, 5), (1, 1), (0, 0)]


def test_a_file_that_grows_while_it_is_read_is_refused_and_added_later(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_and_append(path: Path, **named: str | None) -> list[Measurement]:
        found = read_long_form(path, **named)
        with path.open("a") as file:
            file.write("box,gemm,2,1,0.3\n")
        return found

    with monkeypatch.context() as patch:
        patch.setattr("threadcast.store.long_form.read_long_form", read_and_append)
        growing = db("import", "table.csv")
    assert (growing.exit_code, "table.csv has changed while it was read" in growing.stderr) == (1, True)
    assert not (folder / "store.db").exists()
    assert document("import", "table.csv")["files"][0]["samples"] == 4


def test_when_one_file_is_bad_nothing_is_added(folder: Path) -> None:
    (folder / "bad.csv").write_text(TABLE.replace("0.2", "-1"))
    result = db("import", "table.csv", "bad.csv", "--json")
    assert result.exit_code == 1
    error = json.loads(result.stdout)["error"]
    assert error["type"] == "FormatError"
    assert "bad.csv, line 4, column 'seconds'" in error["message"]
    assert not (folder / "store.db").exists()


def test_an_export_is_narrowed(folder: Path) -> None:
    document("import", "table.csv")
    (folder / "other.csv").write_text("machine,op,threads,repeat,seconds,feature.kind\nnas,conv,2,1,3.0,convolution\n")
    document("import", "other.csv")
    assert document("export", "conv.csv", "--kind", "convolution")["measurements"] == 1
    machines = {machine["name"]: machine["fingerprint"] for machine in document("info")["machines"]}
    assert document("export", "box.csv", "--machine", machines["box"])["measurements"] == 2
    nothing = db("export", "none.csv", "--network", "absent")
    assert (nothing.exit_code, "no measurements" in nothing.stderr) == (1, True)
    assert not (folder / "none.csv").exists()


def test_names_that_no_table_can_hold_are_left_out_of_an_export(folder: Path) -> None:
    document("import", "table.csv")
    machine = Machine.uniform("m", 2)
    with Store.open("store.db") as store:
        store.add([Measurement(Op("x\ny"), machine, Case(1), (Sample(1.0),))])
        store.add([Measurement(Op("mm"), machine, Case(2), (Sample(1.0, {"\0": 1.0}),))])
    result = db("export", "out.csv", "--json")
    assert (result.exit_code, json.loads(result.stdout)["measurements"]) == (0, 2)
    assert "at 1 compact is left out: no file can hold 'x\\ny'" in result.stderr
    assert "at 2 compact is left out: no file can hold '\\x00'" in result.stderr
    assert len(read_long_form("out.csv")) == 2


def test_what_imports_refuse_is_left_out_of_exports_and_named_by_check(folder: Path) -> None:
    document("import", "table.csv")
    machine, ahead = Machine.uniform("m", 2), {"time": "2999-01-01T00:00:00Z"}
    with Store.open("store.db") as store:
        store.add([Measurement(Op("mm"), machine, Case(1), (Sample(seconds),)) for seconds in (0.0, 1e-13, 2e9, 1.0)])
        store.add([Measurement(Op("mm"), machine, Case(2), (Sample(1.0),), ahead)])
    checked = db("check")
    assert checked.exit_code == 1
    assert f"measurements of {Op('mm').key} (3) are left out of exports: samples outside of 1e-12" in checked.stdout
    assert f"measurements of {Op('mm').key} (1) are left out of exports: times more than a day ahead" in checked.stdout
    result = db("export", "out.csv", "--json")
    assert "3 of 7 measurements are left out, which no import would take: samples outside of 1e-12" in result.stderr
    assert "1 of 7 measurements are left out, which no import would take: times more than a day" in result.stderr
    assert document("import", "out.csv", "--store", "other.db")["files"][0]["measurements"] == 3


def test_check_fails_when_something_is_wrong(folder: Path) -> None:
    document("import", "table.csv")
    assert document("check")["problems"] == []
    assert "is sound" in db("check").stdout
    with closing(sqlite3.connect("store.db")) as connection:
        connection.execute("UPDATE measurements SET samples = x'00'")
        connection.commit()
    result = db("check", "--json")
    assert result.exit_code == 1
    assert "damaged" in json.loads(result.stdout)["problems"][0]


@pytest.mark.parametrize("subcommand", ["info", "check"])
def test_no_store_is_an_error_and_none_is_made(folder: Path, subcommand: str) -> None:
    result = db(subcommand)
    assert result.exit_code == 1
    assert "there is no store at store.db" in result.stderr
    assert os.listdir(folder) == ["table.csv"]


@pytest.mark.parametrize(
    "arguments", [["import"], ["import", "absent.csv"], ["export"], ["export", "t.xlsx"], ["nonsense"]]
)
def test_wrong_usage_is_exit_code_2(arguments: list[str]) -> None:
    assert db(*arguments).exit_code == 2


def test_pruning_deletes_what_is_old_and_says_how_much(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine.uniform("m", 2)
    with Store.open("store.db") as store:
        store.add(
            Measurement(Op("mm"), machine, Case(1), (Sample(1.0), Sample(2.0)), {"time": f"20{year}-01-01"})
            for year in (20, 21, 22)
        )
    refused = db("prune")
    assert (refused.exit_code, "--keep-days" in refused.output) == (2, True)
    assert document("prune", "--keep-days", "30", "--dry-run")["samples"] == 4
    assert document("info")["samples"] == 6
    monkeypatch.setenv("THREADCAST_STORE_KEEP_DAYS", "30")
    assert document("prune") == {"store": "sqlite:///store.db", "dry_run": False, "measurements": 2, "samples": 4}
    with Store.open("store.db") as store:
        (left,) = store.measurements()
        assert left.conditions["time"] == "2022-01-01"
        assert store.check() == []


def test_a_table_of_another_program_is_imported_as_the_user_says(folder: Path) -> None:
    (folder / "odd.csv").write_text("m;p;took\n8;1;12.5\n8;2;7.5\n8;4;\n")
    named = ("--column", "threads=p", "--column", "seconds=took:ms")
    result = db("import", "odd.csv", *named, "--op", "gemm", "--machine", "box", "--json")
    assert [(row["measurements"], row["samples"]) for row in json.loads(result.stdout)["files"]] == [(2, 2)]
    said = ("threads is 'p'", "seconds is 'took', in ms", "left out 1 line without a time")
    assert all(f"odd.csv: {line}" in result.stderr for line in said)
    with Store.open("store.db") as store:
        assert [(m.op.kind, m.machine.name, m.case.threads, m.seconds) for m in store.measurements()] == [
            ("gemm", "box", 1, 0.0125), ("gemm", "box", 2, 0.0075)
        ]  # fmt: skip
    assert "must end in its unit" in db("import", "odd.csv", "--column", "seconds=took:min").stderr
