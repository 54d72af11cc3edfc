"""Tables as people really keep them, read with exact seconds; and those whose meaning is refused, with the remedy."""

from __future__ import annotations

import codecs
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
        "m,numThreads,milliseconds", "m,Threads,wall_clock_time_ms", "m,# threads,msec", "m,thread count,real_time_ms",
        "m,cores,runtime in ms", "m,Number of threads,mean_ms", "m,n_jobs,median_time_ms", "m,nproc,Latency (ms)",
        "m,mkl_num_threads,wall-time/ms", "m,cpus,t_ms", "m,nt,p50_ms",
        "m,ompthreads,latency_ms_p50", "m,threads,Time per run [ms]", "m,threads,ms/op",
        "m,threads,time/op (ms)", "m,threads,inference_time_ms", "M,THREADS,TIME_MS",
    ],
)  # fmt: skip
def test_usual_names_are_known_in_any_case_with_the_unit_that_they_say(tmp_path: Path, head: str) -> None:
    notes: list[str] = []
    assert read(table(tmp_path, f"{head}\n8,1,12.5\n8,2,7.5\n"), notes=notes) == ONE
    assert any("seconds is" in note and note.endswith(", in ms") for note in notes)


@pytest.mark.parametrize(
    ("head", "cells"),
    [
        ("time_s", ("0.0125", "0.0075")), ("elapsed_us", ("12500", "7500")), ("time (\u00b5s)", ("12500", "7500")),
        ("duration_ns", ("12500000", "7500000")), ("time[\u03bcs]", ("12500", "7500")), ("secs", ("0.0125", "0.0075")),
        ("time", ("12.5 ms", "7500us")), ("wall", ("0.0125", "0.0075")), ("time,time_unit", ("12.5,ms", "7500,us")),
        ("time [s],time [ms]", ("0.0125,12.5", "0.0075,7.5")),
        ("min_ms,median_ms,mean_ms,max_ms", ("1,12.5,2,3", "1,7.5,2,3")),
        ("cpu_time_s,real_time_ms", ("9,12.5", "9,7.5")),
        ("time_ms,stddev_ms", ("12.5,1", "7.5,1")), ("user,sys,real", ("9,9,0.0125", "9,9,0.0075")),
    ],
)  # fmt: skip
def test_a_unit_comes_from_the_name_the_cell_or_a_column(tmp_path: Path, head: str, cells: Sequence[str]) -> None:
    found = read(table(tmp_path, f"m,threads,{head}\n8,1,{cells[0]}\n8,2,{cells[1]}\n"), "ignored=m")
    assert {(8, key[-1]): times for key, times in found.items()} == ONE


@pytest.mark.parametrize(
    "text",
    [
        "m;threads;time_ms\n8;1;12,5\n8;2;7,5\n",
        "m\tthreads\ttime_ms\n8\t1\t12.5\n8\t2\t7.5\n",
        "m\tthreads\ttime_ms\n8\t1\t12,5\n8\t2\t7,5\n",
        "m|threads|time_ms\n8|1|12.5\n8|2|7.5\n",
        "| m | threads | time_ms |\n|---|--:|---|\n| 8 | 1 | 12.5 |\n| 8 | 2 | 7.5 |\n",
        "  m  threads   time_ms\n  8        1      12.5  \n  8        2       7.5\n",
        "# measured on monday\n# taskset -c 0-3\n\nm,threads,time_ms\n8,1,12.5\n# two threads\n8,2,7.5\n",
        "# m threads time_ms\n8 1 12.5\n8 2 7.5\n",
        "#m,threads,time_ms\n8,1,12.5\n8,2,7.5\n",
        "m;threads;time_ms;\r\n8;1;12,5;\r\n8;2;7,5;\r\n;;;\r\n",
        "m,threads,time_ms\r8,1,12.5\r8,2,7.5\r",
        codecs.BOM_UTF8 + b"m;threads;time_ms\r\n8;1;12,5\r\n8;2;7,5\r\n",
        "m\tthreads\ttime_ms\n8\t1\t12,5\n8\t2\t7,5\n".encode("utf-16"),
        gzip.compress(b"m,threads,time_ms\n8,1,12.5\n8,2,7.5\n", mtime=0),
        '[{"m": 8, "threads": 1, "time_ms": 12.5}, {"m": 8, "threads": 2, "time_ms": 7.5}]',
        '{"m": 8, "threads": 1, "time_ms": 12.5}\n{"m": 8, "threads": 2, "time_ms": 7.5}\n',
        "m,t1,t2\n8,12.5 ms,7.5 ms\n",
        "m,t1_ms,t2_ms\n8,12.5,7.5\n",
        "m,threads_1 (ms),threads_2 (ms)\n8,12.5,7.5\n",
        "m,1,2\n8,0.0125,0.0075\n",
        "m,1 core (ms),2 cores (ms)\n8,12.5,7.5\n",
        '{"m": [8, 8], "threads": [1, 2], "time_ms": [12.5, 7.5]}',
        '{"m": {"0": 8, "1": 8}, "threads": {"0": 1, "1": 2}, "time_ms": {"0": 12.5, "1": 7.5}}',
        "m,1thread,2threads\n8,0.0125,0.0075\n",
        "m,time_ms_t1,time_ms_t2\n8,12.5,7.5\n",
        "m,1 thread,2 threads\n8,0.0125,0.0075\n",
        "m;time_1t_ms;time_2t_ms\n8;12,5;7,5\n",
        "m,threads,time_ms\n8,1T,12.5\n8,2 threads,7.5\n",
        "sep=;\nm;threads;time_ms\n8;1;12,5\n8;2;7,5\n",
        '{"date": 1, "data": [{"m": 8, "threads": 1, "time_ms": 12.5}, {"m": 8, "threads": 2, "time_ms": 7.5}]}',
        '{"results": [{"m": 8, "threads": 1, "time_ms": 12.5}, {"m": 8, "threads": 2, "time_ms": 7.5}]}',
        "m,threads,time,wall_ms\n8,1,2024-01-01 10:00,12.5\n8,2,2024-01-01 10:01,7.5\n",
        "m,t1_ms,t2_ms,e1,e2,bw1,bw2,best,best threads\n8,12.5,7.5,1,.8,9,13.5,7.5,2\n",
        "m,threads,run_1_ms\n8,1,12.5\n8,2,7.5\n",
    ],
)
def test_tables_are_read_whatever_is_between_their_cells(tmp_path: Path, text: str | bytes) -> None:
    one_run = ["seconds=run_1_ms:ms"] if "run_1" in str(text) else []
    assert read(table(tmp_path, text, "t.dat"), *one_run) == ONE


@pytest.mark.parametrize(
    ("columns", "text"),
    [
        (["threads=p", "seconds=took:ms"], "m,p,took\n8,1,12.5\n8,2,7.5\n"),
        (["threads=P", "seconds=Took:us"], "m,p,took\n8,1,12500\n8,2,7500\n"),
        (["seconds=*threads:ms"], "m,1thread,2threads\n8,12.5,7.5\n"),
        (["seconds=* core:ms"], "m,1 core,2 cores\n8,12.5,7.5\n"),
        (["seconds=x*:ms"], "m,x1,x2\n8,12.5,7.5\n"),
        (["seconds=p* time:us"], "m,p1 time,p2 time\n8,12500,7500\n"),
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


def test_several_columns_of_runs_are_repetitions(tmp_path: Path) -> None:
    path = table(tmp_path, "op,m,threads,run1_ms,run2_ms,run3_ms\nmm,8,1,3,4,5\nmm,8,2,1,,2\n")
    notes: list[str] = []
    assert read(table(tmp_path, "m,threads,time_ms_run1,time_ms_run2\n8,1,3,4\n", "u.csv")) == {(8, 1): [0.003, 0.004]}
    found = {m.case.threads: [s.seconds for s in m.samples] for m in read_long_form(path, note=notes.append)}
    assert found == {1: [0.003, 0.004, 0.005], 2: [0.001, 0.002]}
    assert "left out 1 line without a time" in notes[-1]


@pytest.mark.parametrize(
    ("text", "column", "expected"),
    [
        (
            "machine,cores,m,t1,t2,t4\nvm,16,8,3,2,1\n",
            "seconds=t*:s",
            {(16, 8, 1): [3], (16, 8, 2): [2], (16, 8, 4): [1]},
        ),
        ("machine,cores,m,t1,t2,t4\nvm,16,8,3,2,1\n", "", {(16, 8, 1): [3], (16, 8, 2): [2], (16, 8, 4): [1]}),
        ("cores,threads_1,threads_2\n16,3,2\n", "", {(16, 1): [3], (16, 2): [2]}),
        ("cores,t1,t2\n16,3,2\n", "threads=cores", {(16,): [3, 2]}),
        ("cores,t1,t2\n16,3,2\n", "ignored=cores", {(1,): [3], (2,): [2]}),
        ("n1,n2,t1,t2\n16,8,3,2\n", "", {(16, 8, 1): [3], (16, 8, 2): [2]}),
        ("cores,run1,run2\n16,3,2\n", "", {(16,): [3, 2]}),
        ("threads,t_128,t_256\n4,3,2\n", "seconds=t_*:s", {(128, 4): [3], (256, 4): [2]}),
        ("threads,time0,time1\n4,3,2\n", "", {(4,): [3, 2]}),
    ],
)
def test_numbers_in_names_are_threads_sizes_or_repetitions(
    tmp_path: Path, text: str, column: str, expected: Times
) -> None:
    assert read(table(tmp_path, text), *([column] if column else [])) == expected


def test_times_say_whether_commas_are_of_decimals(tmp_path: Path) -> None:
    text = "alpha;threads;time_us;speedup\n{}\n"
    expected = {(0.5, 1): [1.25e-6], (0.5, 2): [7.5e-7], (2, 1): [3e-6]}
    assert read(table(tmp_path, text.format("0,5;1;1,250;1\n0,5;2;,75;1,7\n2;1;3;1"))) == expected
    units = read(table(tmp_path, "m;threads;time\n8;1;12,5 ms\n8;2;7,5ms\n"))
    assert units == ONE


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
        ("m,threads,time_ms,time_us\n8,1,1,9\n", r"seconds may be 'time_ms' or 'time_us'; say which.*=time_ms:ms"),
        ("m,num_threads,OMP_NUM_THREADS,ms\n8,1,2,9\n", r"threads may be 'num_threads' or 'OMP_.*--column 'threads="),
        ("m,t1_ms,t2_ms,1,2\n8,1,2,9,9\n", r"times may be in 't\*_ms' or '\*'; say .*--column 'seconds=t\*_ms:ms'"),
        ("nproc,time_1,time_2\n8,1,2\n", r"threads may be 'nproc' or the numbers in 'time_\*'; say which: --column '"),
        ("np,t1,t2\n8,1,2\n", r"--column 'threads=np' or --column 'ignored=np', with --column 'seconds=t\*:ms'"),
        ("nt,t1,t2\n8,1,2\n", r"threads may be 'nt' or the numbers in 't\*'"),
        ("procs,threads_per_proc,time_ms\n2,2,5\n", r"threads may be 'procs' or 'threads_per_proc'; say which"),
        ("op,threads,time_128,time_256\na,1,1,3\n", r"'time_\*' may be sizes or threads.* 'seconds=time_\*:ms'; if"),
        ("op,threads,sample_16,sample_32\na,1,1,3\n", r"'sample_\*' may be sizes .*--column 'ignored=threads'"),
        ("op,threads,t1_us,t2_us,t4_us\na,1,1,3,9\n", r"'t\*_us' may be sizes or threads.*'seconds=t\*_us:us'"),
        ("m;threads;filter;time_us\n8;1;3,3;1,250\n", r"'time_us': must be a number, got '1,250'; write it without a"),
        ("m;threads;time_us;speedup\n8;1;1,250;1\n8;2;900;1,4\n", r"'time_us': must be a number, got '1,250'"),
        ("m;threads;time_us\n8;1;0,75\n8;2;1.5\n", r"'time_us': must be a number, got '0,75'"),
        ("shape\tthreads\tms\n128,64\t1\t9.5\n128,640\t1\t7\n", r"column 'shape': must be a number with a decimal po"),
        ("shape\tthreads\tms\n128,64\t1\t9,5\n128,640\t1\t7\n", r"column 'shape': must be a number with a decimal po"),
        ("m,threads,compile_time_s,inference_ms\n8,1,9,1\n", r"seconds may be 'compile_time_s' or 'inference_ms'; say "
         r"which it is: --column 'seconds=compile_time_s:s' or --column 'seconds=inference_ms:ms'"),
        ("m,threads,lock_wait_time_us,task_us\n8,1,9,1\n", r"may be 'lock_wait_time_us' or 'task_us'"),
        ("m,threads,saved_time_ms\n8,1,9\n", r"missing column 'seconds'"),
        ("m,2022,2023\n8,9,7\n", r"columns '2022', '2023' are hardly numbers of threads; if they are: --column 'sec"),
        ("m,threads,time,wall_ms\n8,1,1700000000,9\n", r"which it is: --column 'seconds=wall_ms:ms' or"),
        ("m,threads,gflop/s\n8,1,9\n", r"missing column 'seconds'"),
        ("m,threads,cpu_time\n8,1,9\n", r"missing column 'seconds'; it has .*Say which it is: --column sec"),
        ("m,threads,time_min\n8,1,9\n", r"missing column 'seconds'"),
        ("m,threads,time (min)\n8,1,9\n", r"missing column 'seconds'"),
        ("m,p50,p90,p99\n8,1,2,3\n", r"missing column 'threads', 'seconds'"),
        ("m,threads,time,unit\n8,1,9,min\n", r"line 2, column 'time': is in the unit 'min'; it must be s, ms, us, ns"),
        ("m;threads;time_ms\n8;1;1,234\n8;2;12,345\n", r"line 2, column 'time_ms': must be a number, got '1,234'"),
        ("m,threads,time_ms\n8,1,fast\n", r"line 2, column 'time_ms': must be a number, got 'fast'"),
        ("m,t1_ms,t2_ms\n8,1,fast\n", r"line 2, column 't2_ms': must be a number, got 'fast'"),
        ("m,num_threads,time_ms\n8,x,1\n", r"line 2, column 'num_threads': must be a number, got 'x'"),
        ("m,threads,affinity,ms\n8,1,wide,1\n", r"line 2, column 'affinity': must be compact or spread, or as OpenMP"),
        ("8 1 12.5\n8 2 7.5\n", r"line 1 must have the names of columns, .*, got 8, 1, 12.5; if these are num"),
        ("gemm,64,128,256,0.5\ngemm,64,128,512,0.9\n", r"line 1 must have the names"),
        ("gemm,300,500,700,1,5\ngemm,300,500,700,2,3\n", r"line 1 must have the names"),
        ("1,2,4\n9,5,3\n", r"line 1 must have the names of columns.*--column 'seconds=\*:s'"),
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


def test_words_of_openmp_are_ways_to_place_threads(tmp_path: Path) -> None:
    rows = "8,1,close,1\n8,1,spread,2\n8,1,false,3\n8,1,TRUE,4\n8,2,primary,5\n"
    notes: list[str] = []
    path = table(tmp_path, f"m,threads,OMP_PROC_BIND,ms\n{rows}")
    assert read(path, notes=notes) == {(8, 1): [0.001], (8, 1, "spread"): [0.002]}
    assert sum("rows with OMP_PROC_BIND=" in note and "left out" in note for note in notes) == 3
    for word in ("true", "master", "false"):
        assert read(table(tmp_path, f"m,threads,proc_bind,ms\n8,1,{word},1\n")) == {(8, 1): [0.001]}
    words = "granularity=fine;compact;1;0", "granularity=fine;scatter"
    text = "m,threads,KMP_AFFINITY,ms\n" + "\n".join(
        f'8,1,"{word.replace(";", ",")}",{i}' for i, word in enumerate(words, 1)
    )
    assert read(table(tmp_path, text)) == {(8, 1): [0.001], (8, 1, "spread"): [0.002]}


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
        "gflops", "speedup", "Efficiency", "std (us)", "Std Dev", "cpu_time", "user,sys", "min,max", "time_max_ms",
        "p99_us", "p50", "gflop/s", "runs_per_s", "max_s", "eff", "iterations",
        "total time [s]", "bandwidth (GB/s)", "cpu_throughput",
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
    for size in ("m", "id"):
        wide = table(tmp_path, f"{size},name,time_budget,speedup,t1_ms,t2_ms\na,x,10,2.5,1,2\na,y,10,3.5,3,4\n")
        found = [m.op.attributes["label"] for m in read_long_form(wide)]
        assert found == ([f"{name} m=a" for name in "xxyy"] if size == "m" else [f"{name} id=a" for name in "xxyy"])


def test_dates_describe_no_op_and_sizes_with_such_words_do(tmp_path: Path) -> None:
    text = "date,time_steps,timesteps,max_depth,threads,time_ms\n{}"
    rows = "2024-01-01T00:00:00,5,6,7,1,12.5\n2024-01-01T00:00:01,5,6,7,2,7.5\n"
    assert read(table(tmp_path, text.format(rows))) == {(7, 5, 6, p): [t] for p, t in ((1, 0.0125), (2, 0.0075))}


def test_a_number_in_the_names_of_columns_beside_threads_is_a_size(tmp_path: Path) -> None:
    path = table(tmp_path, "threads,gemm_256,gemm_512\n1,12.5,99\n2,7.5,50\n")
    assert read(path, "seconds=gemm_*:ms") == {
        (256, 1): [0.0125], (512, 1): [0.099], (256, 2): [0.0075], (512, 2): [0.05]
    }  # fmt: skip


def test_cores_of_a_machine_are_no_threads_beside_these(tmp_path: Path) -> None:
    found = read(table(tmp_path, "cores,threads,time_ms\n64,1,12.5\n64,2,7.5\n"), op="fft")
    assert found == {(64, *key[1:]): times for key, times in ONE.items()}
