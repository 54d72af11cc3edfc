"""What is known of co-runs survives its file, and is found for the machine and its parts."""

from __future__ import annotations

import copy
import json
import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from threadcast.core import Machine
from threadcast.core.corun import MOST_PAIRS, CoRunTable, read_table, write_table
from threadcast.core.errors import FormatError, InvalidInput

MACHINE = Machine.uniform("tiles", 8, group_size=2)
TABLE = CoRunTable(MACHINE, {("mm-1", "add-2"): 1.7})
OF_CLASSES = {
    "cores": 4, "limits": {"core_flops_per_s": 1e10, "core_bytes_per_s": 1e9, "call_s": 1e-6},
    "classes": [{"class": "memory", "beside": "memory", "slowdown": 1.8, "low": 1.5, "high": 2.0, "pairs": 4}],
    "forecasts": [{"class": "memory", "beside": "tiny", "slowdown": 1.2, "low": 1.0, "high": 1.5}],
}  # fmt: skip
"""Members that earlier versions wrote."""

tables = st.builds(
    CoRunTable,
    st.just(MACHINE),
    st.dictionaries(st.tuples(st.text(max_size=4), st.text(max_size=4)), st.floats(1.0, 50.0), max_size=5),
)


@given(tables)
def test_a_table_survives_its_json_a_copy_and_a_pickle(table: CoRunTable) -> None:
    assert CoRunTable.from_json(json.loads(json.dumps(table.to_json()))) == table
    assert copy.deepcopy(table) == pickle.loads(pickle.dumps(table)) == table


def test_a_file_of_an_earlier_version_is_read() -> None:
    assert CoRunTable.from_json({**TABLE.to_json(), **OF_CLASSES}) == TABLE


def test_only_the_worst_pairs_are_kept() -> None:
    many = {(f"op{i}", "other"): 1.0 + i for i in range(MOST_PAIRS + 10)}
    kept = CoRunTable(MACHINE, bad_pairs=many).bad_pairs
    assert len(kept) == MOST_PAIRS
    assert min(kept.values()) == 11.0


def test_a_table_is_found_for_its_machine_and_for_some_of_its_cores(tmp_path: Path) -> None:
    write_table(tmp_path / "new", TABLE)
    assert read_table(tmp_path / "new", MACHINE) == TABLE
    assert read_table(tmp_path / "new", MACHINE.limited_to([0, 5])) == TABLE
    assert read_table(tmp_path / "new", Machine.uniform("tiles", 9)) is None
    assert read_table(tmp_path / "new", Machine.uniform("others", 8, group_size=2)) is None
    assert read_table(tmp_path / "nowhere", MACHINE) is None


@pytest.mark.parametrize(
    ("members", "pointer"),
    [
        ({"schema": "threadcast.corun/9"}, "/schema"),
        ({"bad_pairs": [{"op": "a", "beside": "b", "slowdown": 0.5}]}, "/bad_pairs/0/slowdown"),
        ({"bad_pairs": [{"op": "a", "slowdown": 1.5}]}, "/bad_pairs/0"),
    ],
)
def test_a_wrong_document_is_refused_where_it_is_wrong(members: dict[str, Any], pointer: str) -> None:
    with pytest.raises(FormatError) as refused:
        CoRunTable.from_json({**TABLE.to_json(), **members})
    assert refused.value.pointer == pointer


def test_factors_below_1_are_refused() -> None:
    with pytest.raises(InvalidInput, match="at least 1"):
        CoRunTable(MACHINE, bad_pairs={("a", "b"): 0.9})
