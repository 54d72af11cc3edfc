"""Optimised steps whose plans are wrong: refused at their first step, or stopped by a shadow step later on."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest
import torch
from torch.nn.functional import cross_entropy

import threadcast
from tests.runtime.check.wrong_kernels import with_wrong_kernel, wrong
from tests.runtime.compiler import needs_compiler
from tests.runtime.small_training import batch, net, run_until_settled, same_state, sgd, train_eagerly
from threadcast.capture.graph.captured import Captured
from threadcast.core.errors import WrongResult
from threadcast.runtime.doors import optimized_step
from threadcast.runtime.doors.optimize import OptimizedStep
from threadcast.runtime.tuner.tuning import Tuning

pytestmark = needs_compiler


@pytest.fixture
def verified(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every optimised step is compared with eager's."""
    monkeypatch.setenv("THREADCAST_ENGINE_VERIFY_EVERY", "1")


@pytest.fixture
def miscompiled(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Lets captured training steps have a kernel that gives wrong results as long as `wrong.on` is set."""
    capture = optimized_step.capture_step

    def exchange(kind: str) -> None:
        def captured(*args: object, **kwargs: object) -> Captured:
            return with_wrong_kernel(capture(*args, **kwargs), kind)[0]  # type: ignore[arg-type]

        monkeypatch.setattr(optimized_step, "capture_step", captured)

    yield exchange
    wrong.on = True


def until_a_plan_runs(step: OptimizedStep, call: Callable[[int], object]) -> None:
    """`call` with 0, 1, 2 and so on, until a plan has run two steps: of the first the caller gets eager's result."""
    ran = 0
    for number in range(100):
        call(number)
        tuning = step._optimized._last
        assert isinstance(tuning, Tuning), step.reports
        ran += tuning.ran is not None
        if ran == 2:
            return
    raise AssertionError(f"no plan ran: {step.reports}")


@pytest.mark.parametrize("kind", ["relu", "_fused_sgd_"])
def test_a_plan_with_a_wrong_kernel_is_never_kept(
    kind: str, miscompiled: Callable[[str], None], caplog: pytest.LogCaptureFixture,
    planned_at_once: None,
) -> None:  # fmt: skip
    miscompiled(kind)
    mine, eager = net(), net()
    my_optimizer, eager_optimizer = sgd(mine), sgd(eager)
    with closing(threadcast.optimize_training(mine, cross_entropy, my_optimizer)) as step:

        def check(seed: int) -> None:
            with caplog.at_level(logging.WARNING, "threadcast"):
                found = step(*batch(seed))
            torch.testing.assert_close(found, train_eagerly(eager, eager_optimizer, *batch(seed)))

        run_until_settled(step, check)
        assert [report.runs for report in step.reports] == ["default"]
        assert "results are not PyTorch's" in step.reports[0].reason
    same_state(mine, eager)
    assert "results are not PyTorch's" in caplog.text


def test_a_kernel_that_goes_wrong_later_is_found_by_a_verified_step(
    verified: None, miscompiled: Callable[[str], None], planned_at_once: None
) -> None:
    miscompiled("relu")
    wrong.on = False
    model = net()
    with closing(threadcast.optimize_training(model, cross_entropy, sgd(model))) as step:
        until_a_plan_runs(step, lambda seed: step(*batch(seed)))
        wrong.on = True
        with pytest.raises(WrongResult, match=r"operator 'relu' \(relu of \[4, 6, 8, 8\]\)"):
            step(*batch(4))
        wrong.on = False
        step(*batch(5))
