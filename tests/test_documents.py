"""What the documents say is so: commands, settings, targets, links."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._dynamo.backends import registry

from docs import commands_page, settings_page
from threadcast import optimize, optimize_training
from threadcast.cli.main import COMMANDS, cli
from threadcast.core.settings_table import SETTINGS
from threadcast.runtime.compile_backend import backend, compiled_graphs
from threadcast.scheduler.planner import SEARCH
from threadcast.scheduler.policies import names

ROOT = Path(__file__).parent.parent
TRAINERS = ("Train a model of Hugging Face", "Train with Lightning")
"""Headings of recipes that need other libraries; `test_trainer_recipes` runs them."""
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def test_every_command_and_each_of_its_options_is_documented() -> None:
    page = commands_page.render()
    context = cli.make_context("threadcast", [], resilient_parsing=True)
    for name in COMMANDS:
        assert f"## `threadcast {name}" in page, name
        command = cli.get_command(context, name)
        assert command is not None, name
        section = page.split(f"## `threadcast {name}")[1].split("\n## ")[0]
        for parameter in command.params:
            longest = max(parameter.opts, key=len)
            if longest.startswith("--") and longest not in {"--json", "--config", "--traceback", "--help"}:
                assert longest in section, f"{name} {longest}"


def test_every_setting_is_documented() -> None:
    page = settings_page.render()
    assert [name for name in SETTINGS if f"| `{name}` |" not in page] == []


def test_every_policy_is_documented_with_its_source() -> None:
    page = (ROOT / "docs" / "concepts.md").read_text()
    rows = [line.split("|") for line in page.splitlines() if line.startswith("| `")]
    documented = {name for row in rows if len(row) == 5 and row[3].strip() for name in re.findall(r"`(\w+)`", row[1])}
    assert documented == {*names(), SEARCH}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_between_documents_lead_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", document.read_text()):
        if not re.match(r"[a-z]+:", target):
            assert (document.parent / target).exists(), f"{document.name} links to {target}"


def test_every_make_target_that_documents_name_exists() -> None:
    targets = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for document in DOCUMENTS:
        named = set(re.findall(r"`make ([a-z][a-z-]*)", document.read_text()))
        assert named <= targets, f"{document.name} names {named - targets}"


def test_make_can_read_the_makefile() -> None:
    done = subprocess.run(["make", "--dry-run", "lint"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_make_demo_can_time_on_a_busy_machine() -> None:
    for given, expected in (("BUSY=1", True), ("BUSY=", False)):
        command = ["make", "--dry-run", "demo", given]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        assert ("--allow-busy" in done.stdout) is expected
    assert "`make demo BUSY=1`" in (ROOT / "docs" / "start.md").read_text()


def test_python_of_the_readme_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    op = {"kind": "mm", "inputs": [[[8, 8]], [[8, 8]]], "curve": {"1": 0.25}}
    graph = {"schema": "threadcast.graph/1", "ops": [{"id": "a", **op}, {"id": "b", **op}], "edges": [["a", "b"]]}
    (tmp_path / "graph.json").write_text(json.dumps(graph))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("THREADCAST_ENGINE_PLANS", str(tmp_path / "plans"))
    monkeypatch.setenv("THREADCAST_ENGINE_FEEDBACK", "off")
    monkeypatch.setenv("THREADCAST_ENGINE_LEAST_STEP_US", "0")  # the network below is tiny
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    inference, training, _, planning = blocks
    exec(compile(planning, "README.md", "exec"), {})
    assert capsys.readouterr().out.split()[0] == "0.5"
    user = a_users_names()
    exec(compile(training, "README.md", "exec"), user)
    losses = [float(line) for line in capsys.readouterr().out.split()]
    assert len(losses) == 60
    assert losses[-1] < losses[0]
    user["step"].close()
    exec(compile(inference, "README.md", "exec"), user)
    with torch.no_grad():
        torch.testing.assert_close(user["answer"], user["model"](user["another_input"]), rtol=1e-3, atol=1e-4)
    user["fast"].close()


def test_python_of_the_recipes_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("THREADCAST_ENGINE_PLANS", str(tmp_path / "plans"))
    monkeypatch.setenv("THREADCAST_ENGINE_FEEDBACK", "off")
    if "threadcast" not in registry.list_backends(exclude_tags=()):  # known where the package is installed
        registry.register_backend(backend, name="threadcast")
    torch.manual_seed(0)
    user: dict[str, Any] = {}
    printed = []
    text = (ROOT / "docs" / "recipes.md").read_text()
    own = [part for part in text.split("\n## ") if not part.startswith(TRAINERS)]
    for block in re.findall(r"```python\n(.*?)```", "".join(own), re.DOTALL):
        exec(compile(block, "recipes.md", "exec"), user)
        printed.append(capsys.readouterr().out.split())
    schedule, trained, compiled, clipped, planned, decided = printed
    assert trained == []
    assert clipped[0] == "PyTorch:"
    assert "backward" in " ".join(compiled)
    assert float(schedule[-1]) == pytest.approx(0.0, abs=1e-12)  # the cosine's end
    assert planned[0] == "a"
    assert decided[0] == "[('a',"


def test_the_environment_can_leave_all_calls_to_pytorch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (ROOT / "docs" / "troubleshooting.md").read_text()
    assert "THREADCAST_ENGINE_LEAST_STEP_US=1e12" in page
    monkeypatch.setenv("THREADCAST_ENGINE_LEAST_STEP_US", "1e12")
    monkeypatch.setenv("THREADCAST_ENGINE_PLANS", str(tmp_path / "plans"))
    monkeypatch.setenv("THREADCAST_ENGINE_FEEDBACK", "off")
    user = a_users_names()
    step = optimize_training(user["model"], user["loss"], user["optimizer"])
    with pytest.warns(UserWarning, match="too short to gain"):
        losses = [step(inputs, target) for inputs, target in user["batches"][:6]]
    assert losses[-1] < losses[0]
    with pytest.warns(UserWarning, match="too short to gain"):
        fast = optimize(user["model"].eval(), user["example_input"])
    others, compiled = set(compiled_graphs()), torch.compile(user["model"], backend=backend)
    for _ in range(6):
        assert torch.equal(fast(user["example_input"]), compiled(user["example_input"]))
    assert [report.runs for report in [*step.reports, *fast.reports]] == ["default", "default"]
    assert "default, a call takes" in repr(step)
    of_model = set(compiled_graphs()) - others
    assert {report.runs for graph in of_model for report in graph.reports} == {"default"}
    step.close()
    fast.close()


def a_users_names() -> dict[str, Any]:
    """What the README's code takes for given."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    inputs, target = torch.randn(16, 4), torch.randint(0, 3, (16,))
    return {
        "model": model, "loss": torch.nn.functional.cross_entropy, "batches": [(inputs, target)] * 60,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1), "example_input": inputs,
        "another_input": torch.randn(16, 4),
    }  # fmt: skip
