"""`make bench-many-cores`: time is divided, results survive a cut, a second call goes on, tables say what is there."""

from __future__ import annotations

import importlib
import json
import subprocess
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.waiting import eventually
from threadcast import networks
from threadcast.core import Machine, Op, TensorSpec, read_machine
from threadcast.core.errors import InvalidInput
from threadcast.core.machine import Core
from threadcast.store.long_form import read_long_form

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture(autouse=True)
def benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))


@pytest.fixture
def results(benchmarks: None) -> ModuleType:
    return importlib.import_module("many_cores_results")


class Clock:
    """Time that passes when told to."""

    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.mark.parametrize(
    ("text", "cores", "counts"),
    [
        ("", 1, (1,)),
        ("", 2, (1, 2)),
        ("", 12, (1, 2, 4, 8, 12)),
        (" ", 16, (1, 2, 4, 8, 16)),
        ("8, 1,8,3", 8, (1, 3, 8)),
    ],
)
def test_thread_counts_are_read_ascending_and_once(
    results: ModuleType, text: str, cores: int, counts: tuple[int, ...]
) -> None:
    assert results.thread_counts(text, cores) == counts


@pytest.mark.parametrize("text", ["0", "17", "1,,2", "two", "-1", "1.5"])
def test_a_thread_count_that_cannot_be_is_refused_by_name(results: ModuleType, text: str) -> None:
    with pytest.raises(InvalidInput, match="must be a number from 1 to the 16 usable cores"):
        results.thread_counts(text, 16)


def test_every_thread_count_has_its_turn_those_asked_for_first(results: ModuleType) -> None:
    order = results.by_value((1, 2, 4, 8, 16), 16)
    assert order[:5] == (1, 2, 4, 8, 16)
    assert sorted(order) == list(range(1, 17))
    assert order[5] == 12  # the farthest from all before it


def test_a_part_gets_its_share_of_what_is_left_and_leaves_the_rest_to_the_next(results: ModuleType) -> None:
    clock = Clock()
    budget = results.Budget(100.0, {"a": 1.0, "b": 3.0, "c": 1.0}, clock)
    assert budget.share_s("a") == pytest.approx(20.0)
    clock.now_s += 4.0  # it took less
    assert budget.share_s("b") == pytest.approx(72.0)
    clock.now_s += 90.0  # it took more
    assert budget.share_s("c") == pytest.approx(6.0)
    clock.now_s += 10.0
    assert (budget.left_s, budget.share_s("c")) == (0.0, 0.0)
    with pytest.raises(InvalidInput, match="budget_s=0"):
        results.Budget(0, {"a": 1.0}, clock)


def test_no_unit_begins_that_would_not_end_in_time(results: ModuleType) -> None:
    clock = Clock()
    turns = results.Turns(clock.now_s + 10.0, 2.0, clock)
    assert turns.next()
    clock.now_s += 3.0  # the longest so far: the next ends at 6
    assert turns.next()
    clock.now_s += 1.0
    assert turns.next()  # 4 + 3
    clock.now_s += 3.5
    assert not turns.next()  # 7.5 + 3.5
    assert not results.Turns(clock.now_s + 1.0, 2.0, clock).next()


def test_results_survive_a_torn_line_and_are_gone_on_with(results: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "folder" / "results.jsonl"
    first = results.Results(path)
    first.add("steps", "a", seconds=[1.0])
    with path.open("a") as file:
        file.write('{"part": "steps", "key": "b", "sec')  # killed while it wrote
    again = results.Results(path)
    assert (again.has("steps", "a"), again.has("steps", "b"), again.has("processes", "a")) == (True, False, False)
    again.add("steps", "b", seconds=[2.0])
    assert [line["key"] for line in results.Results(path).read()] == ["a", "b"]


def step_line(eager: dict[int, float], ours_s: float, **facts: Any) -> dict[str, Any]:
    def times(by_threads: dict[int, float]) -> dict[str, Any]:
        found = {str(n): {"median_s": s, "low_s": s, "high_s": 1.1 * s, "steps": 9} for n, s in by_threads.items()}
        return {"by_threads": found, "peak_bytes": 1}

    cores = max(eager)
    ours = {**times({cores: ours_s}), "runs": "plan", "layout": "as given", "settled_s": 3.0, "predicted_s": 0.5,
            "then_s": 0.6, "bound_s": 0.4, "policy": "cpa", "widths": [1, 2]} | facts  # fmt: skip
    who = {"eager": times(eager), "eager, tuned": times({n: 0.9 * s for n, s in eager.items()}), "threadcast": ours}
    failed = {"torch.compile": "not ready within 75 s"}
    return {"part": "steps", "key": "net, training", "case": "net", "mode": "training", "cores": cores,
            "contenders": who, "failed": failed}  # fmt: skip


def cells(text: str, first: str) -> list[str]:
    line = next(line for line in text.splitlines() if line.startswith(f"| {first} |"))
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_the_table_of_steps_has_every_thread_count_and_what_failed() -> None:
    page = importlib.import_module("many_cores_page")
    text = page.steps([step_line({1: 2.0, 2: 1.0, 4: 1.5}, 0.5)])
    row = cells(text, "net")
    assert row[2:5] == ["2e+03", "1e+03", "1.5e+03"]
    assert row[5:9] == ["900", "eager, tuned, 2 threads", "nan", "500"]
    assert row[10:13] == ["3.00", "1.80", "nan"]  # over all cores, over the best, over what did not start
    assert "- net, training, torch.compile: not ready within 75 s" in text
    titles = next(line for line in text.splitlines() if line.startswith("| case"))
    dashes = next(line for line in text.splitlines() if line.startswith("|---"))
    rows = [line for line in text.splitlines() if line.startswith(("| net", "| geometric"))]
    assert {line.count("|") for line in (titles, dashes, *rows)} == {titles.count("|")}


def test_a_case_in_which_one_failed_is_tried_once_more_and_shown_where_most_ran() -> None:
    page, steps = importlib.import_module("many_cores_page"), importlib.import_module("many_cores_steps")
    failed = step_line({1: 2.0}, 0.5)
    whole = step_line({1: 2.0}, 0.25) | {"failed": {}}
    poorer = failed | {"contenders": {"eager": failed["contenders"]["eager"]}}
    assert steps.finished([failed]) == set()
    assert steps.finished([failed, failed]) == steps.finished([whole]) == {failed["key"]}
    assert cells(page.steps([failed, whole, poorer]), "net")[6] == "250"


def test_forecasts_are_told_of_plans_only() -> None:
    page = importlib.import_module("many_cores_page")
    lines = [step_line({1: 2.0}, 0.5), step_line({1: 2.0}, 0.5, runs="default", predicted_s=None) | {"key": "other"}]
    text = page.forecasts(lines)
    assert cells(text, "net")[2:5] == ["500", "600", "+20%"]
    assert text.count("| net |") == 1
    assert page.forecasts(lines[1:]) == ""


def test_progress_is_of_what_a_process_makes_alone_and_parts_that_are_missing_are_nan() -> None:
    page = importlib.import_module("many_cores_page")
    lines = [
        {"part": "processes", "key": f"{n} LSTM, {rule}", "count": n, "network": "LSTM", "rule": rule, "rates": rates}
        for n, rule, rates in [(1, "alone", [10.0]), (2, "left alone", [1.0, 1.0]), (2, "threadcast", [4.0, 5.0])]
    ]
    assert cells(page.processes(lines), "2 LSTM")[1:] == ["0.20", "nan", "0.90", "4.50", "nan"]
    assert page.processes(lines[1:]) == ""  # without what it makes alone there is no share


def test_different_results_are_named() -> None:
    page = importlib.import_module("many_cores_page")
    keys = ("lstm train plan 0", "lstm call plan 0", "nn.Linear call float32 0")
    lines = [{"part": "correctness", "key": key, "status": "right", "reason": ""} for key in keys]
    lines[0] |= {"status": "different", "reason": "one lane: loss"}
    text = page.correctness(lines)
    assert cells(text, "networks, train")[1:] == ["0", "0", "0", "1"]
    assert cells(text, "modules, call")[1:] == ["1", "0", "0", "0"]
    assert "- lstm train plan 0: different, one lane: loss" in text


def test_a_page_is_made_of_whatever_there_is() -> None:
    page, facts = importlib.import_module("many_cores_page"), importlib.import_module("run_facts")
    run = {"part": "run", "key": "a", "run": facts.RunFacts.now().to_json(), "software": {"torch": "2.13", "numba": ""}}
    text = page.page([run], recorded=0)
    assert "Software: torch 2.13." in text
    assert "The recording has 0 measurements." in text


def sixteen() -> Machine:
    return Machine("many", tuple(Core(i, (i,), 0) for i in range(16)))


def test_cores_are_divided_by_hand_evenly_each_once() -> None:
    processes = importlib.import_module("many_cores_processes")
    for count in (1, 2, 3, 4, 8, 16):
        parts = processes.parts_by_hand(count, sixteen())
        assert sorted(cpu for part in parts for cpu in part) == list(range(16))
        assert max(map(len, parts)) - min(map(len, parts)) <= 1
    assert processes.parts_by_hand(3, two()) == [(0,), (1,), (0,)]


def two() -> Machine:
    return Machine("two", tuple(Core(i, (i,), 0) for i in range(2)))


def test_the_passes_of_a_recording_have_every_thread_count_once() -> None:
    recording = importlib.import_module("many_cores_recording")
    passes = recording.passes((1, 2, 4, 8, 16), 16)
    assert passes[0] == (1, 2, 4, 8, 16)
    assert sorted(n for of_pass in passes for n in of_pass) == list(range(1, 17))
    assert recording.passes((1, 2), 2) == [(1, 2)]


def mm(side: int) -> Op:
    a = TensorSpec((side, side), "float32")
    attributes = {"target": "aten.mm.default", "args": [{"t": 0}, {"t": 1}], "kwargs": {}}
    return Op("mm", (a, a), attributes)


def test_a_recording_goes_on_where_it_stopped_and_makes_a_table(tmp_path: Path) -> None:
    module = importlib.import_module("many_cores_recording")
    machine, op = sixteen(), mm(8)
    recording = module.Recording(tmp_path / "recording.jsonl")
    recording.add(op, {1: [2e-6, 3e-6], 16: [1e-6]}, {"cache": "rotated"})
    recording.add_failed(mm(4), (2,), "no operator")
    recording = module.Recording(tmp_path / "recording.jsonl")
    assert recording.known() == {(op.key, 1), (op.key, 16), (mm(4).key, 2)}
    table = tmp_path / "table.csv.gz"
    assert module.long_form(recording, machine, table) == 2
    found = {m.case.threads: m for m in read_long_form(table)}
    assert [sample.seconds for sample in found[1].samples] == [2e-6, 3e-6]
    assert (found[16].op, found[16].machine, found[16].conditions["cache"]) == (op, machine, "rotated")


def test_an_op_is_timed_at_every_count_of_this_machine() -> None:
    module, machine = importlib.import_module("many_cores_recording"), read_machine()
    counts = sorted({1, len(machine)})
    found = module.timed(mm(32), machine, counts, 1 << 16)
    assert sorted(found) == counts
    assert all(0 < second < 1 for seconds in found.values() for second in seconds)


def test_ops_that_lack_a_thread_count_do_not_count_as_curves(tmp_path: Path) -> None:
    module = importlib.import_module("many_cores_recording")
    forecasts = importlib.import_module("many_cores_forecasts")
    recording = module.Recording(tmp_path / "recording.jsonl")
    for side in (2, 4, 8):
        recording.add(mm(side), {1: [1e-6], 2: [1e-6]}, {})
    recording.add(mm(16), {1: [1e-6]}, {})
    recording.add(mm(2), {3: [1e-6]}, {})  # the next pass had only begun
    ops, kept = forecasts.whole(recording.measurements(sixteen()))
    assert (ops, len(kept)) == (3, 6)


def test_results_of_another_machine_are_not_gone_on_with() -> None:
    many = importlib.import_module("many_cores")
    line = {"part": "run", "key": "a", "fingerprint": sixteen().fingerprint}
    many.checked([line], sixteen())
    with pytest.raises(SystemExit, match="give another --out"):
        many.checked([line], replace(sixteen(), name="other"))


def test_a_part_that_fails_or_hangs_is_told_and_leaves_no_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = importlib.import_module("many_cores")
    script, log = tmp_path / "part.py", tmp_path / "log.txt"
    monkeypatch.setattr(many, "__file__", str(script))
    for code, ended in (("", "whole"), ("import sys; sys.exit(3)", "failed with status 3")):
        script.write_text(code)
        assert many.in_process("steps", [], 120.0, log) == ended
    stopped = tmp_path / "stopped"
    script.write_text(f"""
import os, signal, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
os.kill(child.pid, signal.SIGSTOP)
open({str(stopped)!r}, "w").write(str(child.pid))
time.sleep(600)
""")

    def until_stopped(process: Any, seconds: float) -> None:
        assert eventually(lambda: stopped.exists() and stopped.read_text() != "")
        raise subprocess.TimeoutExpired("steps", seconds)

    assert many.in_process("steps", [], 2.0, log, until_stopped) == "killed when its time was up"
    assert eventually(lambda: not is_alive(Path("/proc", stopped.read_text())))


def is_alive(process: Path) -> bool:
    """Whether a process is there that nobody has only forgotten to wait for."""
    try:
        return (process / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_every_case_is_a_network_that_trains_and_is_called() -> None:
    cases = importlib.import_module("many_cores_cases")
    warmup = importlib.import_module("warmup_networks")
    assert len(cases.CASES) == 10
    assert len({case.title for case in cases.CASES}) == 10
    for case in cases.CASES:
        if case.size == "own":
            assert callable(getattr(warmup, case.network))
        else:
            assert set(case.options) <= set(networks.registry.options(case.network, case.size))


def test_each_contender_is_told_its_part(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = importlib.import_module("many_cores_steps")
    told = steps.contenders(steps.CASES[0], "training", 16)
    assert told[-1]["who"] == "threadcast"
    monkeypatch.setattr(steps, "has_compiler", lambda: False)
    assert "torch.compile" not in [one["who"] for one in steps.contenders(steps.CASES[0], "training", 16)]
    assert json.dumps(told)
