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

from tests.services import need
from threadcast.cli.main import cli
from threadcast.collector.counters import ThreadCounters, availability, cachegrind, plan_counting
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


FIXED = ["--budget-s", "0.004", "--store", "store.sqlite"]


@pytest.fixture(autouse=True)
def memory_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the command tells the C library to do cannot be undone in the tests' own process."""
    monkeypatch.setattr(memory, "keep_freed_memory", lambda **_: False)


def profile(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["profile", *arguments, *FIXED])


@pytest.mark.system
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


@pytest.mark.usefixtures("others_use_half")
def test_a_busy_machine_is_profiled_and_what_was_disturbed_is_called_so(folder):
    result = profile("net.py:inference", "--cases", "1", "--json")
    found = document(result)
    assert "others use 50% of the" in result.stderr
    assert (found["others_share"], found["disturbed"]) == (pytest.approx(0.5), True)
    assert found["disturbed_cases"] == found["distinct_ops"]
    assert found["repeated"] > 0
    assert f"times in {found['disturbed_cases']} of" in found["load"]
    shown = profile("net.py:inference", "--cases", "1").stdout
    assert "disturbed: others used 50% of the" in shown


def found_ops(folder: Path, graph: str) -> list[str]:
    with Store.open(folder / "store.sqlite") as store:
        return list(store.graph(graph).distinct_ops())


def test_an_unknown_model_is_refused_before_anything_is_timed(folder):
    result = profile("net.py:inference", "--model", "hill_clim")
    assert result.exit_code == 1
    assert "no model or alias 'hill_clim'" in result.stderr
    assert "kinds of models are roofline, hill_climb" in result.stderr
    with Store.open(folder / "store.sqlite") as store:
        assert store.counts().measurements == 0


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
    assert counted["counters"] == {"read": sorted(plan_counting().names)}
    for name, status in availability().items():
        read = [count is not None for count in counters_stored(folder)[name]]
        assert read.count(True) == (bare["measured"] if status.available else 0)
        assert status.available or name in result.stderr
    again = document(profile("net.py:inference", "--cases", "1", "--counters", "perf", "--json"))
    assert (again["measured"], again["reused"]) == (0, bare["measured"])


def test_a_counter_that_something_else_had_all_the_time_is_not_read_and_says_why(folder, monkeypatch):
    counted = ThreadCounters.stop
    monkeypatch.setattr(ThreadCounters, "stop", lambda self: counted(self) | {"task_clock_ns": None})
    read = document(profile("net.py:inference", "--cases", "1", "--json"))["counters"]["read"]
    assert "page_faults" in read
    assert "task_clock_ns" not in read
    with Store.open(folder / "store.sqlite") as store:
        assert "task_clock_ns: something else had" in str(store.measurements()[0].conditions["unread_counters"])


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


@pytest.mark.system
@pytest.mark.skipif(platform.machine() != "x86_64", reason="counts are simulated on x86-64 only")
def test_simulated_counts_are_stored_with_every_case_and_simulated_once(folder, monkeypatch):
    need("valgrind")
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
