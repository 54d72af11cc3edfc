"""The pyperf hook, by really running pyperf."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyperf._hooks import HookError

from threadcast.collector.counters import availability, plan_counting, pyperf_hook
from threadcast.collector.counters.perf_event import Kernel


def run_metadata(tmp_path: Path, statement: str) -> dict[str, Any]:
    """Metadata of the one run of one value that pyperf makes of `statement`."""
    result = tmp_path / "result.json"
    subprocess.run(
        [
            sys.executable, "-m", "pyperf", "timeit", "--hook", "threadcast_counters", "--processes", "1",
            "--values", "3", "--warmups", "0", "--loops", "4", "--quiet", "--output", str(result), statement,
        ],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    document = json.loads(result.read_text())
    (run,) = document["benchmarks"][0]["runs"]
    levels = (document, document["benchmarks"][0], run)  # pyperf lifts what all runs have in common
    return {name: value for level in levels for name, value in level.get("metadata", {}).items()}


def test_pyperf_stores_the_counts_of_a_run(tmp_path):
    pages = 200
    statement = (
        f"import mmap; m = mmap.mmap(-1, {pages} * mmap.PAGESIZE); "
        f"[m.write_byte(1) or m.seek(i * mmap.PAGESIZE) for i in range({pages})]; m.close()"
    )
    metadata = run_metadata(tmp_path, statement)
    assert metadata["hooks"] == "threadcast_counters"
    # Scaled by time running where the kernel shared the counter out, hence not to the last one.
    assert metadata["threadcast_page_faults"] >= 0.95 * 4 * pages
    assert metadata["threadcast_task_clock_ns"] > 0
    for name, status in availability().items():
        if status.available:
            assert f"threadcast_{name}" in metadata
        else:
            assert f"threadcast_{name}" not in metadata
            assert name in metadata["threadcast_unavailable"]
            assert status.reason in metadata["threadcast_unavailable"]


def test_pyperf_is_told_when_nothing_can_be_counted(monkeypatch):
    class Refusing(Kernel):
        def open(self, event: object, thread: int, *, leader: int | None) -> int:
            raise PermissionError(1, "not permitted")

    monkeypatch.setattr(pyperf_hook, "plan_counting", lambda: plan_counting(kernel=Refusing()))
    with pytest.raises(HookError, match="no event can be counted: not permitted"):
        pyperf_hook.CountersHook()
