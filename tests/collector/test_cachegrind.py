"""Simulated counts, by really running valgrind on one small op."""

from __future__ import annotations

import platform
import shutil

import pytest

from threadcast.collector.counters import cachegrind
from threadcast.core import Cache, Case, Core, Machine, Measurement, Op, Sample, TensorSpec
from threadcast.core.errors import CounterUnavailable, InvalidInput, MeasurementError

SIDE = 64
SQUARE = TensorSpec((SIDE, SIDE))
MATRIX_PRODUCT = Op(
    "mm", (SQUARE, SQUARE), {"target": "aten.mm.default", "args": [{"t": 0}, {"t": 1}], "kwargs": {}}, (SQUARE,)
)
MACHINE = Machine("one core", (Core(0, (0,), group=0),), (Cache(1, 32 * 1024, (0,)), Cache(3, 32 * 2**20, (0,))))

needs_valgrind = pytest.mark.skipif(
    shutil.which("valgrind") is None or platform.machine() != "x86_64", reason="needs valgrind on x86-64"
)

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


@needs_valgrind
def test_a_matrix_product_has_the_instructions_that_its_arithmetic_needs():
    counts = cachegrind.simulate(MATRIX_PRODUCT, machine=MACHINE)
    assert set(counts) == {f"cachegrind.{name}" for name in cachegrind._EVENTS}
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
        cachegrind.simulate(MATRIX_PRODUCT)


def test_on_another_processor_the_error_names_it(monkeypatch, tmp_path):
    (tmp_path / "valgrind").write_text("#!/bin/sh\n")
    (tmp_path / "valgrind").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    with pytest.raises(CounterUnavailable, match="aarch64"):
        cachegrind.simulate(MATRIX_PRODUCT)


@needs_valgrind
def test_a_process_that_fails_is_a_measurement_error_with_its_last_words(monkeypatch, tmp_path):
    failing = tmp_path / "valgrind"
    failing.write_text("#!/bin/sh\necho 'first' >&2; echo 'unhandled instruction' >&2; exit 3\n")
    failing.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    with pytest.raises(MeasurementError, match=r"exit code 3.*unhandled instruction"):
        cachegrind.simulate(MATRIX_PRODUCT)


@needs_valgrind
def test_a_simulation_that_takes_too_long_is_ended(monkeypatch, tmp_path):
    endless = tmp_path / "valgrind"
    endless.write_text("#!/bin/sh\nexec tail -f /dev/null\n")
    endless.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    with pytest.raises(MeasurementError, match=r"timeout_s=0\.2"):
        cachegrind.simulate(MATRIX_PRODUCT, timeout_s=0.2)


def test_no_runs_are_refused():
    with pytest.raises(InvalidInput, match="runs=0"):
        cachegrind.simulate(MATRIX_PRODUCT, runs=0)


@pytest.mark.parametrize(
    ("size_bytes", "ways"), [(32 * 1024, 8), (48 * 1024, 12), (32 * 2**20, 8), (36 * 2**20, 9), (1, 8)]
)
def test_cache_geometries_are_ones_that_valgrind_takes(size_bytes, ways):
    size, found_ways, line = map(int, cachegrind._geometry(size_bytes).split(","))
    sets = size // (found_ways * line)
    assert found_ways == ways
    assert size == max(size_bytes, 512)
    assert sets & (sets - 1) == 0


def test_simulated_counts_stand_beside_real_ones():
    measured = Measurement(MATRIX_PRODUCT, MACHINE, Case(1), (Sample(1e-3, {"page_faults": 2.0}), Sample(2e-3)))
    joined = cachegrind.add_counts(measured, {"cachegrind.instructions": 7.0})
    assert joined.counter("cachegrind.instructions") == 7.0
    assert joined.counter("page_faults") == 2.0
    assert joined.seconds == measured.seconds
