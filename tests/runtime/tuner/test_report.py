"""What reports tell: nothing while measuring, then the gain of the comparison itself, in ten lines at most."""

from __future__ import annotations

import pytest
import torch

from threadcast.core import Placement, Plan
from threadcast.runtime.doors.optimize import OptimizedCall, optimize
from threadcast.runtime.plans.variant import MemoryFormat, Variant
from threadcast.runtime.tuner.candidate import DEFAULT, backend, eager_in, plan_of
from threadcast.runtime.tuner.guard import Verdict
from threadcast.runtime.tuner.report import COMPILING, MOST_CHARACTERS, SHOWN, Report, Reports

PLAN, EAGER = plan_of(Variant(MemoryFormat.AS_GIVEN)), eager_in(MemoryFormat.CHANNELS_LAST)
FASTER = Verdict(1.25, 1.21, 1.3, 9, "plan")
SLOWER = Verdict(0.97, 0.94, 0.99, 9, "default")
MANY = {f"backend {i}": SLOWER for i in range(50)}


@pytest.mark.parametrize(
    ("report", "state"),
    [
        (Report(), "measuring"),
        (Report(verdicts={str(PLAN): FASTER}), "measuring"),
        (Report(PLAN), "plan"),
        (Report(PLAN, verdicts={str(PLAN): FASTER}), "plan, 1.25 times as fast as PyTorch (1.21 to 1.30)"),
        (Report(PLAN, verdicts={str(PLAN): SLOWER}), "plan"),  # it lost to what is gone
        (
            Report(backend("OpenVINO"), verdicts={
                str(PLAN): FASTER, "OpenVINO": Verdict(1.5, 1.4, 1.6, 9, "plan", str(PLAN)),
            }),
            "OpenVINO, 1.50 times as fast as plan, as given (1.40 to 1.60), which was 1.25 times as fast as PyTorch "
            "(1.21 to 1.30)",
        ),
        (Report(DEFAULT), "default"),
        (Report.as_default("it is short"), "default, it is short"),
        (Report(reason=COMPILING), f"measuring, {COMPILING}"),
        (Report.as_default(COMPILING), f"default, {COMPILING}"),
        (
            Report(DEFAULT, verdicts={str(PLAN): SLOWER, str(EAGER): Verdict(0.5, 0.4, 0.6, 9)}),
            "default; plan, as given was 3% slower than it (0.94 to 0.99)",
        ),
        (
            Report(DEFAULT, verdicts={str(PLAN): Verdict(1.01, 0.98, 1.03, 15)}),
            "default; plan, as given was not shown to be faster or slower, 1.01 times as fast as it (0.98 to 1.03)",
        ),
    ],
)  # fmt: skip
def test_a_report_tells_what_the_comparison_has_shown(report: Report, state: str) -> None:
    assert report.state == state
    assert repr(report) == f"Report({state})"


def _many() -> Report:
    ops = tuple(Placement(f"op {i}", (0,), 1, float(i), 1.0 + i) for i in range(500))
    return Report(DEFAULT, "one reason\n" * 100 + "x" * 2000, plan=Plan(1, "search", ops), verdicts=MANY)


def test_texts_have_ten_lines_at_most_for_many_kinds_contenders_and_reasons(monkeypatch: pytest.MonkeyPatch) -> None:
    many = Reports(_many() for _ in range(200))
    monkeypatch.setattr(OptimizedCall, "reports", many)
    call = optimize(torch.relu)
    for text in (str(many[0]), repr(many[0]), repr(many), str(many), repr(call), str(call)):
        lines = text.splitlines()
        assert len(lines) <= 10
        assert max(map(len, lines)) < MOST_CHARACTERS + 40
    assert f"and {200 - SHOWN} more kinds of calls" in repr(many)
    assert "plan: 500 ops on 1 cores by search" in str(many[0])
    assert "more comparisons" in str(many[0])
    assert repr(Reports([Report()])) == "[Report(measuring)]"
    assert Reports([Report()]) == [Report()]
