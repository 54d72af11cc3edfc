from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyperf
import pytest

from threadcast.core import Case, Machine, Measurement, Op, Sample
from threadcast.core.errors import InvalidInput
from threadcast.store.pyperf_export import write_pyperf

Measure = Callable[..., Measurement]


def slower(measurement: Measurement, factor: float) -> Measurement:
    samples = tuple(Sample(s.seconds * factor) for s in measurement.samples)
    return Measurement(measurement.op, measurement.machine, measurement.case, samples)


def test_pyperf_compares_two_exports(tmp_path: Path, measure: Measure) -> None:
    before = [measure(1), measure(2, threads=4)]
    write_pyperf(before, tmp_path / "before.json")
    write_pyperf([slower(m, 2.0) for m in before], tmp_path / "after.json")
    command = [sys.executable, "-m", "pyperf", "compare_to", "before.json", "after.json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    for m in before:
        assert f"{m.op.key} {m.case}: Mean +- std dev" in done.stdout
    assert done.stdout.count("2.00x slower") == len(before) + 1  # and their geometric mean


def test_every_sample_and_what_was_measured_is_in_the_suite(tmp_path: Path, measure: Measure) -> None:
    added = [measure(1), measure(2), measure(1)]
    write_pyperf(added, tmp_path / "suite.json")
    one, two = pyperf.BenchmarkSuite.load(str(tmp_path / "suite.json")).get_benchmarks()
    assert [list(run.values) for run in one.get_runs()] == [[s.seconds for s in measure(1).samples]] * 2
    metadata = two.get_metadata()
    assert (metadata["threads"], metadata["affinity"], metadata["kind"]) == (2, "compact", "mm")
    assert (metadata["machine"], metadata["condition_cache"]) == (added[1].machine.fingerprint, "warm")


def test_cold_runs_and_machines_are_kept_apart(tmp_path: Path, machine: Machine) -> None:
    def at(cache: str, on: Machine) -> Measurement:
        return Measurement(Op("mm"), on, Case(1), (Sample(1.0),), {"cache": cache})

    other = Machine.uniform("other", 2)
    write_pyperf([at("warm", machine), at("cold", machine)], tmp_path / "one.json")
    write_pyperf([at("warm", machine), at("warm", other)], tmp_path / "two.json")
    one, two = (pyperf.BenchmarkSuite.load(str(tmp_path / f"{n}.json")).get_benchmark_names() for n in ("one", "two"))
    key = Op("mm").key
    assert sorted(one) == [f"{key} 1 compact", f"{key} 1 compact cold"]
    assert sorted(two) == sorted(f"{key} 1 compact {m.fingerprint}" for m in (machine, other))


def test_what_pyperf_cannot_hold_is_refused_and_the_old_file_stays(tmp_path: Path, measure: Measure) -> None:
    path = tmp_path / "suite.json"
    write_pyperf([measure()], path)
    before = path.read_bytes()
    m = measure()
    instant = Measurement(m.op, m.machine, m.case, (Sample(0.0),))
    with pytest.raises(InvalidInput, match="0 s"):
        write_pyperf([m, instant], path)
    with pytest.raises(InvalidInput, match="no measurements"):
        write_pyperf([], path)
    assert (path.read_bytes(), os.listdir(tmp_path)) == (before, [path.name])
