"""Simulated counts, by really running valgrind on one small op."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.services import need
from threadcast.collector.counters import cachegrind
from threadcast.collector.counters.cachegrind import CacheSimulator
from threadcast.collector.counters.op_counters import cachegrind_counters
from threadcast.core import Cache, Case, Core, Machine, Measurement, Op, Sample, TensorSpec
from threadcast.core.errors import CounterUnavailable, MeasurementError

SIDE = 64
SQUARE = TensorSpec((SIDE, SIDE))
MATRIX_PRODUCT = Op(
    "mm", (SQUARE, SQUARE), {"target": "aten.mm.default", "args": [{"t": 0}, {"t": 1}], "kwargs": {}}, (SQUARE,)
)
MACHINE = Machine("one core", (Core(0, (0,), group=0),), (Cache(1, 32 * 1024, (0,)), Cache(3, 32 * 2**20, (0,))))

FILE = """\
# callgrind format
version: 1
part: 2
desc: Trigger: Client Request
events: Ir Dr Dw I1mr D1mr D1mw ILmr DLmr DLmw Bc Bcm Bi Bim
summary: 670047 216096 28457 8993 9413 2912 49 13 777 21930 992 3749 1889

fn=(0)
totals: 1 2 3
"""


def process_count() -> int:
    return len(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())


@pytest.mark.system
@pytest.mark.skipif(platform.machine() != "x86_64", reason="counts are simulated on x86-64 only")
def test_ops_have_the_instructions_that_their_arithmetic_needs_and_a_bad_one_fails_alone():
    need("valgrind")
    processes = process_count()
    with CacheSimulator(MACHINE) as simulator:
        counts = simulator.counts(MATRIX_PRODUCT)
        with pytest.raises(MeasurementError, match=r"mystery-.* cannot be simulated: CaptureError"):
            simulator.counts(Op("mystery", (SQUARE,)))
        assert process_count() == processes + 1
        again = simulator.counts(MATRIX_PRODUCT)
    assert process_count() == processes
    assert set(counts) == cachegrind.NAMES
    # the call of the op is the interpreter's, which needs fewer instructions for code that it has run more often
    assert again["cachegrind.instructions"] == pytest.approx(counts["cachegrind.instructions"], rel=0.05)
    # 2 n^3 operations, at most 16 (AVX2, multiply and add) in one instruction
    assert MATRIX_PRODUCT.flops / 16 <= counts["cachegrind.instructions"] <= MATRIX_PRODUCT.flops
    # every one of the 3 n^2 elements is loaded or stored, at most 8 at once
    assert counts["cachegrind.l1d_loads"] >= 2 * SIDE**2 / 8
    assert counts["cachegrind.l1d_stores"] >= SIDE**2 / 8
    # 48 KiB do not fit into the first cache and do fit into the last
    assert counts["cachegrind.l1d_load_misses"] > 100
    assert counts["cachegrind.llc_load_misses"] < 100


def test_counts_are_read_from_what_callgrind_writes():
    assert cachegrind.read_counts(FILE) == {
        "instructions": 670047, "l1d_loads": 216096, "l1d_stores": 28457, "l1d_load_misses": 9413,
        "l1d_store_misses": 2912, "llc_load_misses": 13, "llc_store_misses": 777, "branches": 21930 + 3749,
        "branch_misses": 992 + 1889,
    }  # fmt: skip


@pytest.mark.parametrize("text", ["", "events: Ir Dr\nsummary: 5\n", "events: Ir\nsummary: many\n"])
def test_a_file_that_is_cut_short_is_a_measurement_error(text):
    with pytest.raises(MeasurementError, match="cannot be read"):
        cachegrind.read_counts(text)


def test_without_valgrind_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(CounterUnavailable, match="apt install valgrind"):
        CacheSimulator(MACHINE).__enter__()


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], None]:
    """Puts a shell script in valgrind's place."""

    def put(script: str) -> None:
        (tmp_path / "valgrind").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "valgrind").chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
        monkeypatch.setattr(platform, "machine", lambda: "x86_64")

    return put


def test_on_another_processor_the_error_names_it(monkeypatch, stand_in):
    stand_in("")
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    with pytest.raises(CounterUnavailable, match="aarch64"):
        CacheSimulator(MACHINE).__enter__()


def test_a_process_that_fails_is_a_measurement_error_with_its_last_words_and_the_next_op_starts_another(stand_in):
    stand_in("echo 'first' >&2; echo 'unhandled instruction' >&2; exit 3")
    processes = process_count()
    with CacheSimulator(MACHINE) as simulator:
        for _ in range(2):
            with pytest.raises(MeasurementError, match=r"exit code 3.*unhandled instruction"):
                simulator.counts(MATRIX_PRODUCT)
            assert process_count() == processes


def test_a_simulation_that_takes_too_long_is_ended(stand_in):
    stand_in("exec tail -f /dev/null")
    processes = process_count()
    with CacheSimulator(MACHINE, timeout_s=0.2) as simulator:
        with pytest.raises(MeasurementError, match=r"timeout_s=0\.2"):
            simulator.counts(MATRIX_PRODUCT)
        assert process_count() == processes


# Answers the second op with an error; the counts are those of FILE, doubled in every second part.
SIMULATOR = """
for option in "$@"; do case $option in --callgrind-out-file=*) out=${option#*=};; esac; done
read op
printf 'events: Ir Dr Dw D1mr D1mw DLmr DLmw Bc Bcm Bi Bim\nsummary: 1 1 1 1 1 1 1 1 1 1 1\n' > $out.1
printf 'events: Ir Dr Dw D1mr D1mw DLmr DLmw Bc Bcm Bi Bim\nsummary: 9 9 9 9 9 9 9 9 9 9 9\n' > $out.2
echo '{"parts": [1, 2]}'
read op
echo '{"error": "no kernel"}'
read op
"""


def test_every_op_is_simulated_once_and_one_that_fails_has_a_reason(stand_in):
    stand_in(SIMULATOR)
    other = replace(MATRIX_PRODUCT, kind="other")
    progress = []
    counters = cachegrind_counters(
        [MATRIX_PRODUCT, other], MACHINE, on_progress=lambda done, total: progress.append((done, total))
    )
    assert counters.simulated[MATRIX_PRODUCT.key]["cachegrind.instructions"] == 8
    assert "no kernel" in counters.failed[other.key]
    assert progress == [(1, 2), (2, 2)]
    known = Measurement(MATRIX_PRODUCT, MACHINE, Case(1), (Sample(1.0, counters.simulated[MATRIX_PRODUCT.key]),))
    assert counters.lacking(known) == frozenset()
    assert counters.lacking(replace(known, samples=(Sample(1.0),))) == cachegrind.NAMES
    assert counters.lacking(replace(known, op=other, samples=(Sample(1.0),))) == frozenset()


def test_counts_that_are_stored_are_not_simulated_again(stand_in):
    stand_in("exit 3")
    samples, here = (Sample(1.0, dict.fromkeys(cachegrind.NAMES, 5.0)),), {"torch": torch.__version__}
    known = Measurement(MATRIX_PRODUCT, MACHINE, Case(1), samples, here)
    assert cachegrind_counters([MATRIX_PRODUCT], MACHINE, known=[known]).failed == {}
    elsewhere = replace(known, machine=Machine.uniform("another", 2))
    for other in (elsewhere, replace(known, conditions={"torch": "1.0"}), replace(known, conditions={})):
        assert set(cachegrind_counters([MATRIX_PRODUCT], MACHINE, known=[other]).failed) == {MATRIX_PRODUCT.key}


@pytest.mark.parametrize(
    ("size_bytes", "ways"), [(32 * 1024, 8), (48 * 1024, 12), (32 * 2**20, 8), (36 * 2**20, 9), (1, 8)]
)
def test_cache_geometries_are_ones_that_valgrind_takes(size_bytes, ways):
    size, found_ways, line = map(int, cachegrind._geometry(size_bytes).split(","))
    sets = size // (found_ways * line)
    assert found_ways == ways
    assert size == max(size_bytes, 512)
    assert sets & (sets - 1) == 0


def test_valgrind_is_told_no_cache_whose_size_is_not_known():
    options = cachegrind._cache_options(replace(MACHINE, caches=(Cache(1, 32 * 1024, (0,)), Cache(3, 0, (0,)))))
    assert [option.partition("=")[0] for option in options] == ["--D1"]
    assert cachegrind._cache_options(replace(MACHINE, caches=(Cache(1, 0, (0,)), Cache(3, 0, (0,))))) == []
