"""The recipes for other libraries' trainers run as they are written, with the real libraries and random weights."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
REGISTERED = """
from torch._dynamo.backends import registry
from threadcast.runtime.compile_backend import backend

if "threadcast" not in registry.list_backends(exclude_tags=()):  # known where the package is installed
    registry.register_backend(backend, name="threadcast")
"""
TIMEOUT_S = 600


@pytest.mark.slow
@pytest.mark.parametrize(
    ("heading", "library", "printed"),
    [
        ("Train a model of Hugging Face", "transformers", r"\d\.\d+\n.*6$"),
        ("Train with Lightning", "lightning", r"^6\n\d\.\d+$"),
    ],
)
def test_a_recipe_runs(heading: str, library: str, printed: str, tmp_path: Path) -> None:
    pytest.importorskip(library, reason=f"{library} is not installed; `make setup` installs it")
    text = (ROOT / "docs" / "recipes.md").read_text()
    part = next(part for part in text.split("\n## ") if part.startswith(heading))
    script = tmp_path / "recipe.py"
    script.write_text(REGISTERED + "\n".join(re.findall(r"```python\n(.*?)```", part, re.DOTALL)))
    environment = {
        **os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT), "THREADCAST_ENGINE_FEEDBACK": "off",
        "THREADCAST_ENGINE_PLANS": str(tmp_path / "plans"),
    }  # fmt: skip
    ran = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S,
        check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert re.search(printed, ran.stdout.strip(), re.DOTALL), ran.stdout
    assert "as PyTorch does:" not in ran.stderr
