"""Tables as people really keep them, read with exact seconds; and those whose meaning is refused, with the remedy."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from threadcast.core.errors import FormatError, InvalidInput
from threadcast.store.long_form import read_long_form

Times = dict[tuple[object, ...], list[float]]


def read(path: Path, *columns: str, notes: list[str] | None = None) -> Times:
    """Seconds by what describes the op, and the threads."""
    found: Times = {}
    said = [] if notes is None else notes
    for m in read_long_form(path, op="gemm", columns=columns, note=said.append):
        own = [value for name, value in sorted(m.op.attributes.items()) if name != "label"]
        found.setdefault((*own, m.case.threads), []).extend(sample.seconds for sample in m.samples)
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
        "m,# threads,msec", "m,thread count,real_time_ms", "m,Number of threads,runtime in ms",
        "m,threads,median_time_ms", "M,THREADS,LATENCY_MS", "m,numThreads,median_ms",
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
        ("duration_ns", ("12500000", "7500000")), ("seconds", ("0.0125", "0.0075")),
    ],
)  # fmt: skip
def test_the_unit_comes_from_the_name_of_the_time(tmp_path: Path, head: str, cells: tuple[str, str]) -> None:
    assert read(table(tmp_path, f"m,threads,{head}\n8,1,{cells[0]}\n8,2,{cells[1]}\n")) == ONE


@pytest.mark.parametrize(
    "text",
    [
        "m;threads;time_ms;\r\n8;1;12.5;\r\n8;2;7.5;\r\n;;;\r\n",
        "m\tthreads\ttime_ms\n8\t1\t12.5\n8\t2\t7.5\n",
        "\ufeff# measured on monday\n\nm,threads,time_ms\n8,1,12.5\n# two threads\n8,2,7.5\n",
        gzip.compress(b"m,threads,time_ms\n8,1,12.5\n8,2,7.5\n", mtime=0),
    ],
)
def test_tables_are_read_whatever_is_between_their_cells(tmp_path: Path, text: str | bytes) -> None:
    assert read(table(tmp_path, text, "t.dat")) == ONE


@pytest.mark.parametrize(
    ("columns", "text"),
    [
        (["threads=p", "seconds=took:ms"], "m,p,took\n8,1,12.5\n8,2,7.5\n"),
        (["threads=P", "seconds=Took:us"], "m,p,took\n8,1,12500\n8,2,7500\n"),
        (["seconds=t*:ms"], "m,t1,t2\n8,12.5,7.5\n"),
        (["seconds=time.*_ms:ms"], "m,time.1_ms,time.2_ms\n8,12.5,7.5\n"),
        (["seconds=*:ms"], "m,1,2\n8,12.5,7.5\n"),
        (["seconds=inference_ms:ms", "ignored=load_ms"], "m,threads,load_ms,inference_ms\n8,1,9,12.5\n8,2,8,7.5\n"),
        (["ignored=threads", "seconds=t*:ms"], "m,threads,t1,t2\n8,64,12.5,7.5\n"),
        (["ignored=date", "ignored=host id"], "m,date,host id,threads,time_ms\n8,mon,a,1,12.5\n8,tue,b,2,7.5\n"),
        (["threads=used", "ignored=threads"], "m,threads,used,time_ms\n8,64,1,12.5\n8,64,2,7.5\n"),
        (["seconds=c::ms"], "m,threads,c:\n8,1,12.5\n8,2,7.5\n"),
    ],
)
def test_columns_are_what_the_user_says(tmp_path: Path, columns: list[str], text: str) -> None:
    assert read(table(tmp_path, text), *columns) == ONE


def test_a_column_that_is_called_as_another_one_is_said_to_be_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="another column is op; give --column ignored=op"):
        read(table(tmp_path, "op,what,threads,ms\na,b,1,1\n"), "op=what")


def test_a_number_of_threads_may_be_that_of_all_rows(tmp_path: Path) -> None:
    for head, row in (("m,time_ms", "8,12.5"), ("m,num_threads,time_ms", "8,64,12.5")):
        assert read(table(tmp_path, f"{head}\n{row}\n"), "threads=4") == {(8, 4): [0.0125]}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("m,threads,time\n8,1,12500\n8,2,7500\n", r"missing column 'seconds'; .*--column seconds=NAME:ms"),
        ("m,t1_ms,t2_ms\n8,12500,7500\n", r"missing column 'threads', 'seconds'.*seconds=t\*:ms"),
        ("m,threads,time_ms,time_us\n8,1,1,9\n", r"seconds may be 'time_ms' or 'time_us'; say which.*=time_ms:ms"),
        ("m,threads,mean_ms,median_ms\n8,1,1,9\n", r"seconds may be 'mean_ms' or 'median_ms'"),
        ("m,num_threads,OMP_NUM_THREADS,ms\n8,1,2,9\n", r"threads may be 'num_threads' or 'OMP_.*--column 'threads="),
        ("procs,threads_per_proc,time_ms\n2,2,5\n", r"missing column 'threads'"),
        ("m;threads;time_us\n8;1;0,75\n", r"'time_us': must be a number, got '0,75'; write it without a comma"),
        ("m,threads,time_ms\n8,1,12.5 ms\n", r"'time_ms': must be a number, got '12.5 ms'"),
        ("m,threads,time_ms\n8,1,1_2\n", r"'time_ms': must be a number, got '1_2'"),
        ("shape\tthreads\tms\n128,64\t1\t9.5\n", r"column 'shape': must be a number with a decimal po"),
        ("m,threads,compile_time_s,inference_ms\n8,1,9,1\n", r"missing column 'seconds'"),
        ("m,threads,s\n8,1,9\n", r"missing column 'seconds'"),
        ("m,threads,time (min)\n8,1,9\n", r"missing column 'seconds'"),
        ("m,num_threads,time_ms\n8,x,1\n", r"line 2, column 'num_threads': must be a number, got 'x'"),
        ("m,threads,affinity,ms\n8,1,close,1\n", r"line 2, column 'affinity': must be compact or spread \(OpenMP's"),
        ("8,1,12.5\n8,2,7.5\n", r"missing column .*Line 1 must name the columns"),
        ("m,m,threads,ms\n8,8,1,1\n", r"the column 'm' is there twice"),
        ("m,threads,ms\n8,1\n", r"line 2: 2 cells, but line 1 names 3 columns"),
        ("m,threads,ms,gflops\n8,1,12.5,3.1\n8,2,7.5,5.2\n", r"described by 'gflops',.* --column "
         "'ignored=gflops'; .* --column 'feature=gflops'"),
        ("m,k,threads,ms\n8,1,1,1\n9,1,2,1\n7,2,4,1\n", r"not clear whether ops are described by 'm' and 'k',"),
        ("m,cpu,threads,ms\n8,a,1,1\n8,a,2,1\n8,b,4,1\n8,b,8,1\n9,a,1,1\n", r"described by 'cpu',"),
        ("threads,ms,speedup\n1,6,1\n2,4,2\n3,3,2\n", r"not clear whether ops are described by 'speedup',"),
        ("m,threads,ms,speedup\n8,1,1,1\n8,2,1,2\n9,1,1,1\n9,2,1,2\n7,1,1,1\n", r"described by 'speedup',"),
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
        ("time_ms", "must be ROLE=NAME"), ("speed=x", "must be ROLE=NAME, where ROLE is machine, op, threads"),
        ("seconds=x:min", "must end in its unit, which is s, ms, us, ns"),
        ("seconds=time_ms", "must end in its unit, which is s, ms, us, ns: seconds=time_ms:ms"),
        ("threads=x", "has no column 'x', which --column"),
        ("seconds=x*:ms", "has no column 'x*'"),
    ],
)  # fmt: skip
def test_a_column_that_is_not_there_or_has_no_unit_is_refused(tmp_path: Path, column: str, said: str) -> None:
    with pytest.raises(InvalidInput) as error:
        read(table(tmp_path, "m,threads,time_ms\n8,1,1\n"), column)
    assert said in str(error.value)


@pytest.mark.parametrize(
    "columns",
    [
        ("seconds=t*:us", "seconds=u:ms"), ("seconds=u:ms", "seconds=t*:us"), ("threads=4", "threads=m"),
        ("threads=m", "ignored=m"), ("seconds=t*:us", "feature=t1"), ("op=m", "op=u"),
    ],
)  # fmt: skip
def test_a_role_or_a_column_is_said_once(tmp_path: Path, columns: tuple[str, ...]) -> None:
    with pytest.raises(InvalidInput, match=r"--column says (\w+ twice|two things of the column)"):
        read(table(tmp_path, "m,t1,t2,u\n1,5000,3000,9\n"), *columns)


@pytest.mark.parametrize(
    ("text", "columns", "ops", "noted"),
    [
        ("m,threads,ms,speedup\n8,1,4,1\n8,2,2,2\n8,3,2,2\n9,1,4,1\n9,2,2,2\n9,3,2,2\n", [], {8: 3, 9: 3}, "'speedup'"),
        ("m,threads,ms,iters\n8,1,4,9\n8,2,2,9\n8,4,2,5\n8,8,2,5\n9,1,4,9\n", [], {8: 4, 9: 1}, "'iters'"),
        ("m,threads,ms,gflops\n8,1,4,7\n8,2,2,\n8,4,2,\n9,1,4,7\n", [], {8: 3, 9: 1}, "'gflops'"),
        ("m,threads,ms,gflops\n8,1,4,3\n8,2,2,5\n", ["ignored=gflops"], {8: 2}, "by 'm'"),
        ("n,threads,ms\n8,1,4\n16,2,2\n", ["feature=n"], {8: 1, 16: 1}, "by 'n': 2 ops, each at 1 number of"),
        ("m,k,threads,ms\n8,1,1,1\n9,1,2,1\n", ["feature=m"], {(8, 1): 1, (9, 1): 1}, "by 'm', 'k'"),
        ("m,threads,ms,gflops\n8,1,4,3\n8,2,2,5\n9,1,4,5\n", ["feature=gflops"], {(3, 8): 1, (5, 8): 1, (5, 9): 1},
         "3 ops, each at 1 number of threads"),
        ("m,t1,t2,time_ms\n8,5,3,9\n9,5,3,7\n", ["seconds=t*:us"], {8: 2, 9: 2}, "left out: 'time_ms'"),
        ("m,threads,ms\n1,1,1\n2,1,1\n3,1,1\n8,1,1\n8,2,1\n", [], {1: 1, 2: 1, 3: 1, 8: 2}, "4 ops, each at 1 to 2"),
        ("op,m,repeat,threads,ms\nmm,8,1,1,1\nmm,9,2,1,3\nmm,8,1,2,1\n", [], {8: 2, 9: 1}, "by 'op', 'm'"),
        ("m,flops,threads,ms\n8,64,1,1\n8,64,2,1\n9,81,1,1\n9,81,2,1\n", [], {8: 2, 9: 2}, "by 'm', 'flops'"),
        ("op,feature.m,x,threads,ms\na,8,1,1,1\na,8,2,2,1\n", [], {8: 2}, "describe no op: 'x'"),
    ],
)  # fmt: skip
def test_ops_are_told_apart_by_what_rows_are_not_by_results(
    tmp_path: Path, text: str, columns: list[str], ops: dict[object, int], noted: str
) -> None:
    notes: list[str] = []
    found: dict[object, set[int]] = {}
    for m in read_long_form(table(tmp_path, text), columns=columns, note=notes.append):
        own = tuple(value for name, value in m.op.attributes.items() if name != "label")
        found.setdefault(own[0] if len(own) == 1 else own, set()).add(m.case.threads)
    assert {own: len(threads) for own, threads in found.items()} == ops
    assert any(noted in note for note in notes)


@pytest.mark.parametrize("columns", [["seconds=t*:ms"], ["seconds=t*:ms", "threads=4"]])
def test_threads_that_are_said_in_two_ways_are_refused(tmp_path: Path, columns: list[str]) -> None:
    head = "m,num_threads,t1,t2\n8,1," if len(columns) == 1 else "m,t1,t2\n8,"
    with pytest.raises(FormatError, match="threads are said by names of columns, and otherwise"):
        read(table(tmp_path, f"{head}1,2\n"), *columns)


def test_rows_without_a_time_are_left_out_and_counted(tmp_path: Path) -> None:
    rows = ["8,1,12.5", "8,2,7.5", "8,4,", "8,4,NA", "8,4,nan"]
    path, notes = table(tmp_path, "m,threads,time_ms\n" + "\n".join(rows)), list[str]()
    assert read(path, notes=notes) == ONE
    assert f"{path}: left out 3 lines without a time" in notes


def test_a_table_of_one_op_is_called_as_its_file_is(tmp_path: Path) -> None:
    notes: list[str] = []
    found = read_long_form(table(tmp_path, "threads,time_ms\n1,12.5\n2,7.5\n"), note=notes.append)
    assert [(m.op.attributes["label"], m.case.threads, m.seconds) for m in found] == [
        ("t", 1, 0.0125), ("t", 2, 0.0075)
    ]  # fmt: skip
    assert any("no column tells ops apart: 1 op, each at 2 numbers of threads" in note for note in notes)


def test_the_name_of_an_op_has_the_sizes_that_it_has(tmp_path: Path) -> None:
    found = read_long_form(table(tmp_path, "op,m,k,threads,ms\nmm,8,9,1,1\nmm,8,9,2,1\nrelu,8,,1,1\n"))
    assert [m.op.attributes["label"] for m in found] == ["mm m=8 k=9"] * 2 + ["relu m=8"]
