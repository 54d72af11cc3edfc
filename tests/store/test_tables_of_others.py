"""Tables as other programs write them: repetitions, decimals, separators, labels, and the cases that they have."""

from __future__ import annotations

import decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from threadcast.core import Affinity, Case, Machine, Measurement, Op, Sample
from threadcast.core.errors import FormatError, InvalidInput
from threadcast.store.long_form import read_long_form, write_long_form


def read(tmp_path: Path, table: str | bytes, notes: list[str] | None = None) -> Any:
    path = tmp_path / "t.csv"
    path.write_bytes(table.encode() if isinstance(table, str) else table)
    return read_long_form(path) if notes is None else read_long_form(path, note=notes.append)


@pytest.mark.parametrize("column", ["trial", "run", "Iteration", "run_id", "seed"])
def test_a_column_named_after_repetitions_describes_no_op(tmp_path: Path, column: str) -> None:
    notes = list[str]()
    text = f"m,{column},threads,seconds\n" + "".join(
        f"{m},{at},{n},{m + at / 100}\n" for m in (8, 9) for at in (3, 1, 2) for n in (1, 4)
    )
    found = read(tmp_path, text, notes)
    assert len({m.op for m in found}) == 2
    assert {len(m.samples) for m in found} == {3}
    assert {name for m in found for name in m.op.attributes} == {"m", "label"}
    assert any(f"the column {column!r} numbers repetitions" in note for note in notes)


@pytest.mark.parametrize(
    "cell",
    [
        "1,5", ",5", "1,234,567.8", "1.234,5", "1.234.567", "1 234", "1'234", "1_000", "-2,5e3", "12,34,567",
        "1\u202f234",
    ],
)  # fmt: skip
@pytest.mark.parametrize("column", ["m", "feature.m"])
def test_numbers_with_separators_are_refused_by_line_and_column(tmp_path: Path, cell: str, column: str) -> None:
    op = "op," if column != "m" else ""
    text = f"{op}{column},threads,seconds\n" + "".join(
        f'{op and "o,"}"{value}",{n},1\n' for value, n in (("5", 1), (cell, 2))
    )
    with pytest.raises(FormatError, match=rf"line 3, column '{column}': must be a number with a decimal point"):
        read(tmp_path, text)


@pytest.mark.parametrize("cell", ["1.5.2", "64x128", "3,3,3", "1.2.3.4", "v1,5", "a b", "1_0"])
def test_texts_stay_texts(tmp_path: Path, cell: str) -> None:
    found = read(tmp_path, f'm,lib,threads,seconds\n1,"{cell}",1,1\n1,"{cell}",2,1\n')
    assert {m.op.attributes["lib"] for m in found} == {cell}


@pytest.mark.parametrize("cell", ["inf", "-Infinity", "1e999", "9" * 400])
def test_what_is_not_finite_is_refused(tmp_path: Path, cell: str) -> None:
    with pytest.raises(FormatError, match=r"line 2, column 'm': must be finite, got"):
        read(tmp_path, f"m,threads,seconds\n{cell},1,1\n")
    table = pyarrow.table({"m": [1.0, float(cell)], "threads": [1, 1], "seconds": [1.0, 1.0]})
    pyarrow.parquet.write_table(table, tmp_path / "t.parquet")
    with pytest.raises(FormatError, match=r"row 2, column 'm': must be finite, got"):
        read_long_form(tmp_path / "t.parquet")


def test_numbers_beyond_64_bits_and_missing_ones_are_read(tmp_path: Path) -> None:
    found = read(tmp_path, f"m,k,threads,seconds\n{2**70},nan,1,1\n5,,1,1\n")
    assert [dict(m.op.attributes, label=None) for m in found] == [
        {"m": float(2**70), "label": None}, {"m": 5, "label": None}
    ]  # fmt: skip


def test_decimals_and_binary_values_of_parquet_are_numbers_and_texts(tmp_path: Path) -> None:
    decimals = pyarrow.array([decimal.Decimal("300"), decimal.Decimal("40"), None], pyarrow.decimal128(10, 2))
    whole = pyarrow.array([decimal.Decimal(7)] * 3, pyarrow.decimal128(10, 0))
    columns = {
        "machine": pyarrow.array([b"knl"] * 3, pyarrow.binary()),
        "op": pyarrow.array([b"mm ", b"mm ", b"\xff"], pyarrow.binary()).dictionary_encode(),
        "m": decimals, "k": whole, "h": pyarrow.array(np.array([1, 2, 3], np.float16)),
        "lib": pyarrow.array([b"mkl"] * 3, pyarrow.binary(3)), " threads": whole,
        "affinity": pyarrow.array([b"compact"] * 3, pyarrow.large_binary()), "seconds": whole,
    }  # fmt: skip
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "t.parquet")
    found = read_long_form(tmp_path / "t.parquet")
    assert [m.op.kind for m in found] == ["mm", "mm", "\\xff"]
    assert [[m.op.attributes.get(name) for name in ("m", "k", "h", "lib")] for m in found] == [
        [300.0, 7, 1.0, "mkl"], [40.0, 7, 2.0, "mkl"], [None, 7, 3.0, "mkl"]
    ]  # fmt: skip
    assert {(m.machine.name, m.case, m.seconds) for m in found} == {("knl", Case(7), 7.0)}


def test_windows_line_ends_a_byte_order_mark_and_blanks_change_nothing(tmp_path: Path) -> None:
    plain = read(tmp_path, "op,m,lib,threads,seconds\nmm,1,mkl,1,1\nmm,1,mkl,2,1\n")
    odd = read(tmp_path, b"\xef\xbb\xbfop ,m, lib,threads,seconds\r\nmm ,1 , mkl ,1,1\r\n mm, 1,mkl,2,1\r\n")
    assert odd == plain
    assert {m.op.kind for m in odd} == {"mm"}


@pytest.mark.parametrize("time", ['"yesterday"', "12345", "true", '""'])
@pytest.mark.parametrize("name", ["time", "replaces_before"])
def test_a_time_that_is_none_is_refused(tmp_path: Path, time: str, name: str) -> None:
    cell = f'{{"{name}": {time}}}'.replace('"', '""')
    with pytest.raises(FormatError, match=rf"line 2, column 'json.conditions': the condition {name}=.* is no time"):
        read(tmp_path, f'op,threads,seconds,json.conditions\no,1,1,"{cell}"\n')


def test_measurements_with_a_time_that_is_none_are_no_rows_of_an_export(tmp_path: Path) -> None:
    measured = Measurement(Op("a"), Machine.uniform("m", 1), Case(1), (Sample(1.0),), {"time": "soon"})
    with pytest.raises(InvalidInput, match=r"cannot be written to a table: times more than a day ahead .*, or none"):
        write_long_form([measured], tmp_path / "t.csv")


def test_the_cases_of_a_machine_are_those_in_its_rows(tmp_path: Path) -> None:
    lines = [f"a,o,{2**i},compact,1" for i in range(7)] + [f"b,o,{n},{a},1" for n in (3, 4) for a in Affinity]
    found = read(tmp_path, "machine,op,threads,affinity,seconds\n" + "\n".join(lines))
    cases = {m.machine.name: m.machine.cases() for m in found}
    assert cases["a"] == tuple(Case(2**i) for i in range(7))
    assert cases["b"] == tuple(sorted(Case(n, a) for n in (3, 4) for a in Affinity))
