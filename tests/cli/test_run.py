"""A network is run by a plan beside the default, and both are reported."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from threadcast.cli.main import cli
from threadcast.core import Plan, Trace
from threadcast.store import Store


def call(*arguments: str) -> Result:
    return CliRunner().invoke(cli, list(arguments))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A store that has lenet's ops."""
    url = f"sqlite:///{tmp_path_factory.mktemp('run') / 'store.db'}"
    done = call("profile", "lenet", "--budget-s", "0.003", "--cases", "1", "--store", url)
    assert done.exit_code == 0, done.output
    return url


def test_default_plan_and_sequential_steps_are_told_with_what_the_guard_keeps(store: str, tmp_path: Path) -> None:
    timeline, trace = tmp_path / "timeline.json", tmp_path / "trace.json"
    done = call(
        "run", "lenet", "--steps", "4", "--store", store, "--models", str(tmp_path), "--json",
        "--timeline", str(timeline), "--trace", str(trace),
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    names = [contender["what"] for contender in told["contenders"]]
    assert names[:3] == ["default", "plan", "sequential, 1 threads"]
    assert all(0 < c["low_s"] <= c["median_s"] <= c["high_s"] for c in told["contenders"])
    assert 0 < told["lower_bound_s"] <= told["predicted_s"]
    assert all(c["gain_low"] <= c["gain"] <= c["gain_high"] for c in told["contenders"])
    assert told["contenders"][1]["gain"] == told["gain"]["median"]
    assert told["why"].startswith("the plan was ")
    assert told["guard_keeps"] == ("plan" if told["gain"]["low"] > 1 else "default")
    happened = Trace.from_json(json.loads(trace.read_text()))
    assert len(happened.ops) == told["ops"]
    assert not happened.simulated
    processes = {e["pid"] for e in json.loads(timeline.read_text())["traceEvents"] if e["ph"] == "X"}
    assert len(processes) == 2


@pytest.mark.usefixtures("others_use_half")
def test_a_busy_machine_runs_the_plan_and_says_what_is_disturbed(store: str, tmp_path: Path) -> None:
    done = call("run", "lenet", "--steps", "12", "--store", store, "--models", str(tmp_path), "--json")
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert (told["others_share"], told["disturbed"], told["interval"]) == (pytest.approx(0.5), True, "99.9 % interval")
    assert told["repeated_rounds"] == 24
    assert told["bad_pairs"] is None
    assert re.search(r"waiting up to \d\d s for a quiet moment", done.stderr)
    assert told["load"].startswith("disturbed: others used 50%")


@pytest.mark.usefixtures("others_use_half")
def test_a_forecast_by_disturbed_measurements_is_called_so_and_80_columns_break_no_word(tmp_path: Path) -> None:
    options = ("--store", f"sqlite:///{tmp_path / 'store.db'}")
    profiled = call("profile", "lenet", "--budget-s", "0.003", "--model", "amdahl", *options)
    keys = re.findall(r"^ *(\S+-[0-9a-f]{16}) .* [0-9.]+ .s", profiled.stdout, re.MULTILINE)
    assert len(keys) == 10, profiled.output
    done = call("run", "lenet", "--steps", "3", "--models", str(tmp_path), *options)
    assert re.search(r"lower bound .*; disturbed: others used the CPUs while most ops were measured", done.stdout)
    assert re.search(r"^ *step +median +25 % +75 % +gain *$", done.stdout, re.MULTILINE)
    assert re.search(r"^ *default .* 1\.00 \(1\.00 to 1\.00\)", done.stdout, re.MULTILINE)


def test_the_plan_and_what_happened_stay_in_the_store(store: str, tmp_path: Path) -> None:
    done = call("run", "lenet", "--steps", "3", "--store", store, "--models", str(tmp_path), "--json")
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    with Store.open(store) as opened:
        (graph,) = opened.graphs()
        run = opened.browse.last_run(graph, told["machine"])
    assert run is not None
    assert (run.plan.makespan_s, len(run.trace.ops)) == (told["predicted_s"], told["ops"])


def test_a_plan_made_before_is_run(store: str, tmp_path: Path) -> None:
    made = tmp_path / "plan.json"
    options = ("--store", store, "--models", str(tmp_path))
    assert call("plan", "lenet", "--policy", "critical_path", "--output", str(made), *options).exit_code == 0
    replace(Plan.read(made), lower_bound_s=0.0).write(made)
    done = call("run", "lenet", "--steps", "3", "--plan", str(made), *options)
    assert done.exit_code == 0, done.output
    assert "ops by critical_path" in done.stdout
    assert "lower bound not known" in done.stdout
    assert re.search(r"the guard keeps the (plan|default): the plan was .*the default \(", done.stdout)


@pytest.mark.parametrize(
    "option", [("--policy", "nonsense"), ("--policy", "auto"), ("--model", "nonsense"), ("--url", "http://127.0.0.1:9")]
)
def test_options_for_making_a_plan_are_refused_beside_a_given_one(tmp_path: Path, option: tuple[str, str]) -> None:
    plan = tmp_path / "plan.json"
    plan.touch()
    done = call("run", "lenet", "--plan", str(plan), *option)
    assert done.exit_code == 2
    assert f"{option[0]} says how a plan is made, and --plan gives one" in done.stderr


def test_a_plan_in_which_ops_start_too_early_is_refused(store: str, tmp_path: Path) -> None:
    made = tmp_path / "plan.json"
    assert call("plan", "lenet", "--output", str(made), "--store", store, "--models", str(tmp_path)).exit_code == 0
    plan = Plan.read(made)
    replace(plan, ops=tuple(replace(op, start_s=0.0) for op in plan.ops)).write(made)
    done = call("run", "lenet", "--plan", str(made))
    assert done.exit_code == 1
    assert "is no plan of this network's graph" in done.stderr
    assert "which it waits for" in done.stderr


def test_ops_that_were_not_measured_lead_to_the_next_command(store: str, tmp_path: Path) -> None:
    done = call(
        "run", "dcgan_discriminator", "--batch", "2", "--optimizer", "adam", "--store", store, "--models", str(tmp_path)
    )
    assert done.exit_code == 0, done.output
    assert "nothing was measured on this machine of" in done.stderr
    assert "`threadcast profile dcgan_discriminator --batch 2 --optimizer adam` measures some of them" in done.stderr
