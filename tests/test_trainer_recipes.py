"""The recipes for other libraries' trainers run as they are written, with the real libraries and random weights."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
TIMEOUT_S = 360
"""Longest time of a recipe; a test as a whole ends after `faulthandler_timeout` (pyproject.toml) in any case."""
GRAPHS = 3
"""Graphs that each recipe has: a forward and a backward graph of its compiled model, and a step of `optimize_training`.
"""

APART = 0.1
"""How far apart trained parameters may be, as a share of how far training has moved them. Parameters whose gradient is
rounding alone, as attention's biases of keys, move by whole steps of AdamW in any direction."""


@pytest.mark.system
@pytest.mark.timeout(TIMEOUT_S + 30)
@pytest.mark.parametrize(
    ("heading", "library", "steps"),
    [("Train a model of Hugging Face", "transformers", 6), ("Train with Lightning", "lightning", 6)],
)
def test_a_recipe_trains_by_plans_as_eager_pytorch_does(heading: str, library: str, steps: int, tmp_path: Path) -> None:
    pytest.importorskip(library, reason=f"{library} is not installed; `make setup` installs it")
    text = (ROOT / "docs" / "recipes.md").read_text()
    part = next(part for part in text.split("\n## ") if part.startswith(heading))
    script = tmp_path / "recipe.py"
    script.write_text("\n".join(re.findall(r"```python\n(.*?)```", part, re.DOTALL)))
    environment = {
        **os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT), "THREADCAST_ENGINE_FEEDBACK": "off",
        "THREADCAST_ENGINE_PLANS": str(tmp_path / "plans"), "THREADCAST_ENGINE_LEAST_STEP_US": "0",
        "THREADCAST_ENGINE_TUNING_SHARE": "1",
    }  # fmt: skip
    ran = subprocess.run(
        [sys.executable, "-m", "tests.recipe_process", str(script)], cwd=tmp_path, env=environment,
        capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert "as PyTorch does:" not in ran.stderr
    found = json.loads(ran.stdout.strip().splitlines()[-1])
    assert found["graphs"] >= GRAPHS
    assert steps in found["mine"]
    assert len(found["mine"]) == 3, "two losses and the number of steps"
    assert found["mine"] == pytest.approx(found["eager"], rel=1e-3)
    assert len(found["apart"]) >= 2
    assert max(found["apart"]) < APART
