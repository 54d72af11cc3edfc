"""Benchmarks import what there is; a table names its run; a row that was measured again keeps its earlier values."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import math
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


def test_benchmarks_import_only_names_that_exist() -> None:
    missing = []
    for path in sorted(BENCHMARKS.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("threadcast"):
                module = importlib.import_module(node.module)
                names = [f"{node.module}.{alias.name}" for alias in node.names if not hasattr(module, alias.name)]
                missing += [f"{path.name}: {name}" for name in names if importlib.util.find_spec(name) is None]
    assert missing == []


@pytest.fixture
def studies(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("figures.every")


def test_every_section_is_what_its_stored_table_gives(studies: ModuleType) -> None:
    with_section = importlib.import_module("figures.study").with_section
    for study in studies.STUDIES:
        page = study.document.read_text()
        assert page == with_section(page, study.name, study.section()), "run `python benchmarks/figures`"
        assert study.rows(), study.name


def test_every_table_is_of_a_study_that_a_benchmark_stores_and_is_described(studies: ModuleType) -> None:
    folder = BENCHMARKS.parent / "data" / "studies"
    tables = {path.name for path in folder.glob("*.csv")}
    assert tables == {study.table.name for study in studies.STUDIES}
    described = set(re.findall(r"`(\w+\.csv)`", (folder / "README.md").read_text()))
    assert described == tables
    written = "".join(path.read_text() for path in BENCHMARKS.glob("*.py"))
    names = {
        study: name for module in studies.PAGES for name, study in vars(module).items() if study in studies.STUDIES
    }
    assert [name for study, name in names.items() if f"{name}.store(" not in written] == []


def test_a_section_takes_the_place_of_the_earlier_one(studies: ModuleType) -> None:
    with_section = importlib.import_module("figures.study").with_section
    page = "# Page\n\n<!-- begin a -->\nold\n<!-- end a -->\n\nwords\n"
    assert with_section(page, "a", "new") == page.replace("old", "new")
    with pytest.raises(ValueError, match="begin b"):
        with_section(page, "b", "new")


def test_rows_that_are_kept_stay_with_their_run(
    studies: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = importlib.import_module("figures.study")
    monkeypatch.setattr(module, "ROOT", tmp_path)
    study = module.Study("speed", "page", ("what", "seconds"), lambda rows: f"{len(rows)} rows")
    study.table.parent.mkdir(parents=True)
    study.document.parent.mkdir(parents=True)
    study.document.write_text("<!-- begin speed --><!-- end speed -->")
    study.store([{"what": "a", "seconds": 1.23456}, {"what": "b", "seconds": math.nan}], "first")
    study.store([{"what": "b", "seconds": None}], "second", replaces=("what",))
    assert study.table.read_text() == "what,seconds,run\na,1.235,first\nb,,second\n"
    page = study.document.read_text()
    assert "2 rows\n\nRun: first (1 rows); second (1 rows)." in page
    assert "[All rows](../../data/studies/speed.csv)" in page
    with pytest.raises(ValueError, match="'seconds', 'what'"):
        study.store([{"what": "a"}], "third")
    assert page == study.document.read_text()


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    for name in ("run_facts", "server_attacks", "server_kinds", "servers"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return importlib.import_module("servers")


def test_readings_differ_where_the_next_request_begins_elsewhere(servers: ModuleType) -> None:
    reading = servers.Reading
    found = {
        "a": [
            reading(True, (b"q", b"hidden")),
            reading(True, (b"q",)),
            reading(True, (b"", b"hidden")),
            reading(False),
        ],
        "b": [
            reading(True, (b"", b"hidden")),
            reading(True, (b"qGET",)),
            reading(True, (b"",)),
            reading(True, (b"q",)),
        ],
    }
    assert servers.differ("a", found) == (2, {"b": 2})
    assert servers.differ("b", found) == (2, {"a": 2})
    assert (servers.lost("a", found), servers.lost("b", found)) == (0, 1)


def test_what_must_be_refused_is_what_servers_may_read_in_two_ways(servers: ModuleType) -> None:
    attacks = sys.modules["server_attacks"]
    for odd in attacks.odd_requests(5000):
        head = odd.sent.partition(b"POST")[2].partition(b"q")[0]
        twice = b"\nContent-Length: 3, 3" in head or b"Content-Length: 3\r\nContent-Length: 3\r" in head
        coded = b"ransfer-Encoding" in head
        if coded and b"\nContent-Length: " in head and b"X: a\r" not in head:
            assert odd.ambiguous
        if not coded and twice and b"\r\r\n" not in head:
            assert not odd.ambiguous, odd


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    for name in ("run_facts", "engine"):
        spec = importlib.util.spec_from_file_location(name, BENCHMARKS / f"{name}.py")
        monkeypatch.setitem(sys.modules, name, importlib.util.module_from_spec(spec))
        spec.loader.exec_module(sys.modules[name])
    return sys.modules["engine"]


def test_a_network_s_row_is_of_the_medians_of_its_turns(engine: ModuleType, studies: ModuleType) -> None:
    run = engine.RunFacts("1111111+", "2026-01-01T00:00:00+00:00", "2 cores of a machine", "2.13.0")
    usual, kept = (f"eager, 2 threads, as given, malloc {malloc}" for malloc in ("default", "kept"))
    turns = {"eager, 1 threads, as given, malloc default": [8.0] * 3, usual: [4.0, 2.0, 3.0], kept: [2.0] * 3}
    records = [
        engine.Record(f"{case}, training", run, {**turns, **others, "threadcast": [1.0, 1.0, 2.0]},
                      {"threadcast": ["plan"]}, planned_s, {}, 0.0)
        for case, others, planned_s in (("a", {}, 0.5), ("b", {"openvino": [3.0] * 3}, 1.25))
    ]  # fmt: skip
    stored = importlib.import_module("figures.study").stored
    rows = [{name: stored(value) for name, value in row.items()} for row in engine.network_rows(records)]
    assert {frozenset(row) for row in rows} == {frozenset({*engine.ENGINE.columns, "run"})}
    assert [row["forecast_off_percent"] for row in rows] == ["100", "20"]  # sizes of errors, without sign
    assert (rows[0]["eager_ms"], rows[0]["best_eager_ms"], rows[0]["setting"]) == ("3000", "2000", kept[7:])
    assert [row["eager_over_ours"] for row in rows] == ["2"] * 2  # of the turns' ratios: 4, 2 and 1.5
    assert [row["best_other_over_ours"] for row in rows] == ["", "3"]
    assert "commit 1111111+, 2026-01-01, 2 cores of a machine" in rows[1]["run"]
    shown = engine.ENGINE.show(rows)
    assert "| geometric mean | 2.00 | 2.00 | 3.00 |" in shown
    assert "off by 60 % in training" in shown


def test_every_benchmark_says_what_it_measures_and_its_options() -> None:
    silent = []
    for path in BENCHMARKS.glob("*.py"):
        text = path.read_text()
        helper = path.stem.endswith(("_process", "_echo", "_kinds"))
        if "__main__" in text and not helper and not re.search(r"ArgumentParser\(|@click\.command", text):
            silent.append(path.name)
        assert ast.get_docstring(ast.parse(text)), path.name
    assert silent == [], "`python benchmarks/NAME.py --help` would run these"


def test_every_benchmark_is_named_by_a_document_or_run_by_make() -> None:
    """Nobody runs a script that nobody is told of; one that made a table, or a file of the package, is told there."""
    root = BENCHMARKS.parent
    told = [root / "README.md", root / "CONTRIBUTING.md", root / "Makefile", *(root / "docs").rglob("*.md")]
    told += [*(root / "data").rglob("*.md"), *(root / "threadcast").rglob("*.py")]
    text = "".join(path.read_text() for path in told)
    whole = {
        path
        for path in BENCHMARKS.glob("*.py")
        if "ArgumentParser(" in path.read_text() or "@click" in path.read_text()
    }
    inner = {"service_load.py"}
    assert {path.name for path in whole if path.name not in text} == inner


def test_make_runs_every_benchmark_that_stores_a_table_and_none_that_is_missing() -> None:
    named = set(re.findall(r"benchmarks/(\w+\.py)", (BENCHMARKS.parent / "Makefile").read_text())) - {"NAME.py"}
    assert {path.name for path in BENCHMARKS.glob("*.py") if ".store(" in path.read_text()} <= named
    assert {name for name in named if not (BENCHMARKS / name).exists()} == set()


def test_every_picture_is_shown_by_a_document() -> None:
    root = BENCHMARKS.parent
    documents = "".join(path.read_text() for path in [root / "README.md", *(root / "docs").rglob("*.md")])
    assert [path.name for path in (root / "docs" / "images").iterdir() if f"images/{path.name})" not in documents] == []
