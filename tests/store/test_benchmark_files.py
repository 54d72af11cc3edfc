"""Files of Google Benchmark 1.9.5, pyperf 2.11 and hyperfine 1.15, as these programs write them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyperf
import pytest

from threadcast.core.errors import FormatError
from threadcast.store.long_form import read_long_form

CONTEXT = """\
2026-11-29T19:28:08+00:00
Running ./gemm_bench
Run on (2 X 2596.12 MHz CPU s)
CPU Caches:
  L1 Data 48 KiB (x2)
Load Average: 6.02, 3.41, 2.59
***WARNING*** ASLR is enabled, the results may have unreproducible noise in them.
"""
HEAD = (
    "name,iterations,real_time,cpu_time,time_unit,bytes_per_second,items_per_second,label,error_occurred,error_message"
)


def google(name: str, real_time: Any = 8.0, unit: str = "ms", **others: Any) -> dict[str, Any]:
    timed = {"iterations": 20, "real_time": real_time, "cpu_time": 99.0, "time_unit": unit}
    about = {"name": name, "run_name": name, "run_type": "iteration", "repetition_index": 0, "threads": 1}
    return {**about, **timed, **others}


def google_json(*entries: dict[str, Any]) -> str:
    return json.dumps({"context": {"host_name": "vm", "num_cpus": 2}, "benchmarks": list(entries)}, indent=2)


def read(
    tmp_path: Path, text: str, *columns: str, notes: list[str] | None = None
) -> dict[tuple[Any, ...], list[float]]:
    """Seconds by the op's name, what describes the op, and threads."""
    (tmp_path / "bench.out").write_text(text)
    found: dict[tuple[Any, ...], list[float]] = {}
    for m in read_long_form(tmp_path / "bench.out", columns=columns, note=([] if notes is None else notes).append):
        own = [f"{name}={value}" for name, value in m.op.attributes.items() if name != "label"]
        kind = m.op.attributes["label"] if m.op.kind == "op" else m.op.kind  # as of any table without sizes
        found.setdefault((kind, *sorted(own), m.case.threads), []).extend(s.seconds for s in m.samples)
    return found


def test_repetitions_of_google_benchmark_are_samples_and_its_aggregates_none(tmp_path: Path) -> None:
    name, notes = '"BM_gemm/n:256/threads:{}/iterations:20/repeats:3/real_time{}",20,{},9,ms,,,,,', list[str]()
    rows = [name.format(4, "", value) for value in (8.5, 7.25, 9)]
    rows += [name.format(4, f"_{what}", value) for what, value in (("mean", 8.25), ("median", 8.5), ("stddev", 0.7))]
    rows += ['"BM_gemm/n:256/threads:4/iterations:20/repeats:3/real_time_cv",3,0.044,0.040,,,,,,']
    rows += [
        '"BM_axpy/1024/iterations:50",50,8125.5,8124.92,ns,,,,,',
        '"BM_skip/9/iterations:50",,,,,,,,true,"no device"',
    ]
    found = read(tmp_path, CONTEXT + "\n".join([HEAD, *rows]), notes=notes)
    assert found == {("BM_gemm", "n=256", 4): [0.0085, 0.00725, 0.009], ("BM_axpy", "arg1=1024", 1): [8.1255e-06]}
    assert [note.partition(": ")[2] for note in notes] == ["left out 1 line without a time"]


def test_json_of_google_benchmark_has_the_machine_and_the_threads_that_it_started(tmp_path: Path) -> None:
    name = "BM_dot<std::complex<float>>/m:8/64/real_time/threads:2"
    entries = [google(name, time, unit, threads=2) for time, unit in ((8.0, "us"), (5.0, "ns"), (3.0, "s"))]
    mean = {"run_type": "aggregate", "aggregate_name": "mean", "aggregate_unit": "time"}
    entries += [google(f"{name}_mean", 7.0, **mean), google("BM_x/8", 1.0, error_occurred=True, error_message="no")]
    entries += [google("BM_dot_BigO", cpu_coefficient=2.5, run_type="aggregate", aggregate_name="BigO")]
    found = read(tmp_path, google_json(*entries))
    assert found == {("BM_dot<std::complex<float>>", "arg1=64", "m=8", 2): [8e-06, 5e-09, 3.0]}
    assert read_long_form(tmp_path / "bench.out")[0].machine.name == "vm"


@pytest.mark.parametrize(
    ("kinds", "seconds"), [(("mean", "median", "stddev", "cv"), 0.002), (("mean", "stddev"), 0.001)]
)
def test_where_there_are_only_aggregates_the_median_counts_else_the_mean(
    tmp_path: Path, kinds: tuple[str, ...], seconds: float
) -> None:
    times = dict(zip(("mean", "median", "stddev", "cv"), (1.0, 2.0, 3.0, 4.0), strict=True))
    for text in (
        google_json(*(
            google(f"BM_a/threads:2_{kind}", times[kind], run_type="aggregate", aggregate_name=kind) for kind in kinds
        )),
        "\n".join([HEAD, *(f"BM_a/threads:2_{kind},9,{times[kind]},9,ms,,,,," for kind in kinds)]),
    ):  # fmt: skip
        assert read(tmp_path, text) == {("BM_a", 2): [seconds]}


def test_benchmarks_that_are_named_as_aggregates_are_their_own_and_labels_tell_them_apart(tmp_path: Path) -> None:
    rows = ["reduce_mean,900,2,9,ms,,,,,", "reduce_stddev,500,3,9,ms,,,,,", "a,9,4,9,ms,,,x,,", "a,9,5,9,ms,,,y,,"]
    assert read(tmp_path, "\n".join([HEAD, *rows]), "threads=4") == {
        ("reduce_mean", 4): [0.002], ("reduce_stddev", 4): [0.003], ("a", "about=x", 4): [0.004],
        ("a", "about=y", 4): [0.005],
    }  # fmt: skip


@pytest.mark.parametrize("argument", ["num_threads:4", "nthreads:4", "OMP_NUM_THREADS:4", "4threads", "threads4"])
def test_an_argument_of_a_name_may_be_the_number_of_threads(tmp_path: Path, argument: str) -> None:
    assert read(tmp_path, google_json(google(f"BM_gemm/256/{argument}"))) == {("BM_gemm", "arg1=256", 4): [0.008]}


def test_threads_that_no_name_says_are_asked_for(tmp_path: Path) -> None:
    text = google_json(google("BM_gemm/256/1", 8.0), google("BM_gemm/256/4", 2.0))
    with pytest.raises(FormatError, match=r"missing column 'threads'; it has op, arg1, arg2, seconds\. Line 1"):
        read(tmp_path, text)
    expected = {("BM_gemm", "arg1=256", 1): [0.008], ("BM_gemm", "arg1=256", 4): [0.002]}
    assert read(tmp_path, text, "threads=arg2") == expected
    alone = read(tmp_path, text, "threads=1")
    assert set(alone) == {("BM_gemm", "arg1=256", f"arg2={n}", 1) for n in (1, 4)}
    with pytest.raises(
        FormatError, match=r"threads may be 'nthreads' or 'threads'; say which it is: --column 'threads="
    ):
        read(tmp_path, google_json(google("BM_gemm/nthreads:8/threads:2", threads=2)))


def suite(tmp_path: Path, *benchmarks: tuple[str, dict[str, Any], list[list[float]]]) -> str:
    def run(name: str, metadata: dict[str, Any], values: list[float]) -> pyperf.Run:
        own = {"name": name, "loops": 2**10, "inner_loops": 2, "hostname": "vm", "runnable_threads": 9, "cpu_count": 64}
        return pyperf.Run(values, warmups=[(1, 9.0)], metadata={**own, **metadata}, collect_metadata=False)

    found = [pyperf.Benchmark([run(name, about, values) for values in runs]) for name, about, runs in benchmarks]
    pyperf.BenchmarkSuite(found).dump(str(tmp_path / "suite.json"), replace=True)
    return (tmp_path / "suite.json").read_text()


@pytest.mark.parametrize(
    ("name", "metadata"),
    [
        ("sgemm m=300 threads=4", {}), ("sgemm[m=300-threads=4]", {}), ("sgemm m=300, 4 threads", {}),
        ("sgemm m=300", {"threads": 4}), ("sgemm", {"num_threads": 4, "m": 300}),
        ("sgemm m=300 threads=9", {"threads": 4}),
    ],
)  # fmt: skip
def test_values_of_pyperf_are_seconds_on_threads_of_the_name_or_the_metadata(
    tmp_path: Path, name: str, metadata: dict[str, Any]
) -> None:
    found = read(tmp_path, suite(tmp_path, (name, metadata, [[1.5e-06, 2.5e-06], [3.5e-06]])))
    assert found == {("sgemm", "m=300", 4): [1.5e-06, 2.5e-06, 3.5e-06]}


def test_suites_of_pyperf_have_several_benchmarks_and_need_times_and_threads(tmp_path: Path) -> None:
    two = suite(tmp_path, ("a threads=1", {}, [[1.0]]), ("a threads=2", {}, [[0.5]]))
    assert read(tmp_path, two) == {("a", 1): [1.0], ("a", 2): [0.5]}
    with pytest.raises(
        FormatError, match=r"benchmark 1, 'a threads=1': its values are in the unit 'byte' and no times"
    ):
        read(tmp_path, suite(tmp_path, ("a threads=1", {"unit": "byte"}, [[1.0]])))
    with pytest.raises(FormatError, match=r"missing column 'threads'; it has op, seconds\. Line 1"):
        read(tmp_path, suite(tmp_path, ("a", {}, [[1.0]])))


def fine(command: str, *times: float, codes: list[int | None] | None = None, **parameters: str) -> dict[str, Any]:
    summary = {"mean": 9.0, "stddev": 1.0, "median": times[0], "user": 9.0, "system": 9.0, "min": 1.0, "max": 9.0}
    more = {"times": list(times), "exit_codes": codes or [0] * len(times)}
    return {"command": command, **summary, **more, **({"parameters": parameters} if parameters else {})}


@pytest.mark.parametrize(
    ("command", "own"),
    [
        ("OMP_NUM_THREADS={threads} ./bin/gemm {n}", ("./bin/gemm 4", "n=4")),
        ("./gemm 1 {n} {threads}", ("./gemm 1 4", "n=4")),
        ("./gemm --size {n} --threads {threads}", ("./gemm --size 4 --threads", "n=4")),
    ],
)
def test_runs_of_hyperfine_are_samples_of_the_command_without_its_parameters(
    tmp_path: Path, command: str, own: tuple[str, ...]
) -> None:
    entries = [
        fine(command.format(threads=t, n=4), 1.0 / t, 2.0, 9.0, codes=[0, 0, None], threads=str(t), n="4")
        for t in (1, 2, 4)
    ]
    found = read(tmp_path, json.dumps({"results": entries}))
    assert found == {(*own, t): [1.0 / t, 2.0] for t in (1, 2, 4)}


def test_threads_of_hyperfine_may_be_in_the_command_alone(tmp_path: Path) -> None:
    entries = [fine(f"OMP_NUM_THREADS={t} ./gemm", 1.0 / t, t=str(t)) for t in (1, 2)]
    assert read(tmp_path, json.dumps({"results": entries})) == {("./gemm", 1): [1.0], ("./gemm", 2): [0.5]}
    for form in ("./gemm --num-threads={}", "./gemm --threads {}", "OMP_NUM_THREADS={} ./gemm"):
        entries = [fine(form.format(t), 1.0 / t) for t in (1, 2)]
        assert read(tmp_path, json.dumps({"results": entries})) == {("./gemm", 1): [1.0], ("./gemm", 2): [0.5]}
    with pytest.raises(FormatError, match=r"missing column 'threads'; it has op, n, seconds"):
        read(tmp_path, json.dumps({"results": [fine("./gemm 4", 1.0, n="4")]}))


def test_json_of_another_make_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        FormatError, match=r"is not as Google Benchmark, pyperf or hyperfine write it: KeyError\('median'"
    ):
        read(tmp_path, '{"results": [{"command": "a"}]}')
