"""Every notebook shows its stored results, and gives the same when it is run from top to bottom in a fresh kernel."""

from __future__ import annotations

import copy
import math
import re
from itertools import zip_longest
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from threadcast.core.settings import CONFIG_VARIABLE, DATA_VARIABLE, SETTINGS

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))

VARIES = "varies"
"""The tag of cells that time something, or that show this machine or folder: their stored text is not compared."""

TOLERANCE = 0.02
"""Relative difference of two numbers that count as the same: other versions of libraries round otherwise."""

NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


def code_cells(notebook: Any) -> list[Any]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def outputs(notebook: Any) -> list[Any]:
    return [output for cell in code_cells(notebook) for output in cell.outputs]


def pictures(notebook: Any) -> int:
    return sum("image/png" in output.get("data", {}) for output in outputs(notebook))


def text_of(cell: Any) -> str:
    return "".join(output.get("text", "") for output in cell.outputs)


def assert_same_values(stored: str, again: str) -> None:
    """The words are equal, and the numbers are within `TOLERANCE` or one unit of their last digit."""
    assert NUMBER.sub("#", stored).split() == NUMBER.sub("#", again).split()
    for one, other in zip_longest(NUMBER.findall(stored), NUMBER.findall(again)):
        digit = 10.0 ** -len(one.partition(".")[2])
        assert math.isclose(float(one), float(other), rel_tol=TOLERANCE, abs_tol=1.001 * digit), (one, other, again)


@pytest.mark.system
@pytest.mark.timeout(300)
@pytest.mark.parametrize("path", NOTEBOOKS, ids=[path.stem for path in NOTEBOOKS])
def test_a_notebook_gives_its_stored_results(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THREADCAST_DATA", str(path.parents[1] / "data"))
    monkeypatch.delenv("ADSALA_CURVES", raising=False)
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    stored = nbformat.read(path, as_version=4)
    notebook = copy.deepcopy(stored)
    NotebookClient(notebook, timeout=240, resources={"metadata": {"path": str(tmp_path)}}).execute()
    for before, after in zip(code_cells(stored), code_cells(notebook), strict=True):
        if VARIES not in before.metadata.get("tags", ()):
            assert_same_values(text_of(before), text_of(after))
    assert pictures(notebook) == pictures(stored)
    assert list(tmp_path.glob("*.db")) == []


def test_there_are_notebooks_from_recording_to_many_cores() -> None:
    names = ["1_recording", "2_paper_study", "3_training", "4_planning", "5_many_cores"]
    assert [path.stem for path in NOTEBOOKS] == names


@pytest.mark.parametrize("path", NOTEBOOKS, ids=[path.stem for path in NOTEBOOKS])
def test_a_notebook_is_stored_with_its_results_and_without_this_machine_s_paths(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    assert [cell.execution_count for cell in code_cells(notebook)] == list(range(1, len(code_cells(notebook)) + 1))
    assert pictures(notebook) > 0
    assert any(text_of(cell) for cell in code_cells(notebook))
    assert not any(output.output_type == "error" for output in outputs(notebook))
    folders = re.compile(rf"/(home|tmp|root)/|{re.escape(str(ROOT))}")
    assert not any(folders.search(text_of(cell)) for cell in code_cells(notebook))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=[path.stem for path in NOTEBOOKS])
def test_a_notebook_names_no_variable_that_is_refused_as_an_unknown_setting(path: Path) -> None:
    known = {setting.variable for setting in SETTINGS.values()} | {CONFIG_VARIABLE, DATA_VARIABLE}
    assert set(re.findall(r"\bTHREADCAST_\w+", path.read_text())) <= known


def test_other_numbers_and_other_words_are_noticed() -> None:
    assert_same_values("ols 61.3 % of 40", "ols  61.9 % of 40")
    for other in ("ols 65.0 % of 40", "ard 61.3 % of 40", "ols 61.3 % of 42", "ols 61.3 %"):
        with pytest.raises(AssertionError):
            assert_same_values("ols 61.3 % of 40", other)
