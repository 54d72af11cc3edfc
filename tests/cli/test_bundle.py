"""`threadcast bundle` between two sets of folders."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.commands import invoke
from tests.runtime.bundles.bundled_machine import files_below, fill, move_to


def test_a_bundle_is_saved_shown_and_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    places = move_to(tmp_path / "one", monkeypatch)
    fill(places)
    bundle = str(tmp_path / "bundle.zip")
    saved = json.loads(invoke("bundle", "save", bundle, "--json").stdout)
    counts = [saved[name]["count"] for name in ("plans", "operators", "compiled_files")]
    assert (counts, saved["bytes"]) == ([1, 2, 5], Path(bundle).stat().st_size)
    shown = invoke("bundle", "show", bundle)
    assert shown.exit_code == 0, shown.output
    for text in (saved["sha256"], places.machine.fingerprint, "compiled files", "plans/backends"):
        assert text in shown.stdout
    move_to(tmp_path / "other", monkeypatch)
    loaded = invoke("bundle", "load", bundle, "--sha256", saved["sha256"])
    assert loaded.exit_code == 0, loaded.output
    assert "5 files of plans, 2 measurements and 0 compiled files are new here" in loaded.stdout
    assert "5 compiled files are left out" in loaded.stderr
    assert not [name for name in files_below(tmp_path / "other") if name.endswith(".so")]
    again = json.loads(invoke("bundle", "load", bundle, "--trust", "--json").stdout)
    assert (again["plan_files"], again["measurements"], again["compiled_files"], again["left_out"]) == (0, 0, 5, [])


def test_where_nothing_was_learned_the_command_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    move_to(tmp_path / "one", monkeypatch)
    result = invoke("bundle", "save", str(tmp_path / "bundle"))
    assert result.exit_code == 1
    assert "nothing to save" in result.stderr
    assert "run optimised steps first" in result.stderr
    assert not (tmp_path / "bundle").exists()


def test_without_feedback_the_command_says_that_measurements_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(move_to(tmp_path / "one", monkeypatch))
    invoke("bundle", "save", str(tmp_path / "bundle"))
    move_to(tmp_path / "other", monkeypatch, feedback="off")
    result = invoke("bundle", "load", str(tmp_path / "bundle"))
    assert result.exit_code == 0, result.output
    assert "engine.feedback is off" in result.stderr
