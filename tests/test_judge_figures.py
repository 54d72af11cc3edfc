"""What the pages of `make bench-zoo` and `make bench-graphnet` say follows from their records."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture(autouse=True)
def benchmarks_importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    for name in (
        "judge",
        "judge_scores",
        "judged",
        "graphnet_graphs",
        "judge_page",
        "judge_measure",
        "judge_process",
        "judge_cases",
    ):
        sys.modules.pop(name, None)


def test_scores_count_failures_as_graphnet_does() -> None:
    from judge_scores import scores

    found = scores([{"speedup": 2.0, "correct_from": -5}, {"speedup": 2.0, "correct_from": None}, {"error": "raised"}])
    assert found[-6] == pytest.approx((0.1, 0.1))
    assert found[-5] == pytest.approx(((2.0 * 0.1 * 0.1) ** (1 / 3),) * 2)
    assert found[1][1] == pytest.approx((2.0 * 1 * 0.1) ** (1 / 3))
    assert found[3][1] == pytest.approx(2.0 ** (1 / 3))


def test_results_are_correct_from_the_level_of_their_difference() -> None:
    from judge_scores import correct_from

    one = torch.ones(3)
    assert correct_from([one], [one]) == -10
    assert correct_from([one + 5e-4], [one]) == -3
    assert correct_from([one.double()], [one]) is None
    assert correct_from([torch.tensor([1])], [torch.tensor([2])]) is None


def test_differences_are_shares_of_the_largest_number() -> None:
    from judged import difference

    wanted = torch.tensor([1.0, -4.0, float("inf")])
    assert difference([wanted], [wanted.clone()]) == 0.0
    assert difference([wanted + torch.tensor([1.0, 0.0, 0.0])], [wanted]) == 0.25
    assert difference([torch.tensor([1.0, -4.0, float("nan")])], [wanted]) == float("inf")
    assert difference([wanted, wanted], [wanted]) == float("inf")


def test_graphs_are_held_out_if_any_spelling_of_their_path_is_odd() -> None:
    from graphnet_graphs import may_be_used

    used = [f"samples/library/model_{i}" for i in range(400) if may_be_used(f"samples/library/model_{i}")]
    assert 20 < len(used) < 90  # an eighth of them
    assert not may_be_used("samples/library/model_0")


def test_graphs_run_on_the_cpu_without_the_number_of_a_gpu() -> None:
    from graphnet_graphs import on_cpu

    source = 'torch.arange(4, device=device(type="cuda", index=0)) + x.to(device(type="cpu"))'
    assert on_cpu(source) == 'torch.arange(4, device=device(type="cpu")) + x.to(device(type="cpu"))'
    assert on_cpu("device(type='cuda')") == 'device(type="cpu")'


def test_pages_say_who_still_learned_and_refuse_records_of_two_settings() -> None:
    from judge_measure import FAST
    from judge_page import page
    from run_facts import RunFacts

    run = RunFacts.now().to_json()

    def record(name: str, settle_s: float, *, learning: bool) -> dict[str, Any]:
        settled = {"seconds": settle_s, "runs": [["plan", ""]], "learning": learning}
        ways: dict[str, Any] = {
            who: {"step_s": 0.01, "speedup": 1.0, "correct_from": -10} for who in ("eager", "inductor")
        }
        ways["threadcast"] = {"step_s": 0.005, "speedup": 2.0, "correct_from": -5, "settled": settled}
        setting = asdict(FAST) | {"settle_s": settle_s}
        return {"name": name, "mode": "inference", "run": run, "setting": setting, "ways": ways}

    text = page("zoo", [record("a", FAST.settle_s, learning=True), record("b", FAST.settle_s, learning=False)])
    assert "| 15 s + |" in text
    assert "| 15 s |" in text
    assert "0 slower than 0.97 of the faster of both; 1 were still learning." in text
    assert "`make bench-zoo FAST=1 MODES=inference`" in text
    assert "measured later" not in text
    assert "`make bench-zoo FAST=1 SECONDS=40 MODES=inference`" in page("zoo", [record("a", 40.0, learning=True)])
    again = record("b", FAST.settle_s, learning=False) | {"run": run | {"started": "9999-01-01T00:00:00"}}
    text = page("zoo", [record("a", FAST.settle_s, learning=True), again])
    assert "| b [2] |" in text
    assert "- [2]: measured later" in text
    slow = record("c", FAST.settle_s, learning=False) | {"left_out": "slower than 0.6 s"}
    text = page("graphnet", [record("a", FAST.settle_s, learning=True), slow])
    assert "- 1 graphs more were left out" in text
    assert "| c |" not in text
    with pytest.raises(ValueError, match="different settings"):
        page("zoo", [record("a", FAST.settle_s, learning=True), record("b", 60.0, learning=False)])


def test_records_of_another_commit_or_setting_are_measured_again(tmp_path: Path) -> None:
    from judge import _is_of_this_run
    from judge_measure import FAST, Setting
    from run_facts import RunFacts

    path, now = tmp_path / "record.json", RunFacts.now()
    assert not _is_of_this_run(path, now, FAST)
    path.write_text(json.dumps({"run": now.to_json(), "setting": asdict(FAST)}))
    assert _is_of_this_run(path, now, FAST)
    assert not _is_of_this_run(path, now, Setting())
    path.write_text(json.dumps({"run": now.to_json() | {"commit": "0000000"}, "setting": asdict(FAST)}))
    assert not _is_of_this_run(path, now, FAST)


def test_the_judged_processes_are_not_others() -> None:
    from warmup_others import OtherWork

    counted, own = OtherWork(()), OtherWork(())
    with subprocess.Popen(["timeout", "0.5", "sh", "-c", "while :; do :; done"], start_new_session=True) as busy:
        own.is_own(busy.pid)
        time.sleep(0.4)
        assert own.share() < counted.share()


@pytest.mark.parametrize(
    "wrong",
    ["--modes nonsense", "--modes inference,", "--most -1", "--seconds -1", "--seconds nan", "--only zzz"],
)
def test_a_choice_that_makes_no_sense_is_refused(wrong: str, capsys: pytest.CaptureFixture[str]) -> None:
    from judge import main

    with pytest.raises(SystemExit, match="2"):
        main(["zoo", "--quick", *wrong.split()])
    assert wrong.split()[0] in capsys.readouterr().err.splitlines()[-1]
