"""What the tables of `make bench-zoo` say follows from its records."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, replace
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
    assert correct_from([], []) is None, "there is nothing to be right"


def _far(one: torch.Tensor, other: torch.Tensor) -> float:
    from judged import differences

    (found,) = differences([(one, None, None)], [(other, None, None)])
    return float(found)


def test_differences_are_shares_of_the_largest_number() -> None:
    from judged import differences

    wanted = torch.tensor([1.0, -4.0, float("inf")])
    assert _far(wanted, wanted.clone()) == 0.0
    assert _far(wanted + torch.tensor([1.0, 0.0, 0.0]), wanted) == 0.25
    assert _far(torch.tensor([1.0, -4.0, float("nan")]), wanted) == float("inf")
    assert _far(torch.tensor([1.0, -4.0, -float("inf")]), wanted) == float("inf")
    assert _far(torch.tensor([1.0, -4.0, 5.0]), wanted) == float("inf")
    assert differences([(wanted, None, None)] * 2, [(wanted, None, None)]) == [float("inf")]
    complex_ones = torch.tensor([1 + 1j, 2.0])
    assert _far(complex_ones + 0.5j, complex_ones) == 0.25


def test_beside_a_large_number_the_others_are_compared_by_their_own_size() -> None:
    wanted = torch.tensor([1.0, 2.0, -1e30])
    assert _far(torch.tensor([0.0, 0.0, -1e30]), wanted) == 1.0


def test_whole_numbers_must_be_the_same() -> None:
    assert _far(torch.tensor([1, 1000]), torch.tensor([1, 1001])) == float("inf")
    assert _far(torch.tensor([True]), torch.tensor([True])) == 0.0


def test_what_was_never_updated_is_wrong_and_what_only_rounding_moves_is_not() -> None:
    from judged import is_right

    torch.manual_seed(0)
    before = torch.randn(100)
    wanted = [(before + 1e-5 * torch.randn(100), before, None)]
    again = [[(wanted[0][0] * (1 + 1e-7), before, None)]]
    assert is_right(wanted, wanted, again)
    assert is_right([(wanted[0][0] * (1 + 1e-7), before, None)], wanted, again)
    assert is_right([(before, before, None)], wanted, again) is False
    bias, other, mine = ((1e-9 * torch.randn(8), torch.zeros(8), None) for _ in range(3))
    assert is_right([wanted[0], mine], [wanted[0], bias], [[wanted[0], other]])
    assert is_right([(before, before, None), mine], [wanted[0], bias], [[wanted[0], other]]) is False


def test_a_value_may_differ_as_much_as_steady_values_of_eager_do() -> None:
    from judged import is_right

    zeros, moved = torch.zeros(8), torch.arange(1.0, 9.0)
    wanted = [(moved, zeros, None), (moved, zeros, None), (moved, zeros, None)]
    again = [[(moved * 1.02, zeros, None), (moved, zeros, None), (-moved, zeros, None)]]
    for factor, right in ((1.1, True), (1.5, False), (0.0, False)):
        assert is_right([wanted[0], (moved * factor, zeros, None), wanted[2]], wanted, again) is right


def test_what_cannot_be_said_is_neither_right_nor_wrong() -> None:
    from judged import is_right

    one, infinite = [(torch.ones(3), None, None)], [(torch.tensor([1.0, 1.0, float("inf")]), None, None)]
    assert is_right(infinite, one, [infinite]) is None
    assert is_right([(torch.zeros(3), None, None)], one, [one]) is False
    assert is_right([], [], []) is None


def test_a_running_mean_near_zero_may_differ_by_roundings_of_its_standard_deviation() -> None:
    from judged import is_right, moved_from, state_of

    torch.manual_seed(0)
    norm = torch.nn.BatchNorm1d(64)
    before = state_of(norm)
    norm.running_mean += 1e-10 * torch.randn(64)
    wanted, found = moved_from(before, norm), {}
    for roundings in (0.2, 30.0):
        norm.running_mean.copy_(roundings * torch.finfo(torch.float32).eps * torch.randn(64).sign())
        found[roundings] = moved_from(before, norm)
    assert is_right(found[0.2], wanted, [wanted])
    assert is_right(found[30.0], wanted, [wanted]) is False


def test_results_with_leaves_that_nobody_compares_are_refused() -> None:
    from judged import tensors_of

    assert [one.tolist() for one in tensors_of({"a": torch.ones(1), "b": (2, None, 0.5, "text")})] == [[1.0], 2, 0.5]
    with pytest.raises(TypeError, match="object"):
        tensors_of([torch.ones(1), object()])


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


def _record(name: str, *, settle_s: float = 15.0, learning: bool = False, **speedups: float) -> dict[str, Any]:
    from judge_measure import FAST
    from run_facts import RunFacts

    ways: dict[str, Any] = {who: {"step_s": 0.01 / one, "speedup": one} for who, one in speedups.items()}
    for way in ways.values():
        way |= {"correct_from": -5, "right": name != "wrong"}
    runs = {"runs": [["plan", ""]], "learning": learning}
    ways["threadcast"] |= {"settled": runs | {"seconds": settle_s}, "ended": runs}
    run, setting = RunFacts.now().to_json(), asdict(FAST) | {"settle_s": settle_s}
    return {"name": f"library/{name}", "mode": "inference", "run": run, "setting": setting, "ways": ways, "seconds": 50}


def test_rows_say_who_still_learned_and_records_of_two_settings_make_no_table() -> None:
    from figures.public_models import MEANS, MODELS, SCORES
    from judge_page import means_row, model_rows, score_rows

    same = {"eager": 1.0, "kept": 1.0, "inductor": 1.0, "frozen": 1.0}
    found = [_record("a", **same, threadcast=2.0, learning=True), _record("wrong", **same, threadcast=2.0)]
    rows, means = model_rows("zoo", found), means_row("zoo", "inference", found)
    assert [(row["library"], row["learned_s"], row["learning"], row["right"]) for row in rows] == [
        ("library", "15", True, True),
        ("library", "15", False, False),
    ]
    assert (rows[0]["runs"], rows[0]["runs_then"], rows[0]["threadcast"], rows[0]["frozen"]) == (
        "plan", "", "2.00", "1.00",
    )  # fmt: skip
    counts = ("models", "right", "planned", "slower", "learning", "not_in_means")
    assert [means[name] for name in counts] == [2, 1, 2, 1, 1, "library/wrong"]
    slow = _record("c", **same, threadcast=2.0) | {"left_out": "slower than 0.6 s"}
    assert (means_row("graphnet", "inference", [found[0], slow])["slow"], len(model_rows("graphnet", [slow]))) == (1, 0)
    with pytest.raises(ValueError, match="different settings"):
        model_rows("zoo", [*found, _record("b", **same, threadcast=2.0, settle_s=60.0)])
    for study, row in ((MODELS, rows[0]), (MEANS, means), (SCORES, score_rows("zoo", "inference", found)[0])):
        assert row.keys() | {"run"} == {*study.columns, "run"}


def test_means_are_of_right_models_beside_the_best_of_each_rival() -> None:
    from judge_page import means_row, model_rows

    one = _record("a", eager=1.0, kept=1.25, inductor=1.6, frozen=2.0, threadcast=4.0)
    two = _record("b", eager=1.0, kept=0.8, inductor=1.0, frozen=0.5, threadcast=1.0)
    wrong = _record("wrong", eager=1.0, kept=1.0, inductor=1.0, frozen=1.0, threadcast=50.0)
    failed = _record("failed", eager=1.0, kept=1.0, inductor=1.0, frozen=1.0, threadcast=50.0)
    del failed["ways"]["threadcast"]["speedup"]
    failed["ways"]["threadcast"]["error"] = "no answer"
    for record, runs in ((one, "default"), (two, "eager, channels last")):
        record["ways"]["threadcast"] |= {"ended": {"runs": [[runs, ""]], "learning": False}}
    found = means_row("zoo", "inference", [one, two, wrong, failed])
    assert [found[f"over_{rival}"] for rival in ("eager", "kept", "inductor", "frozen")] == [
        "2.00", "1.79", "1.58", "1.41",
    ]  # fmt: skip
    assert (found["models"], found["right"], found["planned"], found["slower"]) == (4, 2, 2, 2)
    assert found["not_in_means"] == "library/wrong, library/failed"
    two["ways"]["frozen"] = {"error": "no answer"}
    two["ways"]["inductor"]["right"] = False
    found = means_row("zoo", "inference", [one, two])
    assert (found["over_inductor"], found["inductor_ran"]) == ("2.50", 1)
    assert (found["over_frozen"], found["frozen_ran"]) == ("2.00", 1)
    one["ways"]["threadcast"]["ended"] = {"runs": [["plan", ""]], "learning": True}
    one["ways"]["threadcast"]["settled"]["runs"] = [["default", ""]]
    found, (row, _) = means_row("zoo", "inference", [one, two]), model_rows("zoo", [one, two])
    assert (row["runs"], row["runs_then"], found["planned"], found["learning"]) == ("default", "plan", 1, 1)


def test_records_of_another_commit_or_setting_are_measured_again(tmp_path: Path) -> None:
    from judge import _is_of_this_run
    from judge_measure import FAST, Setting
    from run_facts import RunFacts

    path, now = tmp_path / "record.json", replace(RunFacts.now(), commit="1234567")
    assert not _is_of_this_run(path, now, FAST)
    path.write_text(json.dumps({"run": now.to_json(), "setting": asdict(FAST)}))
    assert _is_of_this_run(path, now, FAST)
    assert not _is_of_this_run(path, now, Setting())
    assert not _is_of_this_run(path, replace(now, torch="2.0.0"), FAST)
    assert not _is_of_this_run(path, replace(now, machine="2 cores of another"), FAST)
    path.write_text(json.dumps({"run": now.to_json() | {"commit": "1234567+"}, "setting": asdict(FAST)}))
    assert not _is_of_this_run(path, replace(now, commit="1234567+"), FAST), "what differed is not known"
    path.write_text(json.dumps({"run": now.to_json() | {"commit": "0000000"}, "setting": asdict(FAST)}))
    assert not _is_of_this_run(path, now, FAST)


def test_the_judged_processes_are_not_others(tmp_path: Path) -> None:
    from warmup_others import OtherWork

    def write(*, work: int, idle: int, judged: int) -> None:
        (tmp_path / "stat").write_text(f"cpu {work} 0 0 {idle} 0 0 0 0\n")
        (tmp_path / "1234567").mkdir(exist_ok=True)
        (tmp_path / "1234567" / "stat").write_text(f"1234567 (sh) R 1 1 77 {'0 ' * 7}{judged} 0 0 0\n")

    write(work=100, idle=100, judged=10)
    counted, own = OtherWork((), tmp_path), OtherWork((), tmp_path)
    own.is_own(77)
    write(work=180, idle=120, judged=60)
    assert counted.share() == 0.8
    assert own.share() == 0.2  # of 80 ticks 60 are its own, 10 of them from before


@pytest.mark.parametrize(
    "wrong",
    ["--modes nonsense", "--modes inference,", "--most -1", "--seconds -1", "--seconds nan", "--only zzz"],
)
def test_a_choice_that_makes_no_sense_is_refused(wrong: str, capsys: pytest.CaptureFixture[str]) -> None:
    from judge import main

    with pytest.raises(SystemExit, match="2"):
        main(["zoo", *wrong.split()])
    assert wrong.split()[0] in capsys.readouterr().err.splitlines()[-1]
