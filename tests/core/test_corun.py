"""What is known of co-runs survives its file, and is found for the machine and its parts."""

from __future__ import annotations

import copy
import json
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from threadcast.core import Machine
from threadcast.core.corun import MOST_PAIRS, CoRunTable, Slowdown, SlowdownForecast, read_table, write_table
from threadcast.core.errors import FormatError, InvalidInput
from threadcast.core.op_class import ClassLimits, OpClass

MACHINE = Machine.uniform("tiles", 8, group_size=2)
LIMITS = ClassLimits(1e10, 1e9, 1e-6)
M, C = OpClass.MEMORY, OpClass.COMPUTE
TABLE = CoRunTable(MACHINE, 4, LIMITS, {(M, M): Slowdown(1.8, 1.5, 2.0, 4)}, {("mm-1", "add-2"): 1.7})

factors = st.lists(st.floats(0.5, 9.0), min_size=3, max_size=3).map(sorted)
tables = st.builds(
    CoRunTable,
    st.just(MACHINE),
    st.integers(1, 8),
    st.just(LIMITS),
    st.dictionaries(
        st.tuples(st.sampled_from(OpClass), st.sampled_from(OpClass)),
        st.builds(lambda f, n: Slowdown(f[1], f[0], f[2], n), factors, st.integers(1, 9)),
    ),
    st.dictionaries(st.tuples(st.text(max_size=4), st.text(max_size=4)), st.floats(1.0, 50.0), max_size=5),
    st.dictionaries(
        st.tuples(st.sampled_from(OpClass), st.sampled_from(OpClass)),
        st.builds(lambda f: SlowdownForecast(f[1], f[0], f[2]), factors),
    ),
)


@given(tables)
def test_a_table_survives_its_json(table: CoRunTable) -> None:
    assert CoRunTable.from_json(json.loads(json.dumps(table.to_json()))) == table


@given(tables)
def test_a_table_is_copied_and_pickled(table: CoRunTable) -> None:
    assert copy.deepcopy(table) == pickle.loads(pickle.dumps(table)) == table


def test_a_table_of_pairs_alone_needs_no_limits() -> None:
    table = CoRunTable(MACHINE, bad_pairs={("a", "b"): 2.0})
    assert CoRunTable.from_json(table.to_json()) == table


def test_newer_classes_replace_those_measured_anew_and_keep_the_others() -> None:
    newer = replace(TABLE, slowdowns={(C, M): Slowdown(1.1, 1.0, 1.2, 2)}, bad_pairs={})
    both = TABLE.updated(newer)
    assert set(both.slowdowns) == {(M, M), (C, M)}
    assert both.bad_pairs == TABLE.bad_pairs
    assert TABLE.updated(replace(newer, cores=2)).slowdowns == newer.slowdowns


def test_a_file_without_forecasts_is_read() -> None:
    document = TABLE.to_json()
    del document["forecasts"]
    assert CoRunTable.from_json(document) == TABLE


def test_forecasts_of_classes_that_the_newer_table_has_not_measured_stay() -> None:
    guess, better = SlowdownForecast(1.2, 1.0, 1.5), SlowdownForecast(1.3, 1.2, 1.4)
    old = replace(TABLE, forecasts={(M, M): guess, (C, C): guess, (M, C): guess})
    newer = replace(
        TABLE, slowdowns={(C, C): Slowdown(1.1, 1.0, 1.2, 2)}, forecasts={(M, M): better, (M, C): better}, bad_pairs={}
    )
    both = old.updated(newer)
    assert set(both.slowdowns) == {(M, M), (C, C)}
    assert both.forecasts == {(M, M): guess, (M, C): better}  # (M, M) was measured before, (C, C) now
    measured_only = replace(TABLE, forecasts={})
    assert measured_only.updated(newer).forecasts == {(M, C): better}
    assert old.updated(replace(newer, cores=2)).forecasts == newer.forecasts


def test_newer_pairs_leave_the_classes_alone() -> None:
    both = TABLE.updated(CoRunTable(MACHINE, bad_pairs={("a", "b"): 2.0}))
    assert both.slowdowns == TABLE.slowdowns
    assert both.bad_pairs == {**TABLE.bad_pairs, ("a", "b"): 2.0}


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


def edited(**members: Any) -> dict[str, Any]:
    return {**TABLE.to_json(), **members}


@pytest.mark.parametrize(
    ("document", "pointer"),
    [
        (edited(schema="threadcast.corun/9"), "/schema"),
        (edited(cores="4"), "/cores"),
        (edited(cores=9), ""),
        (edited(limits={"core_flops_per_s": 0, "core_bytes_per_s": 1, "call_s": 0}), "/limits"),
        (edited(limits=None), ""),
        (edited(classes=[{**TABLE.to_json()["classes"][0], "beside": "huge"}]), "/classes/0/beside"),
        (edited(classes=[{**TABLE.to_json()["classes"][0], "low": 1.9}]), "/classes/0"),
        (edited(forecasts=[{"class": "memory", "beside": "tiny", "slowdown": 2, "low": 3, "high": 4}]), "/forecasts/0"),
        (edited(forecasts=[{"class": "memory", "slowdown": 2, "low": 1, "high": 4}]), "/forecasts/0"),
        (edited(forecasts={}), "/forecasts"),
        (edited(bad_pairs=[{"op": "a", "beside": "b", "slowdown": 0.5}]), "/bad_pairs/0/slowdown"),
        (edited(bad_pairs=[{"op": "a", "slowdown": 1.5}]), "/bad_pairs/0"),
    ],
)
def test_a_wrong_document_is_refused_where_it_is_wrong(document: dict[str, Any], pointer: str) -> None:
    with pytest.raises(FormatError) as refused:
        CoRunTable.from_json(document)
    assert refused.value.pointer == pointer


def test_impossible_values_are_refused() -> None:
    with pytest.raises(InvalidInput, match="ordered"):
        Slowdown(1.0, 1.5, 2.0, 1)
    with pytest.raises(InvalidInput, match="at least 1"):
        Slowdown(1.0, 1.0, 1.0, 0)
    with pytest.raises(InvalidInput, match="at least 1"):
        CoRunTable(MACHINE, bad_pairs={("a", "b"): 0.9})
