"""Backends run programs in bfloat16, whose results are as near to PyTorch's as bfloat16 allows."""

from __future__ import annotations

import math
import tempfile
import warnings
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import threadcast
from tests.runtime.backends.searches import found_by, search_for
from tests.runtime.backends.test_search_worker import Listening
from tests.runtime.compiler import needs_compiler
from tests.waiting import attempts
from threadcast.capture.graph.capture import capture_forward
from threadcast.core.errors import CaptureError
from threadcast.runtime.backends import search_worker
from threadcast.runtime.backends.exported import write_onnx
from threadcast.runtime.backends.frozen import ROUGH, FlatModule
from threadcast.runtime.backends.onnx_libraries import requests, sessions, write_optimised
from threadcast.runtime.backends.program_file import ReadProgram, program_file, read_program
from threadcast.runtime.backends.search_worker import Options, Search
from threadcast.runtime.backends.ways import IN_BFLOAT16
from threadcast.runtime.backends.written_out import in_float32
from threadcast.runtime.doors import call_in_types, optimized_call
from threadcast.runtime.doors.bfloat16_speed import Bfloat16Speed
from threadcast.runtime.doors.in_bfloat16 import InBfloat16
from threadcast.runtime.doors.type_choice import largest_difference
from threadcast.runtime.plans.backend_history import BackendHistory
from threadcast.runtime.tuner.contender import Contender, backend
from threadcast.runtime.tuner.tuning import Tuning

pytestmark = pytest.mark.usefixtures("folder")


class Classifier(nn.Module):
    """Convolution, norm, attention weights and a product, whose result autocast leaves in bfloat16."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.convolution, self.norm = nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16)
        self.mix, self.last = nn.Linear(16, 16), nn.Linear(16, 5)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        rows = self.norm(self.convolution(x)).relu().flatten(2).transpose(1, 2)
        shares = torch.softmax(self.mix(rows) @ rows.transpose(1, 2), -1)
        return self.last(shares @ rows), shares.float().sum(-1)


X = torch.randn(2, 3, 6, 6, generator=torch.Generator().manual_seed(0))


def half() -> nn.Module:
    return Classifier().eval().bfloat16()


def under_autocast() -> nn.Module:
    return InBfloat16(Classifier().eval())


MODULES: list[tuple[Callable[[], nn.Module], torch.dtype]] = [(half, torch.bfloat16), (under_autocast, torch.float32)]


def read(module: nn.Module, x: Tensor) -> ReadProgram:
    """The captured program of a module, as a search's process reads it."""
    with tempfile.TemporaryFile() as file:
        for offset, part in program_file(capture_forward(module, x)).parts():
            file.seek(offset)
            file.write(part)
        file.flush()
        return read_program(file.fileno())


@pytest.mark.parametrize(("make", "dtype"), MODULES)
def test_a_program_in_float32_computes_what_one_in_bfloat16_does(
    make: Callable[[], nn.Module], dtype: torch.dtype
) -> None:
    program = read(make(), X.to(dtype))
    wide = in_float32(program)
    assert "bfloat16" in types_of(program)
    assert "bfloat16" not in types_of(wide)
    with torch.no_grad():
        for found, wanted in zip(wide.module(*wide.example), program.module(*program.example), strict=True):
            assert found.dtype is torch.float32
            assert float((found - wanted.float()).abs().max()) <= ROUGH * float(wanted.abs().max())


def types_of(program: ReadProgram) -> str:
    """The types of a program's tensors, and the code that names others."""
    return f"{[one.dtype for one in (*program.module.buffers(), *program.example)]} {program.module.code}"


def test_only_settings_that_say_so_round_to_bfloat16(tmp_path: Path) -> None:
    """OpenVINO's own choice is bfloat16 on processors that have it."""
    torch.manual_seed(0)
    module, x = nn.Sequential(nn.Conv2d(3, 32, 3), nn.Flatten(), nn.Linear(6272, 64)).eval(), torch.randn(2, 3, 16, 16)
    with torch.no_grad():
        wanted = module(x)
        write_onnx(torch.export.export(module, (x,)), tmp_path / "model.onnx")
    calls = requests(tmp_path / "model.onnx", 1) | sessions(write_optimised(tmp_path / "model.onnx"), 1)
    for setting, make in calls.items():
        share = float((make()([x])[0] - wanted).abs().max() / wanted.abs().max())
        assert share <= (ROUGH if setting.endswith(IN_BFLOAT16) else 1e-5), setting


@pytest.mark.system
@needs_compiler
@pytest.mark.parametrize("backend", ["openvino", "torch.compile"])
@pytest.mark.parametrize(("make", "dtype"), MODULES)
def test_backends_answer_as_the_module_in_its_types(
    make: Callable[[], nn.Module], dtype: torch.dtype, backend: str
) -> None:
    module, x = make(), X.to(dtype)
    search = search_for(module, ((x,), {}), among=[backend], close=1e6, rough=True)
    (contender,) = found_by(search)
    assert contender.name.startswith(backend)
    assert contender.name.endswith("bfloat16") == (backend == "openvino")
    other = (x * 0.5 + 0.1).to(dtype)
    with torch.no_grad():
        wanted = module(other)
    found = contender.run((other,), {})
    assert [one.dtype for one in found] == [one.dtype for one in wanted]
    for got, one in zip(found, wanted, strict=True):
        assert float((got.float() - one.float()).abs().max()) <= ROUGH * float(one.abs().max())


def test_onnx_runtime_is_not_tried() -> None:
    search = search_for(half(), ((X.bfloat16(),), {}), among=["onnxruntime"], rough=True)
    with closing(search):
        assert not search._options.among


@pytest.mark.system
@needs_compiler
@pytest.mark.parametrize("backend", ["openvino", "torch.compile"])
def test_no_backend_is_rough_where_nobody_asked_for_it(backend: str) -> None:
    """Weights that are kept in bfloat16 do not make a program in float32 rough."""
    model = Stored().eval()
    found = found_by(search_for(model, ((X,), {}), among=[backend], close=1e6))
    with torch.no_grad():
        wanted = model(X)
    for contender in found:
        assert "bfloat16" not in contender.name
        torch.testing.assert_close(contender.run((X,), {}), wanted, rtol=1e-3, atol=1e-4)


class Stored(nn.Module):
    """Computes in float32 with weights that are kept in bfloat16."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.weight: Tensor
        self.register_buffer("weight", torch.randn(6, 6).bfloat16())

    def forward(self, x: Tensor) -> Tensor:
        return torch.nn.functional.linear(x, self.weight.float())


def test_weights_that_do_not_fit_in_float32_are_not_widened(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setattr(search_worker, "free_bytes", lambda: 1000)
    caller = Listening()
    options = Options(["openvino"], 1, "products", 1e6, None, rough=True)
    Search(read(half(), X.bfloat16()), options, folder, caller).run(BackendHistory(None))
    (message,) = caller.messages
    assert "in float32 its weights take" in message["reason"]


def test_what_was_found_in_bfloat16_is_stored_apart(folder: Path) -> None:
    for rough, wanted in ((True, "backends-bfloat16"), (False, "backends")):
        options = Options([], 1, "products", 1e6, str(folder / "backends"), rough)
        search = Search(read(half(), X.bfloat16()), options, folder, Listening())
        assert search.history == folder / wanted


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ([-math.inf, 1.0, 2.0], [-math.inf, 1.0, 2.2]),
        ([math.inf, 1.0], [5.0, 1.0]),
        ([math.nan, 1.0], [0.0, 1.0]),
        ([-1e30, 1.0, 2.0], [-1e30, 1.0, 2.2]),
    ],
)
@pytest.mark.parametrize("rough", [False, True])
def test_numbers_beside_infinite_ones_are_compared(wanted: list[float], found: list[float], rough: bool) -> None:
    right, wrong = torch.tensor(wanted), torch.tensor(found)
    flat = FlatModule(nn.Identity(), ((torch.zeros(1),), {}), result=right, rough=rough)
    flat.check(lambda _: [right.clone()])
    with pytest.raises(CaptureError, match="differ"):
        flat.check(lambda _: [wrong])


@pytest.mark.parametrize("right", [torch.tensor([50_000, 3]), torch.tensor([True, False])])
def test_integers_have_to_be_equal(right: Tensor) -> None:
    flat = FlatModule(nn.Identity(), ((torch.zeros(1),), {}), result=right)
    flat.check(lambda _: [right.clone()])
    with pytest.raises(CaptureError, match="differ"):
        flat.check(lambda _: [right.logical_xor(torch.ones(1)) if right.dtype is torch.bool else right + 1])


class Fixed:
    """A search for backends that has found one, whose results are `factor` times the module's."""

    factor, working, has_turn = 1.01, True, True

    def __init__(self, module: nn.Module, arguments: Any, captured: Any, cores: int, *, rough: bool, **_: Any) -> None:
        self._module, self._rough = module, rough
        self.over = self.broken_off = False

    def start(self) -> None:
        """Nothing to start."""

    def poll(self, *, unlimited: bool = False) -> Contender | None:
        """The backend, of which there is one in bfloat16 only."""
        self.over = True
        return Contender(backend("fixed"), self._run) if self._rough else None

    def _run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        with torch.no_grad():
            return tuple(one * self.factor for one in self._module.module(*args, **kwargs))

    def wait(self, _: float) -> float:
        """Nothing to wait for."""
        return 1.0

    def rest(self, _: bool) -> None:
        """Nothing that could rest."""

    def close(self) -> None:
        """No more."""
        self.over = True


@pytest.fixture
def fixed(monkeypatch: pytest.MonkeyPatch) -> type[Fixed]:
    """The only backend in any search; CPUs are fast in bfloat16, and no call is verified."""
    monkeypatch.setattr(optimized_call, "BackendSearch", Fixed)
    monkeypatch.setattr(call_in_types, "bfloat16_speed", lambda: Bfloat16Speed(4.0, 2.0))
    monkeypatch.setenv("THREADCAST_ENGINE_VERIFY_EVERY", "0")
    return Fixed


class Shares(nn.Module):
    """A layer whose results are a tuple."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(64, 64)

    def forward(self, x: Tensor) -> tuple[Tensor]:
        return (torch.softmax(self.layer(x), -1),)


def until(call: Any, x: Tensor, wanted: Tensor, done: Callable[[], bool]) -> None:
    """Call until it is done; no result is farther from the wanted one than is allowed."""
    for _ in attempts():
        if done():
            return
        (found,) = call(x)
        assert largest_difference(wanted, found)[0] <= 0.05
        call._choice.offer()


@pytest.mark.usefixtures("planned_at_once")
@pytest.mark.parametrize("factor", [1.01, 1.2])
def test_no_result_of_a_backend_is_returned_that_differs_too_much(
    factor: float, fixed: type[Fixed], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fixed, "factor", factor)
    model, x = Shares().eval(), torch.randn(16, 64)
    with torch.no_grad():
        (wanted,) = model(x)
    with (
        warnings.catch_warnings(),
        closing(threadcast.optimize(model, dtypes=("float32", "bfloat16"))) as call,
    ):
        warnings.filterwarnings("ignore", "threadcast leaves backends in bfloat16")

        def tried() -> bool:
            reports = [] if call._half is None else call._half.reports  # type: ignore[attr-defined]
            return call._backends_left or any("fixed" in report.verdicts for report in reports)  # type: ignore[attr-defined]

        until(call, x, wanted, tried)
        assert call._backends_left == (factor > 1.05)  # type: ignore[attr-defined]
        for _ in range(200):
            assert largest_difference(wanted, call(x)[0])[0] <= 0.05
        (report,) = call.types  # type: ignore[attr-defined]
        assert report.largest_difference is not None
        assert report.largest_difference <= 0.05


@pytest.mark.usefixtures("planned_at_once")
def test_a_search_in_bfloat16_ends_where_float32_is_kept(fixed: type[Fixed], monkeypatch: pytest.MonkeyPatch) -> None:
    def poll(search: Fixed, *, unlimited: bool = False) -> None:
        """Nothing in either type; the search in float32 ends, as one is at work at a time."""
        search.over = not search._rough

    monkeypatch.setattr(fixed, "poll", poll)
    model, x = Shares().eval(), torch.randn(16, 64)
    with torch.no_grad():
        (wanted,) = model(x)
    with closing(threadcast.optimize(model, dtypes=("float32", "bfloat16"))) as call:

        def searching() -> bool:
            last = None if call._half is None else call._half._optimized._last  # type: ignore[attr-defined]
            return isinstance(last, Tuning) and last._backends.works

        until(call, x, wanted, searching)
        tuning = call._half._optimized._last  # type: ignore[attr-defined]
        search = tuning._backends._search
        call._choice.report.tolerance, call._choice.checks = 0.0, 1  # type: ignore[attr-defined]
        call(x)
        assert call._choice.report.runs == "float32"  # type: ignore[attr-defined]
        assert search.over
        assert not tuning._backends.works


@pytest.mark.system
@needs_compiler
@pytest.mark.usefixtures("planned_at_once")
def test_backends_are_found_for_calls_in_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_in_types, "bfloat16_speed", lambda: Bfloat16Speed(4.0, 2.0))
    monkeypatch.setenv("THREADCAST_ENGINE_VERIFY_EVERY", "0")
    model = Classifier().eval()
    with torch.no_grad():
        wanted = model(X)
    with closing(threadcast.optimize(model, dtypes=("float32", "bfloat16"))) as call:
        half_call = call._in_half()  # type: ignore[attr-defined]
        half_call.learn(X, at_most_s=200)
        (tuning,) = half_call._optimized._table.tunings
        assert tuning._backends.over
        assert "the module is in training mode" not in str(call)
        found = half_call(X)
    for got, one in zip(found, wanted, strict=True):
        assert float((got.float() - one).abs().max()) <= 0.05 * float(one.abs().max())
