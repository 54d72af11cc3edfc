"""What the documents say is so: commands, settings, targets, links."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import tomllib
from itertools import chain
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
import torch
from torch._dynamo.backends import registry

from docs import commands_page, settings_page
from tests.waiting import eventually
from threadcast import optimize, optimize_training
from threadcast.cli.main import COMMANDS, cli
from threadcast.core import Machine
from threadcast.core.settings_table import SETTINGS
from threadcast.runtime.doors.compile_backend import backend, compiled_graphs
from threadcast.runtime.doors.optimized_model import OptimizedModel
from threadcast.scheduler.planner import SEARCH
from threadcast.scheduler.policies import names
from threadcast.service.app import create_app
from threadcast.service.settings import ServiceSettings

ROOT = Path(__file__).parent.parent
TRAINERS = ("Train a model of Hugging Face", "Train with Lightning")
"""Headings of recipes that need other libraries; `test_trainer_recipes` runs them."""
FOLDERS = ("docs", "data", "threadcast", "tests")
DOCUMENTS = {
    path.relative_to(ROOT).as_posix(): path.read_text()
    for path in sorted(chain(ROOT.glob("*.md"), *((ROOT / folder).rglob("*.md") for folder in FOLDERS)))
}
"""Path in the repository -> text of each document."""
GUIDES = {name: text for name, text in DOCUMENTS.items() if not re.match("docs/(decisions|figures)/|CHANGELOG", name)}


def blocks(document: str, language: str) -> list[str]:
    """The blocks of code in a document, in their order."""
    return re.findall(rf"```{language}\n(.*?)```", DOCUMENTS[document], re.DOTALL)


def anchors(text: str) -> set[str]:
    """What links can name in a document: its headings, as GitHub and the site write them."""
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {
        re.sub(r"[^\w -]", "", re.sub(r"\[(.*?)\]\(.*?\)", r"\1", title)).strip().lower().replace(" ", "-")
        for title in headings
    }


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
    rows = [line.split("|") for line in DOCUMENTS["docs/concepts.md"].splitlines() if line.startswith("| `")]
    documented = {name for row in rows if len(row) == 5 and row[3].strip() for name in re.findall(r"`(\w+)`", row[1])}
    assert documented == {*names(), SEARCH}


def test_links_between_documents_lead_somewhere() -> None:
    lost = []
    for name, text in DOCUMENTS.items():
        for target, _, anchor in (link.partition("#") for link in re.findall(r"\]\(([^)\s]+)[^)]*\)", text)):
            path = (ROOT / name).parent / target if target else ROOT / name
            if re.match(r"[a-z]+:", target):
                continue
            if not path.exists() or (anchor and path.suffix == ".md" and anchor not in anchors(path.read_text())):
                lost.append(f"{name}: {target}#{anchor}")
    assert lost == []


def test_every_make_target_that_documents_name_exists() -> None:
    targets = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {
        (name, made)
        for name, text in DOCUMENTS.items()
        for made in re.findall(r"(?:`|^\$ )make ([a-z][a-z-]*)", text, re.M)
    }
    assert {(name, made) for name, made in named if made not in targets} == set()


def test_every_command_in_a_guide_has_the_options_that_it_is_given() -> None:
    context = cli.make_context("threadcast", [], resilient_parsing=True)
    lines = re.findall(r"(?:^\$ |&& |`)threadcast ([^`\n]+)", "\n".join(GUIDES.values()), re.M)
    assert len(lines) > 80
    wrong = []
    for line in lines:
        command, words = cli, shlex.split(line.partition("#")[0].partition(" > ")[0].rstrip(" &"))
        while isinstance(command, click.Group) and words and not words[0].startswith("-"):
            command = command.get_command(context, words.pop(0)) or pytest.fail(line)
        try:
            command.make_parser(click.Context(command, resilient_parsing=True)).parse_args(words)
        except click.UsageError as error:
            wrong.append(f"{line}: {error}")
    assert wrong == []


def test_every_setting_that_a_guide_names_exists() -> None:
    text = "\n".join(GUIDES.values())
    variables = {setting.variable for setting in SETTINGS.values()} | {"THREADCAST_CONFIG", "THREADCAST_DATA"}
    assert set(re.findall(r"\bTHREADCAST_[A-Z_]+[A-Z]", text)) - variables == set()
    named = set(re.findall(r"`((?:engine|profile|service|train)\.(?!csv)[a-z_]+)(?: = [^`]*)?`", text))
    assert len(named) > 10
    assert named - set(SETTINGS) == set()


def test_the_first_steps_name_every_extra() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    named = re.findall(r"^\| ((?:`\w+`,? ?)+) \|", DOCUMENTS["docs/start.md"], re.M)
    of_parts = {name for cell in named for name in re.findall(r"\w+", cell)}
    assert extras.keys() - {"docs", "dev", "trainers"} <= of_parts
    asked = re.findall(r"(?:\.|threadcast)\[([a-z,]+)\]", "\n".join(GUIDES.values()))
    assert {name for names in asked for name in names.split(",")} <= extras.keys()


def test_documents_are_short() -> None:
    words = {name: len(text.split()) for name, text in DOCUMENTS.items()}
    assert sum(words.values()) <= 45_000
    assert {name: number for name, number in words.items() if number > 3_000} == {}


def test_the_readme_fits_two_screens_and_names_no_commit() -> None:
    readme = DOCUMENTS["README.md"]
    assert len(readme.splitlines()) <= 120
    assert len(readme.encode()) <= 8_192
    assert re.findall(r"\bcommit\b|\b(?=[a-f]*\d)(?=\d*[a-f])[0-9a-f]{7,40}\b", readme) == []


def test_make_alone_lists_the_targets_in_groups() -> None:
    done = subprocess.run(["make", "--no-print-directory"], cwd=ROOT, capture_output=True, text=True, check=True)
    groups = re.findall(r"^\S.*$", done.stdout, re.MULTILINE)
    listed = re.findall(r"^  ([a-z-]+) +\S", done.stdout, re.MULTILINE)
    assert groups[:2] == ["Start", "Test"]
    assert {"setup", "demo", "test", "test-system", "lint", "docs"} <= set(listed)
    assert len(listed) < 20
    assert max(map(len, done.stdout.splitlines())) <= 120


def test_requests_of_the_pages_get_the_answers_that_they_show(tmp_path: Path) -> None:
    app = create_app(ServiceSettings(store=tmp_path / "store.sqlite", models=tmp_path / "models"))
    text = DOCUMENTS["README.md"] + DOCUMENTS["docs/http.md"]
    asked = re.findall(r"8321(/v1/\S+)[^{]*?-d '(.*?)'\n(\{.*?)\n(?=\$|```)", text, re.DOTALL)
    assert len(asked) == 3
    for path, body, shown in asked:
        answer = app.test_client().post(path, json=json.loads(body))
        assert answer.status_code == 200
        assert set(re.findall(r'"(\w+)":', shown)) <= answer.json.keys()
        if "local" not in body:  # another machine has other times
            numbers = dict(re.findall(r'"(seconds|low|high|makespan_s)":([\d.\[\],]+[\d\]])', shown))
            assert numbers
            for name, value in numbers.items():
                assert np.allclose(answer.json[name], json.loads(value), rtol=0.01)
    app.extensions["threadcast"].store.close()


def test_the_client_that_the_page_on_http_shows_is_made() -> None:
    user: dict[str, Any] = {"machine": Machine.uniform("four cores", 4), "local": None}
    for block in blocks("docs/http.md", "python"):
        exec(compile(block, "http.md", "exec"), user)
    assert user["predictor"].status.fetched == 0


@pytest.mark.system
def test_python_of_the_readme_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("THREADCAST_ENGINE_PLANS", str(tmp_path / "plans"))
    monkeypatch.setenv("THREADCAST_ENGINE_FEEDBACK", "off")
    register_backend()
    inference, training = blocks("README.md", "python")
    user = a_users_names()
    exec(compile(inference, "README.md", "exec"), user)
    assert capsys.readouterr().out.startswith("torch.Size([8, 64, 256]) OptimizedCall(")
    user["fast"].close()
    user |= a_users_names()
    user["inputs"], user["target"] = user["batches"][0]
    exec(compile(training, "README.md", "exec"), user)
    assert user["value"].item() > 0
    user["compiled"](user["example_input"]).sum().backward()
    user["step"].close()


@pytest.mark.system
def test_python_of_the_first_steps_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("THREADCAST_ENGINE_PLANS", str(tmp_path / "plans"))
    monkeypatch.setenv("THREADCAST_ENGINE_FEEDBACK", "off")
    monkeypatch.setenv("THREADCAST_ENGINE_LEAST_STEP_US", "0")  # the network below is tiny
    training, inference = blocks("docs/start.md", "python")
    user = a_users_names()
    exec(compile(training, "start.md", "exec"), user)
    losses = [float(line) for line in capsys.readouterr().out.split()]
    assert len(losses) == 60
    assert losses[-1] < losses[0]
    user["step"].close()
    exec(compile(inference, "start.md", "exec"), user)
    with torch.no_grad():
        torch.testing.assert_close(user["answer"], user["model"](user["another_input"]), rtol=1e-3, atol=1e-4)
    user["fast"].close()


@pytest.mark.system
def test_python_of_the_recipes_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("THREADCAST_ENGINE_PLANS", str(tmp_path / "plans"))
    monkeypatch.setenv("THREADCAST_ENGINE_FEEDBACK", "off")
    register_backend()
    torch.manual_seed(0)
    user: dict[str, Any] = {}
    printed, opened = [], dict[int, OptimizedModel]()
    text = DOCUMENTS["docs/recipes.md"]
    own = [part for part in text.split("\n## ") if not part.startswith(TRAINERS)]
    for block in re.findall(r"```python\n(.*?)```", "".join(own), re.DOTALL):
        exec(compile(block, "recipes.md", "exec"), user)
        printed.append(capsys.readouterr().out.split())
        opened.update({id(made): made for made in user.values() if isinstance(made, OptimizedModel)})
    for made in opened.values():
        made.close()
    schedule, trained, compiled, clipped, planned, decided = printed
    assert trained == []
    assert clipped[0] == "PyTorch:"
    assert "backward" in " ".join(compiled)
    assert float(schedule[-1]) == pytest.approx(0.0, abs=1e-12)  # the cosine's end
    assert planned[0] == "a"
    assert decided[0] == "[('a',"


def test_the_environment_can_leave_all_calls_to_pytorch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "THREADCAST_ENGINE_LEAST_STEP_US=1e12" in DOCUMENTS["docs/troubleshooting.md"]
    monkeypatch.setenv("THREADCAST_ENGINE_LEAST_STEP_US", "1e12")
    monkeypatch.setenv("THREADCAST_ENGINE_PLANS", str(tmp_path / "plans"))
    monkeypatch.setenv("THREADCAST_ENGINE_FEEDBACK", "off")
    user = a_users_names()
    step = optimize_training(user["model"], user["loss"], user["optimizer"])
    (inputs, target), losses = user["batches"][0], []
    with pytest.warns(UserWarning, match="too short to gain"):
        eventually(lambda: losses.append(step(inputs, target)) or "too short" in step.reports[0].reason)
    assert losses[-1] < losses[0]
    with pytest.warns(UserWarning, match="too short to gain"):
        fast = optimize(user["model"].eval(), user["example_input"])
    torch.compiler.reset()  # graphs of other tests' models of the same code would be taken
    others, compiled = set(compiled_graphs()), torch.compile(user["model"], backend=backend)
    for _ in range(6):
        assert torch.equal(fast(user["example_input"]), compiled(user["example_input"]))
    assert [report.runs for report in [*step.reports, *fast.reports]] == ["default", "default"]
    assert "default, a call takes" in repr(step)
    of_model = set(compiled_graphs()) - others
    assert {report.runs for graph in of_model for report in graph.reports} <= {"default"}
    step.close()
    fast.close()


def register_backend() -> None:
    """What `torch.compile` knows where the package is installed."""
    if "threadcast" not in registry.list_backends(exclude_tags=()):
        registry.register_backend(backend, name="threadcast")


def a_users_names() -> dict[str, Any]:
    """What code of the README and of the first steps takes for given."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    inputs, target = torch.randn(16, 4), torch.randint(0, 3, (16,))
    return {
        "model": model, "loss": torch.nn.functional.cross_entropy, "batches": [(inputs, target)] * 60,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1), "example_input": inputs,
        "another_input": torch.randn(16, 4),
    }  # fmt: skip
