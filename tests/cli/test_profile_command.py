"""`threadcast profile` on a small network of the user's own."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from threadcast.cli.main import cli
from threadcast.core.topology import read_machine
from threadcast.store import Store
from threadcast.threads import memory

NETWORK = """
import torch
from torch import nn

def build():
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
    return model, (torch.randn(8, 16),), torch.randint(0, 4, (8,)), nn.functional.cross_entropy

def inference():
    return build()[:2]
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "net.py").write_text(NETWORK)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    return tmp_path


FIXED = ["--budget-s", "0.004", "--allow-busy", "--store", "store.sqlite"]


@pytest.fixture(autouse=True)
def memory_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the command tells the C library to do cannot be undone in the tests' own process."""
    monkeypatch.setattr(memory, "keep_freed_memory", lambda: False)


def profile(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["profile", *arguments, *FIXED])


def test_ops_are_timed_with_freed_memory_kept(folder):
    program = "from threadcast.cli.main import main; main()"
    arguments = ["profile", "net.py:inference", "--cases", "1", *FIXED]
    subprocess.run([sys.executable, "-c", program, *arguments], check=True, capture_output=True)
    with Store.open(folder / "store.sqlite") as store:
        regimes = {found.conditions["memory"] for found in store.measurements()}
    assert regimes == {"kept" if platform.libc_ver()[0] == "glibc" else "returned"}


def document(result: Result) -> dict[str, Any]:
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_a_training_step_is_profiled_in_every_case_and_kept(folder):
    found = document(profile("net.py:build", "--cases", "all", "--json"))
    cases = read_machine().cases()
    assert found["graph"] == "net.py:build/own/b8/training"
    assert [(row["threads"], row["affinity"]) for row in found["cases"]] == [
        (case.threads, case.affinity.value) for case in cases
    ]
    assert found["measured"] == found["distinct_ops"] * len(cases)
    assert (found["measured_share"], found["model"], found["expected_regret"], found["choices"]) == (
        1.0,
        None,
        None,
        [],
    )
    assert found["failed"] == {}
    for row in found["cases"]:
        assert row["ratio"] == pytest.approx(row["ops_alone_s"] / row["step_s"])
    with Store.open(folder / "store.sqlite") as store:
        assert len(store.graph(found["graph"])) == found["ops"]
        assert store.counts().measurements == found["measured"]


def test_without_cases_a_model_decides_and_says_what_that_may_cost(folder):
    found = document(profile("net.py:build", "--json"))
    assert found["model"] == "joint_process"
    assert found["distinct_ops"] <= found["measured"] <= found["legal_cases"]
    assert found["measured_share"] == found["measured"] / found["legal_cases"]
    assert 0 <= found["expected_regret"] < 10
    assert {row["op"] for row in found["choices"]} | found["failed"].keys() == set(found_ops(folder, found["graph"]))
    assert {row["source"] for row in found["choices"]} <= {"measured", "forecast"}
    assert all(row["ops_alone_s"] > 0 for row in found["cases"])
    again = document(profile("net.py:build", "--json"))
    assert again["reused"] == found["measured"]


def found_ops(folder: Path, graph: str) -> list[str]:
    with Store.open(folder / "store.sqlite") as store:
        return list(store.graph(graph).distinct_ops())


def test_any_kind_of_model_can_be_followed(folder):
    found = document(profile("net.py:inference", "--model", "hill_climb", "--json"))
    assert found["model"] == "hill_climb"
    assert found["measured"] >= found["distinct_ops"]


def test_an_unknown_model_is_refused_before_anything_is_timed(folder):
    result = profile("net.py:inference", "--model", "hill_clim")
    assert result.exit_code == 1
    assert "no model or alias 'hill_clim'" in result.stderr
    assert "kinds of models are roofline, hill_climb" in result.stderr
    with Store.open(folder / "store.sqlite") as store:
        assert store.counts().measurements == 0


def test_cases_and_a_model_are_not_both_asked_for(folder):
    result = profile("net.py:inference", "--cases", "all", "--model", "hill_climb")
    assert result.exit_code == 2
    assert "leave out --cases or --model" in result.stderr


@pytest.mark.parametrize("enough", ["0", "-1", "much", "nan"])
def test_an_impossible_regret_is_wrong_usage(folder, enough):
    result = profile("net.py:inference", "--enough", enough)
    assert result.exit_code == 2
    assert "must be a number of at least 0.0001" in result.stderr


def test_a_second_profile_measures_nothing_again(folder):
    first = document(profile("net.py:inference", "--cases", "1", "--json"))
    second = document(profile("net.py:inference", "--cases", "1", "--json"))
    assert first["measured"] == second["reused"] == first["distinct_ops"]
    assert (first["reused"], second["measured"]) == (0, 0)


def test_measurements_with_other_caches_are_kept_apart(folder):
    rotated = document(profile("net.py:inference", "--cases", "1", "--json"))
    for cache in ("warm", "cold"):
        other = document(profile("net.py:inference", "--cases", "1", "--cache", cache, "--json"))
        assert other["measured"] == rotated["measured"]
        assert other["reused"] == 0


def test_the_table_names_the_network_and_every_case(folder):
    result = profile("net.py:build", "--mode", "forward", "--cases", "1")
    assert result.exit_code == 0, result.output
    assert "net.py:build/own/b8/forward on " in result.stdout
    assert "within the tolerance" in result.stdout
    assert "ratio" in result.stdout
    assert "distinct" in result.stderr


def test_the_optimizer_is_part_of_the_graphs_name(folder):
    found = document(profile("net.py:build", "--optimizer", "adam", "--cases", "1", "--json"))
    assert found["graph"].endswith("/training-adam")


def test_training_without_a_loss_is_refused_with_what_to_do(folder):
    result = profile("net.py:inference", "--mode", "training")
    assert result.exit_code == 1
    assert "has no loss" in result.stderr
    assert not (folder / "store.sqlite").exists()


@pytest.mark.parametrize("cases", ["0", "-1", "some", "1.5"])
def test_an_impossible_number_of_cases_is_wrong_usage(folder, cases):
    result = profile("net.py:build", "--cases", cases)
    assert result.exit_code == 2
    assert "all or a whole number" in result.stderr
