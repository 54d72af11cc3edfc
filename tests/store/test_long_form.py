from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.core.strategies import ops
from tests.store.strategies import measurements
from threadcast.core import Affinity, Case, Machine, Measurement, Op, Sample
from threadcast.core.errors import FormatError, InvalidInput
from threadcast.store.long_form import read_long_form, write_long_form

Measure = Callable[..., Measurement]
printable = st.text(max_size=9).filter(lambda name: name.isprintable() and name == name.strip())
printable_ops = ops.filter(lambda op: op.kind.isprintable() and op.kind == op.kind.strip())
SUFFIXES = ("csv", "csv.gz", "parquet")
HEADER = "machine,op,threads,affinity,repeat,seconds\n"


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "table.csv"
    path.write_text(text)
    return path


def read_text(tmp_path: Path, text: str) -> list[Measurement]:
    return read_long_form(written(tmp_path, text))


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_our_own_export_comes_back_equal(tmp_path: Path, measure: Measure, suffix: str) -> None:
    again = measure(1)
    never_read = Sample(1.0, {"cycles": None})
    bare = Measurement(Op("relu"), Machine.uniform("other", 3), Case(1, Affinity.SPREAD), (never_read, Sample(2.0)))
    added = [measure(2), measure(1), measure(2, threads=4), again, bare]
    path = tmp_path / f"export.{suffix}"
    write_long_form(added, path)
    read = read_long_form(path)
    assert read == added
    assert [m.op.outputs for m in read] == [m.op.outputs for m in added]
    assert [m.machine.to_json() for m in read] == [m.machine.to_json() for m in added]
    assert os.listdir(tmp_path) == [path.name]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_what_is_dated_by_when_it_was_stored_keeps_that_date(tmp_path: Path, measure: Measure, suffix: str) -> None:
    path = tmp_path / f"export.{suffix}"
    times = [None, "2020-01-01T00:00:00Z", "2099-01-01T00:00:00Z", None]
    stored_s = [1.6e9 + 0.1234567, 1.6e9, 1.6e9, None]
    conditions = [{"cache": "warm"} if time is None else {"time": time} for time in times]
    # the clock that dated the third was ahead then and is not any more
    now_s = datetime(2099, 1, 2, tzinfo=UTC).timestamp()
    added = [replace(measure(2), conditions=c, stored_s=s) for c, s in zip(conditions, stored_s, strict=True)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("time.time", lambda: now_s)
        write_long_form(added, path)
        read = read_long_form(path)
    assert read == added
    assert [m.stored_s for m in read] == [stored_s[0], None, 1.6e9, None]


@pytest.mark.parametrize(("seconds", "time"), [(0.0, None), (1e-13, None), (2e9, None), (1.0, "2999-01-01")])
def test_what_reading_would_refuse_is_not_written(
    tmp_path: Path, measure: Measure, seconds: float, time: str | None
) -> None:
    odd = replace(measure(2), samples=(Sample(1.0), Sample(seconds)), conditions={"time": time})
    with pytest.raises(InvalidInput, match=f"a measurement of {odd.op.key} at 2 compact cannot be written"):
        write_long_form([measure(1), odd], tmp_path / "t.csv")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("suffix", SUFFIXES)
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(added=st.lists(measurements(printable_ops, printable), min_size=1, max_size=4))
def test_any_measurement_survives_a_file(
    tmp_path_factory: pytest.TempPathFactory, suffix: str, added: list[Measurement]
) -> None:
    path = tmp_path_factory.mktemp("long") / f"export.{suffix}"
    write_long_form(added, path)
    assert read_long_form(path) == added


def test_rows_of_our_export_may_be_shuffled_and_joined(tmp_path: Path, measure: Measure) -> None:
    added = [measure(1), measure(2), measure(1)]
    write_long_form(added, tmp_path / "a.csv")
    write_long_form([measure(3)], tmp_path / "b.csv")
    both = pd.concat([pd.read_csv(tmp_path / f"{name}.csv") for name in "ab"]).sample(frac=1.0, random_state=1)
    both.to_parquet(tmp_path / "both.parquet")
    read = read_long_form(tmp_path / "both.parquet")
    assert sorted(m.conditions["index"] for m in read) == [1, 1, 2, 3]
    assert {m.op.key for m in read} == {measure(i).op.key for i in (1, 2, 3)}
    assert [s.seconds for m in read for s in m.samples if m.op == measure(2).op] == [
        s.seconds for s in measure(2).samples
    ]


def test_our_export_without_the_row_that_describes_an_op_is_refused(tmp_path: Path, measure: Measure) -> None:
    write_long_form([measure(1), measure(2)], tmp_path / "a.csv")
    lines = (tmp_path / "a.csv").read_text().splitlines(keepends=True)
    path = written(tmp_path, "".join(lines[:1] + lines[2:]))
    with pytest.raises(FormatError, match=r"line 2, column 'json.machine': nothing in the file describes"):
        read_long_form(path)


def test_any_table_with_the_columns_is_read(tmp_path: Path) -> None:
    text = """seconds,repeat,threads,op,machine,feature.kind,feature.m,feature.lib,feature.flops,counter.cycles,comment
0.5,1,1,gemm-a,knl,mm,128,mkl,1e6,100,cold
0.4,2,1,gemm-a,knl,mm,128,mkl,1e6,,x
0.3,1,4,gemm-a,knl,mm,128,mkl,1e6,400,x
2,1,1,"b, second",knl,,7.5,,,5,x
"""
    one, four, other = read_text(tmp_path, text)
    assert one.op == Op("mm", attributes={"m": 128, "lib": "mkl", "label": "gemm-a"})
    assert (one.op.flops, one.op is four.op) == (1e6, True)
    assert [s.counters for s in one.samples] == [{"cycles": 100.0}, {}]
    assert other.op == Op("op", attributes={"m": 7.5, "label": "b, second"})
    assert one.machine == Machine.uniform("knl", 4)
    assert (one.case, four.case) == (Case(1), Case(4))


def test_spread_threads_tell_the_cache_groups_of_a_foreign_machine(tmp_path: Path) -> None:
    rows = "m,o,8,compact,1,1\nm,o,4,Spread,1,1\nm,o,2,,1,1\n"
    read = read_text(tmp_path, HEADER + rows)
    assert read[0].machine == Machine.uniform("m", 8, group_size=2)
    assert [m.case for m in read] == [Case(8), Case(4, Affinity.SPREAD), Case(2)]
    assert {m.case for m in read} <= set(read[0].machine.cases())


def test_a_case_that_the_described_machine_lacks_is_refused(tmp_path: Path) -> None:
    machine = json.dumps(Machine.uniform("m", 2).to_json()).replace('"', '""')
    rows = f'm,o,1,,1,1,"{machine}"\nm,o,8,,1,1,\n'
    with pytest.raises(FormatError, match=r"line 3, column 'threads': threads=8 compact exceeds the 2 usable cores"):
        read_text(tmp_path, HEADER.strip() + ",json.machine\n" + rows)


def test_a_table_that_pandas_wrote_is_read(tmp_path: Path) -> None:
    table = pd.DataFrame({
        "machine": pd.Categorical(["m", "m"]), "op": ["a", "b"], "threads": [1.0, 2.0], "repeat": [0, 0],
        "seconds": [1, 2], "feature.n": [3.0, math.nan], "counter.x": [math.nan, 4.0],
    })  # fmt: skip
    table.to_parquet(tmp_path / "t.parquet")
    table.to_csv(tmp_path / "t.csv")
    for path in tmp_path.iterdir():
        a, b = read_long_form(path)
        assert (a.op.attributes, b.op.attributes) == ({"n": 3, "label": "a"}, {"label": "b"})
        assert (a.counter("x"), b.counter("x"), b.seconds) == (None, 4.0, 2.0)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("m,o,1,compact,1,nan\nm,o,1,compact,1,", r"has no rows with a time below its column names"),
        ("m,o,1,compact,1,0", r"line 2, column 'seconds': must be from 1e-12 to 1e\+09, got 0.0"),
        ("m,o,1,compact,1,1e300", r"line 2, column 'seconds'.*got 1e\+300"),
        ("m,o,1,compact,1,inf", r"line 2, column 'seconds'.*got inf"),
        ("m,o,1,compact,1,1e999", r"line 2, column 'seconds'.*got inf"),
        ("m,o,1,compact,1,1\nm,o,1,compact,2,-0.5", r"line 3, column 'seconds'.*got -0.5"),
        ("m,o,1,compact,1,fast", r"line 2, column 'seconds'.*'fast'"),
        ("m,o,0,compact,1,1", r"line 2, column 'threads': must be from 1 to 4096, got 0"),
        ("m,o,99999999999999999999,compact,1,1", r"line 2, column 'threads': must be from 1 to 4096, got 1000"),
        ("m,o,-3,compact,1,1", r"line 2, column 'threads'.*got -3"),
        ("m,o,1.5,compact,1,1", r"line 2, column 'threads': must be an integer, got '1.5'"),
        ("m,o,nan,compact,1,1", r"line 2, column 'threads': must be an integer, got 'nan'"),
        ("m,o,many,compact,1,1", r"line 2, column 'threads'.*'many'"),
        ("m,o,1_0,compact,1,1", r"line 2, column 'threads': must be a number, got '1_0'"),
        ("m,o,1,wide,1,1", r"line 2, column 'affinity': must be compact or spread .*, got 'wide'"),
        ("m,o,1,compact,x,1", r"line 2, column 'repeat'.*'x'"),
        (",o,1,compact,1,1", r"line 2, column 'machine': must not be empty"),
        ("m,,1,compact,1,1", r"line 2, column 'op': must not be empty"),
        ("m,o,1,compact,1,1\n\nm,o,1.0,,1,2", r"line 4, column 'repeat': 1 is there already.*in line 2"),
        ("m,o,1,compact,1", r"line 2: 5 cells, but line 1 names 6"),
        ("", r"no rows"),
    ],
)
def test_a_bad_cell_is_named_by_line_and_column(tmp_path: Path, rows: str, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        read_text(tmp_path, HEADER + rows)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("machine,op,repeat\nm,o,1\n", r"missing column 'threads', 'seconds'; it has machine, op, repeat"),
        (
            "m,threads,seconds,x\n5,1,1,a\n5,2,1,b\n",
            r"not clear whether ops are described by 'x'",
        ),
        ("op,threads,seconds,json.machine\nx,1,1,{}\n", r"'json.machine' needs a column 'machine', whose labels it"),
        ("machine,threads,seconds,m,json.op\nx,1,1,2,{}\n", r"'json.op' needs a column 'op', whose labels it"),
        ("machine,op,threads,repeat,seconds,op\n", r"'op' is there twice"),
        ("machine,op,threads,repeat,seconds,counter.c\nm,o,1,1,1,-4\n", r"line 2, column 'counter.c'.*got -4"),
        ("machine,op,threads,repeat,seconds,counter.c\nm,o,1,1,1,inf\n", r"line 2, column 'counter.c'.*got inf"),
        ("machine,op,threads,repeat,seconds,feature.flops\nm,o,1,1,1,-1\n", r"line 2, column 'feature.flops'.*-1"),
        ("machine,op,threads,repeat,seconds,feature.flops\nm,o,1,1,1,big\n", r"line 2, column 'feature.flops'.*'big'"),
        (
            "machine,op,threads,repeat,seconds,feature.m\nm,o,1,1,1,5\nm,o,2,1,1,6\n",
            r"line 3, column 'feature.m': '6' for op 'o', but '5' in line 2",
        ),
        ("machine,op,threads,repeat,seconds,json.op\nm,o,1,1,1,{}\n", r"line 2, column 'json.op'.*'kind' is missing"),
        ("machine,op,threads,repeat,seconds,json.op\nm,o,1,1,1,{\n", r"line 2, column 'json.op': is not JSON"),
        ("machine,op,threads,repeat,seconds,json.machine\nm,o,1,1,1,{}\n", r"line 2, column 'json.machine'"),
        (
            'machine,op,threads,repeat,seconds,json.conditions\nm,o,1,1,1,"{""time"": ""2999-01-01T00:00:00Z""}"\n',
            r"line 2, column 'json.conditions': the condition time='2999.*more than a day ahead of the clock",
        ),
        ("machine,op,threads,repeat,seconds,json.conditions\nm,o,1,1,1,[]\n", r"column 'json.conditions'.*object"),
        (
            "machine,op,threads,repeat,seconds,json.stored_s\nm,o,1,1,1,-1\n",
            r"column 'json.stored_s'.*at least 0, got -1",
        ),
        ('machine,op,threads,repeat,seconds\nm,"o,1,1,1\n', r"is not a whole table"),
    ],
)
def test_a_bad_table_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        read_text(tmp_path, text)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_file_of_another_kind_or_cut_short_is_refused(tmp_path: Path, measure: Measure, suffix: str) -> None:
    path = tmp_path / f"t.{suffix}"
    path.write_bytes(b"\xff\x00 not a table")
    with pytest.raises(FormatError, match=r"not a whole"):
        read_long_form(path)
    write_long_form([measure(i) for i in range(1, 200)], path)
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(FormatError):
        read_long_form(path)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_failed_export_leaves_the_old_file_and_nothing_else(tmp_path: Path, measure: Measure, suffix: str) -> None:
    path = tmp_path / f"t.{suffix}"
    write_long_form([measure()], path)
    before = path.read_bytes()
    m = measure(2)
    unwritable = Measurement(m.op, m.machine, m.case, m.samples, {"what": object()})
    with pytest.raises(InvalidInput, match="object"):
        write_long_form([measure(), unwritable], path)
    with pytest.raises(InvalidInput, match="no measurements"):
        write_long_form([], path)
    assert (path.read_bytes(), os.listdir(tmp_path)) == (before, [path.name])


@pytest.mark.parametrize("name", ["line\rend", " padded", "nul\0"])
def test_a_name_that_a_table_would_change_is_refused(tmp_path: Path, machine: Machine, name: str) -> None:
    odd_counter = Measurement(Op("mm"), machine, Case(1), (Sample(1.0, {name: 1.0}),))
    odd_kind = Measurement(Op(name), machine, Case(1), (Sample(1.0),))
    for odd in (odd_counter, odd_kind):
        with pytest.raises(InvalidInput, match="printable"):
            write_long_form([odd], tmp_path / "t.csv")


@pytest.mark.parametrize("column", ["machine", "threads", "affinity", "feature.x", "json.op", "anything"])
@pytest.mark.parametrize("value", [[], ["a"], {"a": 1}, {"a": [1]}])
def test_a_column_of_lists_or_structures_is_refused(tmp_path: Path, column: str, value: object) -> None:
    table: dict[str, object] = {"machine": "m", "op": "o", "threads": 1, "repeat": 0, "seconds": 1.0}
    pd.DataFrame([{**table, column: value}]).to_parquet(tmp_path / "table.parquet")
    with pytest.raises(FormatError, match=f"column '{column}' holds lists or structures"):
        read_long_form(tmp_path / "table.parquet")


def test_a_plain_table_of_sizes_threads_and_seconds_is_read(tmp_path: Path) -> None:
    path = tmp_path / "sgemm.mkl.csv"
    path.write_text(",m,k,n,threads,seconds\n0,8,4,2,1,0.5\n1,8,4,2,1,0.7\n2,8,4,2,4,0.2\n3,8.0,4,6,1,0.9\n")
    read = read_long_form(path)
    assert [[sample.seconds for sample in m.samples] for m in read] == [[0.5, 0.7], [0.2], [0.9]]
    assert [m.case for m in read] == [Case(1), Case(4), Case(1)]
    first, _, other = (m.op for m in read)
    assert (first.kind, other.kind) == ("sgemm", "sgemm")
    assert dict(first.attributes) == {"m": 8, "k": 4, "n": 2, "label": "sgemm m=8 k=4 n=2"}
    assert first.key == read[1].op.key != other.key
    assert {m.machine.name for m in read} == {"sgemm"}
    assert len(read[0].machine) == 4
    named = read_long_form(path, machine="cascade", op="gemm")
    assert (named[0].machine.name, named[0].op.kind) == ("cascade", "gemm")


def test_without_repeat_ops_of_one_name_differ_by_their_other_columns(tmp_path: Path) -> None:
    read = read_text(tmp_path, "op,m,layout,threads,seconds\ngemm,8,row,1,1\ngemm,8,column,1,2\ngemm,8,row,2,3\n")
    assert [m.op.kind for m in read] == ["gemm"] * 3
    assert [m.op.attributes["layout"] for m in read] == ["row", "column", "row"]
    assert len({m.op.key for m in read}) == 2
