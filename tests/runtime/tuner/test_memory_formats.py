"""Whatever memory format a call is tried in, it gives what PyTorch gives in the format of the caller."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils import _pytree as pytree

import threadcast
from tests.runtime.conftest import Decided
from tests.runtime.small_training import train_eagerly
from tests.waiting import attempts
from threadcast.capture.graph.capture import capture_forward
from threadcast.capture.graph.captured import Captured
from threadcast.core import Machine
from threadcast.runtime.check.shadow import Shadowed, leaves
from threadcast.runtime.doors.optimize import OptimizedCall, OptimizedStep
from threadcast.runtime.plans.model_format import ModelFormat, with_images_channels_last
from threadcast.runtime.plans.plan_store import PlanStore
from threadcast.runtime.plans.variant import MemoryFormat
from threadcast.runtime.tuner import candidates
from threadcast.runtime.tuner.candidate import CandidateId, Kind
from threadcast.runtime.tuner.report import Report
from threadcast.runtime.tuner.tuning import Tuning


def run_until_learned(step: OptimizedCall | OptimizedStep, call: Callable[[int], object]) -> None:
    """`call` with 0, 1, 2 and so on until nothing is left to learn, 10 times at least."""
    for number in attempts():
        if number >= 10 and not step.learning:
            return
        call(number)


CHANGES: dict[str, Callable[[Tensor], Tensor]] = {
    "dropout": lambda y: nn.functional.dropout(y, 0.3),
    "randn_like": lambda y: y + 0.1 * torch.randn_like(y),
    "is_contiguous": lambda y: y * (2 if y.is_contiguous() else 3),
}


class Images(nn.Module):
    """Convolutions with an operator between them whose results depend on the order of numbers in memory."""

    def __init__(self, change: str) -> None:
        super().__init__()
        self.change = change
        self.first, self.second = nn.Conv2d(3, 6, 3, padding=1), nn.Conv2d(6, 6, 3, padding=1)
        self.out = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.out(self.second(CHANGES[self.change](self.first(x).relu())).mean((2, 3)))
        return result


class LatestWins(Decided):
    """What is compared last wins."""

    def wins(self, new: CandidateId) -> bool:
        return True


@pytest.fixture(autouse=True)
def latest_wins(planned_at_once: None, one_thread: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(candidates, "Tournament", LatestWins)


@pytest.fixture(params=[Kind.PLAN, Kind.EAGER], ids=str)
def channels_last_wins(request: pytest.FixtureRequest, latest_wins: None, monkeypatch: pytest.MonkeyPatch) -> str:
    """What runs in channels last wins: a plan, or eager PyTorch."""

    class ChannelsLastWins(Decided):
        def wins(self, new: CandidateId) -> bool:
            given = new.memory_format if new.variant is None else new.variant.memory_format
            return new.kind is request.param and given is MemoryFormat.CHANNELS_LAST

    formats = MemoryFormat.AS_GIVEN, MemoryFormat.CHANNELS_LAST
    monkeypatch.setattr(ModelFormat, "worth_trying", lambda *_: formats)
    monkeypatch.setattr(candidates, "Tournament", ChannelsLastWins)
    return f"{request.param.value}, channels last"


def train(change: str) -> Report:
    """The report of optimised training until it is settled, of which each step did what eager PyTorch does."""
    torch.manual_seed(0)
    mine, eager = Images(change), Images(change)
    my_optimizer, eager_optimizer = (torch.optim.SGD(one.parameters(), lr=0.01) for one in (mine, eager))
    with closing(threadcast.optimize_training(mine, cross_entropy, my_optimizer, cores=1)) as step:

        def check(number: int) -> None:
            torch.manual_seed(number)
            x, y = torch.randn(4, 3, 8, 8), torch.randint(0, 4, (4,))
            eager.load_state_dict(mine.state_dict())
            start = torch.get_rng_state()
            found, after = step(x, y), torch.get_rng_state()
            torch.set_rng_state(start)
            torch.testing.assert_close(found, train_eagerly(eager, eager_optimizer, x, y), rtol=1e-5, atol=1e-6)
            assert torch.equal(torch.get_rng_state(), after)
            for one, other in zip(mine.parameters(), eager.parameters(), strict=True):
                torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)

        run_until_learned(step, check)
        for number in range(20):
            check(number)
        (report,) = step.reports
        return report


@pytest.mark.parametrize("change", ["dropout", "randn_like"])
def test_what_draws_random_numbers_runs_in_the_given_format_only(change: str) -> None:
    report = train(change)
    assert {name.removesuffix(", fused") for name in report.predicted_s} == {"as given"}
    assert report.runs == "plan"


def test_a_plan_of_a_model_that_reads_the_order_in_memory_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    report = train("is_contiguous")
    refused = "plan, channels last is not used: its results are not PyTorch's: parameter first.weight: differs"
    assert refused in caplog.text
    assert report.layout is MemoryFormat.AS_GIVEN


def test_eager_in_another_format_is_compared_with_eager_as_given(
    machine: Machine, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model_format, refused = ModelFormat(None), []

    def default(x: Tensor) -> Tensor:
        return x.sin() if model_format.current is MemoryFormat.AS_GIVEN else x.cos()

    def capture(memory_format: MemoryFormat) -> Captured:
        model_format.set(memory_format)
        return capture_forward(torch.sin, torch.ones(1, 2, 3, 4))

    def reference(x: Tensor) -> Tensor:
        with model_format.as_given():
            return default(x)

    made = Tuning(
        default, capture, model_format, tuple(MemoryFormat), machine, call="a call",
        plans=PlanStore(tmp_path, machine), fuse=False, checked=Shadowed(reference, reference, None, None, leaves),
    )  # fmt: skip
    with closing(made) as tuned:
        for number in attempts():
            x = torch.full((1, 2, 3, 4), number / 9)
            torch.testing.assert_close(tuned(x), x.sin())
            refused = [line for line in caplog.messages if "channels last is not used" in line]
            if not tuned.learning:
                break
        assert (tuned.report.runs, len(refused)) == ("plan", 1)


class Cleaning(nn.Module):
    """Writes to its argument before a convolution, or after it, or to another argument with the same memory."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self.where = where
        self.convolve, self.out = nn.Conv2d(3, 6, 3, padding=1), nn.Linear(6, 4)

    def forward(self, x: Tensor, flat: Tensor | None = None) -> Tensor:
        written = x if flat is None else flat
        if self.where == "before":
            written.nan_to_num_()
        y = self.convolve(x).relu()
        if self.where == "after":
            written[0].clamp_(-1)
        result: Tensor = self.out(y.mean((2, 3)))
        return result


LATE = 10_000
"""The number from which on images need to be cleaned."""


def images(number: int) -> Tensor:
    x = torch.rand(4, 3, 8, 8, generator=torch.Generator().manual_seed(number))
    if number >= LATE:
        x[:, 0, number % 8] = -2.0
        x[:, 1, number % 8] = torch.nan
    return x


@pytest.mark.parametrize(
    ("where", "flat", "trains"), [("before", True, False), ("after", False, False), ("before", False, True)]
)
@pytest.mark.usefixtures("channels_last_wins")
def test_a_call_writes_to_the_callers_argument(where: str, flat: bool, trains: bool) -> None:
    torch.manual_seed(0)
    model = Cleaning(where).train(trains)
    optimizer, target = torch.optim.SGD(model.parameters(), lr=0.01), torch.zeros(4, dtype=torch.int64)
    made: Any = (
        threadcast.optimize_training(model, cross_entropy, optimizer, cores=1) if trains
        else threadcast.optimize(model, cores=1, backends=False)
    )  # fmt: skip
    with closing(made) as call, torch.set_grad_enabled(trains):

        def check(number: int) -> None:
            mine, eager = images(number), images(number)
            if trains:
                call(mine, target)
                assert mine.isfinite().all()
                return
            found = call(mine, mine.view(-1)) if flat else call(mine)
            wanted = model(eager, eager.view(-1)) if flat else model(eager)
            torch.testing.assert_close(found, wanted, equal_nan=True)
            torch.testing.assert_close(mine, eager, rtol=0.0, atol=0.0, equal_nan=True)

        run_until_learned(call, check)
        for number in range(LATE, LATE + 10):
            check(number)
        assert trains or set(call.reports[0].predicted_s) <= {"as given", "as given, fused"}


class Found(NamedTuple):
    """A result of several tensors."""

    maps: Tensor
    pooled: dict[str, Any]


class Returning(nn.Module):
    """Returns what `results` makes of an image, of what a convolution makes of it, and of that module."""

    def __init__(self, results: Callable[[Tensor, Tensor, Any], Any]) -> None:
        super().__init__()
        self.convolve, self.results = nn.Conv2d(3, 6, 3, padding=1), results

    def forward(self, x: Tensor) -> Any:
        return self.results(x, self.convolve(x).relu(), self)


def called(results: Callable[[Tensor, Tensor, Any], Any]) -> Report:
    """The report of optimised calls, whose results have eager's strides, and share memory as eager's do."""
    torch.manual_seed(0)
    model = Returning(results).eval()
    eager = copy.deepcopy(model)
    with closing(threadcast.optimize(model, cores=1, backends=False)) as call, torch.no_grad():

        def check(number: int, *, memory: bool = False) -> None:
            mine, given = images(number), images(number)
            found, wanted = call(mine), eager(given)
            torch.testing.assert_close(found, wanted)
            assert strides(found) == strides(wanted)
            if memory:
                assert shared(found, mine, *model.parameters()) == shared(wanted, given, *eager.parameters())

        run_until_learned(call, check)
        for number in range(10):
            check(number, memory=True)
        (report,) = call.reports
        return report


def strides(results: Any) -> Any:
    return pytree.tree_map_only(Tensor, lambda tensor: tensor.stride(), results)


def shared(*tensors: Any) -> list[Any]:
    """For each tensor the first one with its memory, and the first one that is the same."""
    leaves = [leaf for leaf in pytree.tree_leaves(tensors) if isinstance(leaf, Tensor)]
    memory, objects = [leaf.untyped_storage()._cdata for leaf in leaves], list(map(id, leaves))
    return [*map(memory.index, memory), *map(objects.index, objects)]


@pytest.mark.parametrize(
    ("results", "wins"),
    [
        (lambda x, y, of: y, True),
        (lambda x, y, of: [y, y, y.mean((2, 3)), of.convolve.bias], True),
        (
            lambda x, y, of: Found(y, {"mean": y.mean((2, 3), keepdim=True), "one": y[:, :1] + 1, "none": None}),
            True,
        ),
        (lambda x, y, of: (y[:, :2], (y + 1).transpose(2, 3), (y + 2).flatten(2)), True),
        (lambda x, y, of: (y, y.permute(0, 2, 3, 1).reshape(len(y), -1)), True),  # copied in the given format only
        (lambda x, y, of: (y[:, :, 0, 0].expand(5, 4, 6), (y + 1)[:, :, None, 0].expand(-1, -1, 2, -1)), True),
        (lambda x, y, of: (y, y[:, :2], y.flatten(1), y.flatten(2)), True),
        # what shares memory with a result in one format only does not run in channels last
        (lambda x, y, of: (y, x), False),
        (lambda x, y, of: (y, x[:, :, 0, 0]), False),
        (lambda x, y, of: (y, of.convolve.weight.detach()), False),
        (lambda x, y, of: (y, of.convolve.weight.flatten(1)), False),
    ],
)
def test_results_in_channels_last_have_the_strides_and_share_the_memory_that_eager_pytorchs_do(
    results: Callable[[Tensor, Tensor, Any], Any], wins: bool, channels_last_wins: str
) -> None:
    report = called(results)
    assert (channels_last_wins in (report.runs, f"{report.runs}, {report.layout}")) == wins
    assert wins or report.layout is not MemoryFormat.CHANNELS_LAST


def test_arguments_that_are_no_images_stay_the_callers_own_in_channels_last() -> None:
    images, others = torch.ones(2, 3, 4, 4), [torch.ones(3, 4).t(), torch.ones(2, 3, 4, 4, dtype=torch.int64).mT]
    with_images = with_images_channels_last((images, others))
    assert with_images[0].is_contiguous(memory_format=torch.channels_last)
    assert [one is other for one, other in zip(with_images[1], others, strict=True)] == [True, True]


def test_what_runs_as_before_runs_in_the_given_format() -> None:
    found = []

    class Reading(nn.Conv2d):
        def forward(self, x: Tensor) -> Tensor:
            found.append(self.weight.is_contiguous())
            return super().forward(x)

    with closing(threadcast.optimize(Reading(3, 6, 3), cores=1, backends=False)) as call:
        call._optimized._format.set(MemoryFormat.CHANNELS_LAST)
        with pytest.warns(UserWarning, match="requires a gradient"):
            call(torch.ones(2, 3, 8, 8, requires_grad=True))
    assert found == [True]


def classifier() -> nn.Sequential:
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 6, 3, padding=1), nn.ReLU(), nn.Conv2d(6, 6, 3, padding=1), nn.Flatten(), nn.Linear(384, 4)
    return nn.Sequential(*layers).eval()


@pytest.mark.parametrize("gradients", [False, True], ids=["share their memory", "have gradients"])
def test_weights_that_others_use_stay_in_the_given_format(gradients: bool) -> None:
    """Another optimizer may train them, or the caller write to them."""
    model = classifier()
    if gradients:
        model(images(0)).sum().backward()
    kept = {} if gradients else model.state_dict()
    with closing(threadcast.optimize(model, cores=1, backends=False)) as call, torch.no_grad():

        def check(number: int) -> None:
            for weight in kept.values():
                weight.mul_(0.99)
            torch.testing.assert_close(call(images(number)), model(images(number)))
            assert gradients or shared(kept["0.weight"], model[0].weight)[1] == 0

        run_until_learned(call, check)
        assert set(call.reports[0].predicted_s) <= {"as given", "as given, fused"}


@pytest.mark.parametrize("aside", [False, True], ids=["another kind of call", "a call with a gradient"])
def test_weights_that_share_their_memory_after_learning_keep_it(
    aside: bool, channels_last_wins: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("THREADCAST_ENGINE_VERIFY_EVERY", "0")
    model = classifier()
    with closing(threadcast.optimize(model, cores=1, backends=False)) as call:

        def check(number: int) -> None:
            torch.testing.assert_close(call(images(number)), model(images(number)).detach())

        def current() -> str:
            (report,) = call.reports
            return report.runs if report.runs.endswith("last") else f"{report.runs}, {report.layout}"

        run_until_learned(call, check)
        assert current() == channels_last_wins
        kept = model.state_dict()
        for number in range(10):
            check(number)
        assert current() == channels_last_wins
        if aside:
            with pytest.warns(UserWarning, match="requires a gradient"):
                call(images(0).requires_grad_())
        for number in range(20):
            found = call(images(number)[:2])
            torch.testing.assert_close(found, model(images(number)[:2]).detach())
        kept["0.weight"].mul_(2)
        check(0)
        run_until_learned(call, check)
        assert shared(kept["0.weight"], model[0].weight)[1] == 0
        assert all(set(report.predicted_s) <= {"as given", "as given, fused"} for report in call.reports)


def test_a_convolution_that_grows_by_data_computes_with_its_new_weight() -> None:
    model = nn.Conv2d(3, 6, 3).eval()
    with closing(threadcast.optimize(model, cores=1, backends=False)) as call, torch.no_grad():
        for number in range(20):
            call(images(number))
        call._optimized._format.set(MemoryFormat.CHANNELS_LAST)
        grown = torch.cat([model.weight, torch.ones(6, 2, 3, 3)], 1)
        model.weight.data = grown.clone()
        x = torch.randn(4, 5, 8, 8)
        torch.testing.assert_close(call(x), nn.functional.conv2d(x, grown, model.bias))


@pytest.mark.parametrize("optimizer", ["SGD", "Adam"])
@pytest.mark.parametrize(
    "options",
    [{}, {"clip_grad_norm": 1.0}, {"scaler": torch.amp.GradScaler("cpu", enabled=False)}],
    ids=["whole", "clipped", "apart"],
)
def test_models_whose_weights_nobody_shares_are_tried_in_channels_last(optimizer: str, options: dict[str, Any]) -> None:
    model = classifier().train()
    average = copy.deepcopy(model)
    settings = {"momentum": 0.9} if optimizer == "SGD" else {}
    made = getattr(torch.optim, optimizer)(model.parameters(), lr=0.01, **settings)
    with closing(threadcast.optimize_training(model, cross_entropy, made, cores=1, **options)) as step:

        def check(number: int) -> None:
            step(images(number), torch.zeros(4, dtype=torch.int64))
            with torch.no_grad():
                for one, other in zip(average.parameters(), model.parameters(), strict=True):
                    one.lerp_(other, 0.1)

        run_until_learned(step, check)
        for number in range(20):
            check(number)
        assert "channels last" in step.reports[0].predicted_s
    model.eval()
    with closing(threadcast.optimize(model, cores=1, backends=False)) as call, torch.no_grad():
        run_until_learned(call, lambda number: call(images(number)))
        for number in range(20):
            torch.testing.assert_close(call(images(number)), model(images(number)))
        assert "channels last" in call.reports[0].predicted_s
