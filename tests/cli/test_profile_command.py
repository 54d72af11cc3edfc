"""`threadcast profile` on a small network of the user's own."""

from __future__ import annotations

import json
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from threadcast.cli.main import cli
from threadcast.collector.counters import availability, cachegrind
from threadcast.collector.counters.cachegrind import CacheSimulator
from threadcast.collector.counters.perf_event import Kernel
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
    found = document(profile("net.py:build", "--json"))
    cases = read_machine().cases()
    assert found["graph"] == "net.py:build/own/b8/training"
    assert [(row["threads"], row["affinity"]) for row in found["cases"]] == [
        (case.threads, case.affinity.value) for case in cases
    ]
    assert found["measured"] == found["distinct_ops"] * len(cases)
    assert found["failed"] == {}
    for row in found["cases"]:
        assert row["ratio"] == pytest.approx(row["ops_alone_s"] / row["step_s"])
    with Store.open(folder / "store.sqlite") as store:
        assert len(store.graph(found["graph"])) == found["ops"]
        assert store.counts().measurements == found["measured"]


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


def counters_stored(folder: Path) -> dict[str, list[float | None]]:
    with Store.open(folder / "store.sqlite") as store:
        found = store.measurements()
    names = {name for m in found for sample in m.samples for name in sample.counters}
    return {name: [m.counter(name) for m in found] for name in sorted(names)}


def test_perf_counters_are_stored_and_made_again_where_they_lack(folder):
    bare = document(profile("net.py:inference", "--cases", "1", "--counters", "none", "--json"))
    assert counters_stored(folder) == {}
    default = document(profile("net.py:inference", "--cases", "1", "--json"))
    assert (default["measured"], default["reused"]) == (0, bare["measured"])
    result = profile("net.py:inference", "--cases", "1", "--counters", "perf", "--json")
    counted = document(result)
    assert (counted["measured"], counted["reused"]) == (bare["measured"], 0)
    for name, status in availability().items():
        read = [count is not None for count in counters_stored(folder)[name]]
        assert read.count(True) == (bare["measured"] if status.available else 0)
        assert status.available or name in result.stderr
    again = document(profile("net.py:inference", "--cases", "1", "--counters", "perf", "--json"))
    assert (again["measured"], again["reused"]) == (0, bare["measured"])


def test_counters_that_cannot_be_counted_end_the_command_before_it_measures(folder, monkeypatch):
    def refuse(self: Kernel, event: object, thread: int, *, leader: int | None) -> int:
        raise PermissionError(1, "not permitted")

    monkeypatch.setattr(Kernel, "open", refuse)
    result = profile("net.py:inference", "--counters", "perf")
    assert result.exit_code == 1
    assert "no perf event can be counted here" in result.stderr
    assert "CAP_PERFMON" in result.stderr
    assert not (folder / "store.sqlite").exists()
    found = document(profile("net.py:inference", "--cases", "1", "--json"))
    assert found["measured"] == found["distinct_ops"]
    monkeypatch.setenv("PATH", "")
    result = profile("net.py:inference", "--counters", "cachegrind")
    assert result.exit_code == 1
    assert "apt install valgrind" in result.stderr


@pytest.mark.skipif(
    shutil.which("valgrind") is None or platform.machine() != "x86_64", reason="needs valgrind on x86-64"
)
def test_simulated_counts_are_stored_with_every_case_and_simulated_once(folder, monkeypatch):
    found = document(profile("net.py:inference", "--counters", "cachegrind", "--json"))
    stored = counters_stored(folder)
    assert set(stored) == cachegrind.NAMES
    assert len(stored["cachegrind.instructions"]) == found["measured"]
    assert all((count or 0) > 0 for count in stored["cachegrind.instructions"])

    def fail(self: CacheSimulator, op: object) -> dict[str, float]:
        raise AssertionError("simulated again")

    monkeypatch.setattr(CacheSimulator, "counts", fail)
    again = document(profile("net.py:inference", "--counters", "cachegrind", "--json"))
    assert (again["measured"], again["reused"]) == (0, found["measured"])


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
