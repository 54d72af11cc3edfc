"""Co-run slow-downs are used by plan and run, and learned by run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from threadcast.cli.corun_tables import interference_of, learn
from threadcast.cli.main import cli
from threadcast.cli.output import Output
from threadcast.core import Machine, Op, OpGraph, Placement, Plan, Trace
from threadcast.core.corun import CoRunTable, read_table, write_table
from threadcast.core.settings import Settings
from threadcast.core.topology import read_machine
from threadcast.scheduler.policies import Problem
from threadcast.scheduler.problem.graph_curves import curves_of

TWO = Machine.uniform("two", 2)
GRAPH = OpGraph(("a", "b"), (Op("a"), Op("b")), (), {"a": {1: 1.0, 2: 0.7}, "b": {1: 1.0, 2: 0.7}})
A, B = (op.key for op in GRAPH.ops)
NETWORK = """
import torch

def build():
    return torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU()), (torch.randn(256, 64),)
"""


def call(*arguments: object) -> Result:
    return CliRunner().invoke(cli, [str(argument) for argument in arguments])


@pytest.fixture
def settings(corun_of_the_test: Path) -> Settings:
    return Settings.read({"corun": corun_of_the_test})


def side_by_side(finish_s: float) -> Trace:
    """Two ops beside each other, then three alone that take a second each."""
    alone = [Placement(name, (0,), 1, 10.0 + i, 11.0 + i) for i, name in enumerate("xyz")]
    pair = [Placement(name, (core,), 1, 0.0, finish_s) for core, name in enumerate("ab")]
    return Trace(2, "test", (*pair, *alone))


def test_a_plan_keeps_known_bad_pairs_apart_unless_told_not_to(tmp_path: Path, corun_of_the_test: Path) -> None:
    graph, machine, made = tmp_path / "graph.json", tmp_path / "machine.json", tmp_path / "plan.json"
    GRAPH.write(graph)
    machine.write_text(json.dumps(TWO.to_json()))
    write_table(corun_of_the_test, CoRunTable(TWO, bad_pairs={(A, B): 3.0, (B, A): 3.0}))

    def planned(*flags: str) -> Plan:
        done = call("plan", graph, "--machine", machine, "--output", made, *flags)
        assert done.exit_code == 0, done.output
        assert ("slowed down side by side" in done.stdout) is (not flags)
        return Plan.read(made)

    assert planned().makespan_s == pytest.approx(1.4)
    assert planned("--no-corun").makespan_s == pytest.approx(1.0)


def test_a_damaged_table_is_an_error_that_names_the_file(tmp_path: Path, corun_of_the_test: Path) -> None:
    graph, machine = tmp_path / "graph.json", tmp_path / "machine.json"
    GRAPH.write(graph)
    machine.write_text(json.dumps(TWO.to_json()))
    path = write_table(corun_of_the_test, CoRunTable(TWO))
    path.write_text("{}")
    done = call("plan", graph, "--machine", machine)
    assert done.exit_code == 1
    assert path.name in done.stderr


def test_damaged_tables_of_other_machines_are_passed_over_with_a_warning(
    tmp_path: Path, corun_of_the_test: Path
) -> None:
    graph, machine = tmp_path / "graph.json", tmp_path / "machine.json"
    GRAPH.write(graph)
    part = Machine.uniform("four", 4).limited_to([0, 1])
    machine.write_text(json.dumps(part.to_json()))
    write_table(corun_of_the_test, CoRunTable(Machine.uniform("four", 4), bad_pairs={(A, B): 3.0}))
    (corun_of_the_test / "a-broken.json").write_text("{")
    (corun_of_the_test / "a-folder.json").mkdir()
    done = call("plan", graph, "--machine", machine)
    assert done.exit_code == 0, done.output
    assert "slowed down side by side" in done.stdout
    broken, folder = done.stderr.splitlines()
    assert broken.startswith("threadcast: warning: ")
    assert "a-broken.json is not JSON" in broken
    assert "a-folder.json" in folder
    assert not call("plan", graph, "--machine", machine, "--no-corun").stderr


def test_steps_teach_bad_pairs_and_unteach_them(settings: Settings, corun_of_the_test: Path) -> None:
    names = ("a", "b", "x", "y", "z")
    graph = OpGraph(names, tuple(Op(name) for name in names), (), {name: {1: 1.0} for name in names})
    problem = Problem(graph, curves_of(graph, TWO), TWO)
    assert interference_of(problem, settings, Output()) is None
    assert learn(problem, [side_by_side(1.1)] * 5, settings) == 0
    assert not corun_of_the_test.exists()
    assert learn(problem, [side_by_side(2.0)] * 5, settings) == 2
    known = read_table(corun_of_the_test, TWO)
    assert known is not None
    assert known.bad_pairs == {(A, B): 2.0, (B, A): 2.0}
    assert interference_of(problem, settings, Output()) is not None
    assert interference_of(problem, settings, Output(), off=True) is None
    assert learn(problem, [side_by_side(1.1)] * 5, settings) == 0
    assert read_table(corun_of_the_test, TWO) == CoRunTable(TWO)


def test_run_says_how_many_bad_pairs_are_known_unless_told_not_to_look(tmp_path: Path, corun_of_the_test: Path) -> None:
    (tmp_path / "net.py").write_text(NETWORK)
    store, network = f"sqlite:///{tmp_path / 'store.db'}", f"{tmp_path / 'net.py'}:build"
    options = ("--store", store, "--models", tmp_path, "--steps", "3", "--json")
    profiled = call("profile", network, "--budget-s", "0.003", "--cases", "1", "--store", store)
    assert profiled.exit_code == 0, profiled.output
    done = call("run", network, "--no-corun", *options)
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["bad_pairs"] is None
    assert not corun_of_the_test.exists()
    done = call("run", network, *options)
    assert done.exit_code == 0, done.output
    known = read_table(corun_of_the_test, read_machine())
    assert json.loads(done.stdout)["bad_pairs"] == (len(known.bad_pairs) if known else 0)
