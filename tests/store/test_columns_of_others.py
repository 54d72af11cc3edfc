"""Tables as people really keep them, read with exact seconds; and those whose meaning is refused, with the remedy."""

from __future__ import annotations

import datetime
import gzip
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import pytest

from threadcast.core.errors import FormatError, InvalidInput
from threadcast.store.long_form import read_long_form

GRID = "m,k,n"
Times = dict[tuple[object, ...], list[float]]


def read(path: Path, *columns: str, notes: list[str] | None = None, skip_bad: bool = False, op: str = "gemm") -> Times:
    """Seconds by what describes the op, the threads, and SPREAD where they are."""
    found: Times = {}
    said = [] if notes is None else notes
    for m in read_long_form(path, op=op, columns=columns, skip_bad=skip_bad, note=said.append):
        own = [value for name, value in sorted(m.op.attributes.items()) if name != "label"]
        key = (*own, m.case.threads, *(["spread"] if m.case.affinity == "spread" else []))
        found.setdefault(key, []).extend(sample.seconds for sample in m.samples)
    return found


def table(tmp_path: Path, text: str | bytes, name: str = "t.csv") -> Path:
    path = tmp_path / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


ONE = {(8, 1): [0.0125], (8, 2): [0.0075]}
"""One op, described by m=8."""


@pytest.mark.parametrize(
    "head",
    [
        "m,num_threads,time_ms", "m,nthreads,Time (ms)", "m,OMP_NUM_THREADS,Duration [ms]", "m,n_threads,elapsedMs",
        "m,# threads,msec", "m,thread count,real_time_ms", "m,cores,runtime in ms", "m,Number of threads,mean_ms",
        "m,n_jobs,median_time_ms", "m,nproc,Latency (ms)", "m,nt,p50_ms", "m,ompthreads,latency_ms_p50",
        "m,threads,Time per run [ms]", "m,threads,ms/op", "M,THREADS,TIME_MS",
    ],
)  # fmt: skip
def test_usual_names_are_known_in_any_case_with_the_unit_that_they_say(tmp_path: Path, head: str) -> None:
    notes: list[str] = []
    assert read(table(tmp_path, f"{head}\n8,1,12.5\n8,2,7.5\n"), notes=notes) == ONE
    assert any("seconds is" in note and note.endswith(", in ms") for note in notes)


@pytest.mark.parametrize(
    ("head", "cells"),
    [
        ("time_s", ("0.0125", "0.0075")), ("time (\u00b5s)", ("12500", "7500")), ("time[\u03bcs]", ("12500", "7500")),
        ("duration_ns", ("12500000", "7500000")), ("wall", ("0.0125", "0.0075")),
        ("min_ms,median_ms,mean_ms,max_ms", ("1,12.5,2,3", "1,7.5,2,3")),
        ("cpu_time_s,real_time_ms", ("9,12.5", "9,7.5")), ("time_ms,stddev_ms", ("12.5,1", "7.5,1")),
    ],
)  # fmt: skip
def test_the_unit_comes_from_the_name_of_the_time(tmp_path: Path, head: str, cells: Sequence[str]) -> None:
    assert read(table(tmp_path, f"m,threads,{head}\n8,1,{cells[0]}\n8,2,{cells[1]}\n")) == ONE


@pytest.mark.parametrize(
    "text",
    [
        "m;threads;time_ms;\r\n8;1;12.5;\r\n8;2;7.5;\r\n;;;\r\n",
        "m\tthreads\ttime_ms\n8\t1\t12.5\n8\t2\t7.5\n",
        "  m  threads   time_ms\n  8        1      12.5  \n  8        2       7.5\n",
        "\ufeff# measured on monday\n\nm,threads,time_ms\n8,1,12.5\n# two threads\n8,2,7.5\n",
        gzip.compress(b"m,threads,time_ms\n8,1,12.5\n8,2,7.5\n", mtime=0),
        '[{"m": 8, "threads": 1, "time_ms": 12.5}, {"m": 8, "threads": 2, "time_ms": 7.5}]',
        '{"m": 8, "threads": 1, "time_ms": 12.5}\n{"m": 8, "threads": 2, "time_ms": 7.5}\n',
        "m,t1_ms,t2_ms\n8,12.5,7.5\n",
        "m,threads_1 (ms),threads_2 (ms)\n8,12.5,7.5\n",
        "m,1 core (ms),2 cores (ms)\n8,12.5,7.5\n",
        "m,1thread,2threads\n8,0.0125,0.0075\n",
        "m,time_ms_t1,time_ms_t2\n8,12.5,7.5\n",
    ],
)
def test_tables_are_read_whatever_is_between_their_cells(tmp_path: Path, text: str | bytes) -> None:
    assert read(table(tmp_path, text, "t.dat")) == ONE


@pytest.mark.parametrize(
    ("columns", "text"),
    [
        (["threads=p", "seconds=took:ms"], "m,p,took\n8,1,12.5\n8,2,7.5\n"),
        (["threads=P", "seconds=Took:us"], "m,p,took\n8,1,12500\n8,2,7500\n"),
        (["seconds=*threads:ms"], "m,1thread,2threads\n8,12.5,7.5\n"),
        (["seconds=* core:ms"], "m,1 core,2 cores\n8,12.5,7.5\n"),
        (["seconds=x*:ms"], "m,x1,x2\n8,12.5,7.5\n"),
        (["seconds=*:ms"], "m,1,2\n8,12.5,7.5\n"),
        (["seconds=inference_ms:ms"], "m,threads,load_ms,inference_ms\n8,1,9,12.5\n8,2,8,7.5\n"),
        (["ignored=cores"], "m,cores,t1_ms,t2_ms\n8,64,12.5,7.5\n"),
        (["ignored=date", "ignored=host id"], "m,date,host id,threads,time_ms\n8,mon,a,1,12.5\n8,tue,b,2,7.5\n"),
        (["threads=used"], "m,threads,used,time_ms\n8,64,1,12.5\n8,64,2,7.5\n"),
        (["seconds=c::ms"], "m,threads,c:\n8,1,12.5\n8,2,7.5\n"),
    ],
)
def test_columns_are_what_the_user_says(tmp_path: Path, columns: list[str], text: str) -> None:
    assert read(table(tmp_path, text), *columns) == ONE


def test_a_number_of_threads_may_be_that_of_all_rows(tmp_path: Path) -> None:
    for head in ("m,time_ms", "m,threads,time_ms"):
        row = "8,12.5" if head == "m,time_ms" else "8,64,12.5"
        assert read(table(tmp_path, f"{head}\n{row}\n"), "threads=4") == {(8, 4): [0.0125]}


def test_a_time_without_a_unit_is_said_to_be_taken_for_seconds(tmp_path: Path) -> None:
    notes: list[str] = []
    assert read(table(tmp_path, "m,threads,time\n8,1,12.5\n8,2,7.5\n"), notes=notes) == {(8, 1): [12.5], (8, 2): [7.5]}
    assert any(
        "'time' says no unit and is taken to be in seconds; if it is not: --column 'seconds=time:ms'" in note
        for note in notes
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("m,threads,time\n8,1,12500\n8,2,7500\n", r"in which unit 'time' is, and 12500 is hardly.*--column 'sec"),
        ("m,t1,t2\n8,12500,7500\n", r"in which unit 't\*' is.*--column 'seconds=t\*:us'"),
        ("m,threads,time,time_unit\n8,1,9,ms\n", r"unit 'time' is, and 'time_unit' may say it row by row; say it"),
        ("m,threads,time_ms,time_us\n8,1,1,9\n", r"seconds may be 'time_ms' or 'time_us'; say which.*=time_ms:ms"),
        ("m,num_threads,OMP_NUM_THREADS,ms\n8,1,2,9\n", r"threads may be 'num_threads' or 'OMP_.*--column 'threads="),
        ("m,t1_ms,t2_ms,1 core,2 cores\n8,1,2,9,9\n", r"times may be in 't\*_ms' or '\* cores'; say .*=t\*_ms:ms'"),
        ("np,t1,t2\n8,1,2\n", r"threads may be 'np' or the numbers in 't\*'; say which: --column 'threads=np' or"),
        ("procs,threads_per_proc,time_ms\n2,2,5\n", r"threads may be 'procs' or 'threads_per_proc'; say which"),
        ("op,threads,time_128,time_256\na,1,1,3\n", r"missing column 'seconds'"),
        ("op,threads,run1_ms,run2_ms\na,1,1,3\n", r"missing column 'seconds'.*'seconds=run1_ms:ms'"),
        ("m;threads;time_us\n8;1;0,75\n", r"'time_us': must be a number, got '0,75'; write it without a comma"),
        ("m,threads,time\n8,1,12.5 ms\n", r"'time': must be a number, got '12.5 ms'"),
        ("shape\tthreads\tms\n128,64\t1\t9.5\n", r"column 'shape': must be a number with a decimal po"),
        ("m,threads,compile_time_s,inference_ms\n8,1,9,1\n", r"missing column 'seconds'.*--column "
         r"'seconds=compile_time_s:s' or --column 'seconds=inference_ms:ms'"),
        ("m,1,2\n8,9,7\n", r"where '1', '2' are numbers of threads: --column 'seconds=\*:s'"),
        ("m,threads,cpu_time\n8,1,9\n", r"missing column 'seconds'; it has .*Say which it is: --column sec"),
        ("m,threads,time_min\n8,1,9\n", r"missing column 'seconds'"),
        ("m,threads,time (min)\n8,1,9\n", r"missing column 'seconds'"),
        ("m,p50,p90,p99\n8,1,2,3\n", r"missing column 'threads', 'seconds'"),
        ("m,t1_ms,t2_ms\n8,1,fast\n", r"line 2, column 't2_ms': must be a number, got 'fast'"),
        ("m,num_threads,time_ms\n8,x,1\n", r"line 2, column 'num_threads': must be a number, got 'x'"),
        ("m,threads,affinity,ms\n8,1,wide,1\n", r"line 2, column 'affinity': must be compact or spread, or as OpenMP"),
        ("8 1 12.5\n8 2 7.5\n", r"'8' is there twice|Line 1 must name the columns"),
        ("m,threads,ms\n8,1\n", r"line 2: 2 cells, but line 1 names 3 columns"),
        ('{"a": 1}', "has no list of results; JSON may be of Google Benchmark, pyperf, hyperfine, or rows"),
        ('{"a": ', "is not whole JSON"),
        (b"PK\x03\x04\x00\x00", "is not a whole text: it has bytes of value 0; tables are read as CSV"),
        ("m,threads,time (\u00b5s)\n8,1,5\n".encode("latin1"), r"is not a whole text in UTF-8.*iconv -f latin1"),
    ],
)  # fmt: skip
def test_what_may_be_read_wrongly_is_refused_with_the_remedy(tmp_path: Path, text: str | bytes, said: str) -> None:
    with pytest.raises(FormatError, match=said):
        read(table(tmp_path, text))


@pytest.mark.parametrize(
    ("column", "said"),
    [
        ("time_ms", "must be ROLE=NAME"), ("speed=x", "must be ROLE=NAME, where ROLE is machine, op, id, threads"),
        ("seconds=x:min", "'min' is no unit; it must be s, ms, us, ns"),
        ("threads=x", "has no column 'x', which --column"),
        ("seconds=x*:ms", "has no column 'x*'"),
    ],
)  # fmt: skip
def test_a_column_that_is_not_there_is_refused(tmp_path: Path, column: str, said: str) -> None:
    with pytest.raises(InvalidInput) as error:
        read(table(tmp_path, "m,threads,time_ms\n8,1,1\n"), column)
    assert said in str(error.value)


def test_words_of_openmp_are_ways_to_place_threads_two_words_for_one_are_refused(tmp_path: Path) -> None:
    text = "m,threads,OMP_PROC_BIND,ms\n8,1,{},1\n8,1,spread,2\n8,2,{},5\n"
    for word in ("close", "TRUE", "primary", "false"):
        assert read(table(tmp_path, text.format(word, word))) == {
            (8, 1): [0.001], (8, 1, "spread"): [0.002], (8, 2): [0.005]
        }  # fmt: skip
    with pytest.raises(FormatError, match=r"'false' and 'close' in 'OMP_PROC_BIND' are both compact.*'ignored=OMP_"):
        read(table(tmp_path, text.format("close", "false")))
    kmp = '8,1,"granularity=fine,compact,1,0",1\n8,1,"granularity=fine,scatter",2\n'
    assert read(table(tmp_path, f"m,threads,KMP_AFFINITY,ms\n{kmp}")) == {(8, 1): [0.001], (8, 1, "spread"): [0.002]}


def test_rows_without_a_time_are_left_out_and_counted_and_bad_ones_where_that_is_asked(tmp_path: Path) -> None:
    rows = ["8,1,12.5", "8,2,7.5", "8,4,", "8,4,NA", "8,4,nan", "8,x,1", "8,4,DNF", "8,4,-3", "8", "8,0,1"]
    path, notes = table(tmp_path, "m,threads,time_ms\n" + "\n".join(rows)), []
    with pytest.raises(FormatError, match="line 7, column 'threads': must be a number, got 'x'"):
        read(path)
    assert read(path, skip_bad=True, notes=notes) == ONE
    assert f"{path}: left out 3 lines without a time" in notes
    assert "left out 5 bad lines: " in notes[-1]
    assert [f"line {n}," in notes[-1] for n in (7, 8, 9, 10)] == [True] * 3 + [False]


def test_a_duration_of_pandas_has_its_unit(tmp_path: Path) -> None:
    frame = pd.DataFrame(
        {"m": [8, 8], "Threads": [1, 2], "elapsed": [datetime.timedelta(seconds=s) for s in (0.0125, 0.0075)]}
    )
    frame.to_parquet(tmp_path / "t.parquet")
    assert read(tmp_path / "t.parquet") == ONE


def test_a_table_of_one_op_is_called_as_its_file_is(tmp_path: Path) -> None:
    notes: list[str] = []
    found = read_long_form(table(tmp_path, "cores,time_ms,user,sys\n1,12.5,9,9\n2,7.5,8,9\n"), note=notes.append)
    assert [(m.op.attributes["label"], m.case.threads, m.seconds) for m in found] == [
        ("t", 1, 0.0125), ("t", 2, 0.0075)
    ]  # fmt: skip
    assert any("no column tells ops apart, so all rows are of one op, 't'" in note for note in notes)


@pytest.mark.parametrize(
    "column",
    [
        "gflops", "speedup", "Efficiency", "std (us)", "cpu_time", "user,sys", "min,max", "time_max_ms", "p99_us",
        "gflop/s", "runs_per_s", "iterations", "bandwidth (GB/s)", "load_ms",
    ],
)  # fmt: skip
def test_what_was_measured_besides_describes_no_op(tmp_path: Path, column: str) -> None:
    more, notes = column.count(",") + 1, list[str]()
    rows = [",".join(["8", str(p), *[str(p * 1.5)] * more, t]) for p, t in ((1, "12.5"), (2, "7.5"))]
    assert read(table(tmp_path, "\n".join([f"m,threads,{column},time_ms", *rows])), notes=notes) == ONE
    assert any("results and dates describe no op, and are left out" in note for note in notes)


def test_an_id_names_an_op_and_describes_it_not_and_numbers_of_rows_do_neither(tmp_path: Path) -> None:
    text = "{},op,m,threads,ms\n1,mm,8,1,4\n1,mm,8,2,2\n2,mm,8,1,5\n2,mm,8,2,3\n"
    for head in ("id", "Op ID", "index"):
        found = read_long_form(table(tmp_path, text.format(head)))
        assert [(m.op.kind, m.op.attributes["label"], m.seconds) for m in found[::2]] == [
            ("mm", "1 mm m=8", 0.004), ("mm", "2 mm m=8", 0.005)
        ]  # fmt: skip
        assert set(found[0].op.attributes) == {"m", "label"}
    numbered = read_long_form(table(tmp_path, "id,op,m,threads,ms\n0,mm,8,1,4\n1,mm,8,2,2\n"))
    assert {m.op.attributes["label"] for m in numbered} == {"mm m=8"}
    alone = read_long_form(table(tmp_path, "id,threads,ms\nconv1,1,4\nconv1,2,2\nfc,1,5\n"))
    assert [m.op.attributes["label"] for m in alone] == ["t id=conv1", "t id=conv1", "t id=fc"]


def test_the_name_of_an_op_has_the_sizes_that_it_has(tmp_path: Path) -> None:
    found = read_long_form(table(tmp_path, "op,m,k,threads,ms\nmm,8,9,1,1\nmm,8,9,2,1\nrelu,8,,1,1\n"))
    assert [m.op.attributes["label"] for m in found] == ["mm m=8 k=9"] * 2 + ["relu m=8"]


def test_what_is_named_as_a_result_and_does_not_differ_with_the_threads_describes_an_op(tmp_path: Path) -> None:
    rows = [f"8,{budget},{p},{budget / p}" for budget in (10, 20) for p in (1, 2)]
    found = read(table(tmp_path, "\n".join(["m,audio_duration,threads,time_ms", *rows])))
    assert found == {(budget, 8, p): [budget / p / 1000] for budget in (10, 20) for p in (1, 2)}


def test_dates_describe_no_op_and_sizes_with_such_words_do(tmp_path: Path) -> None:
    text = "date,time_steps,timesteps,max_depth,threads,time_ms\n{}"
    rows = "2024-01-01T00:00:00,5,6,7,1,12.5\n2024-01-01T00:00:01,5,6,7,2,7.5\n"
    assert read(table(tmp_path, text.format(rows))) == {(7, 5, 6, p): [t] for p, t in ((1, 0.0125), (2, 0.0075))}


def test_cores_of_a_machine_are_no_threads_beside_these(tmp_path: Path) -> None:
    found = read(table(tmp_path, "cores,threads,time_ms\n64,1,12.5\n64,2,7.5\n"), op="fft")
    assert found == {(64, *key[1:]): times for key, times in ONE.items()}
