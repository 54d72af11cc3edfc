"""Libraries are asked on this machine how their operators differ, once, and what gives no answer counts as unlike."""

from __future__ import annotations

import json
import math
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.runtime.backends.programs import passed_on
from tests.runtime.backends.recorded import AVX2, AVX512, FUSED, facts
from tests.runtime.backends.searches import found_by, search_for
from tests.runtime.compiler import needs_compiler
from threadcast.core.settings import Settings
from threadcast.runtime.backends import library_facts, operator_questions
from threadcast.runtime.backends.exported import write_onnx
from threadcast.runtime.backends.library_facts import Facts, LibraryFacts, identity, lost_after_products
from threadcast.runtime.backends.onnx_libraries import requests, sessions, write_optimised
from threadcast.runtime.backends.operator_questions import KINDS, OPERATORS, QUESTIONS, Question
from threadcast.runtime.backends.probes import Probes

ONNX = "onnxruntime", "openvino"


def here(library: str) -> Facts:
    """What the library answers on this machine."""
    return LibraryFacts(Settings.read()["engine.cache"] / "libraries").asked(library)


def run_by(library: str, module: nn.Module, given: Sequence[Tensor], folder: Path) -> Sequence[Tensor]:
    write_onnx(torch.export.export(module, tuple(given)), folder / "model.onnx")
    file = folder / "model.onnx"
    calls = sessions(write_optimised(file), 1) if library == "onnxruntime" else requests(file, 1)
    return next(iter(calls.values()))()(given)


class _Alone(nn.Module):
    """Each operator of one kind of number, as nothing but it is asked."""

    def forward(self, *given: Tensor) -> list[Tensor]:
        return [function(x) for x in given for function in ALONE.values()]


NUMBERS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
ALONE: dict[str, Callable[..., Tensor]] = {
    "gt": lambda x: x > 0.5, "le": lambda x: x <= 0.5, "relu": torch.relu, "exp": torch.exp, "sign": torch.sign,
    "maximum": lambda x: torch.maximum(x, torch.zeros(19)), "tanh": torch.tanh, "floor": torch.floor,
}  # fmt: skip


@pytest.mark.parametrize("library", ONNX)
def test_what_is_stored_of_an_operator_is_what_the_library_does_when_it_is_run_alone(
    library: str, tmp_path: Path
) -> None:
    asked = here(library)
    given = [torch.full((3, 19), number) for number in NUMBERS.values()]
    answers = zip(run_by(library, _Alone(), given, tmp_path), _Alone()(*given), strict=True)
    alone = [not bool(((found == wanted) | ((found != found) & (wanted != wanted))).all()) for found, wanted in answers]
    differing = iter(alone)
    for kind in NUMBERS:
        for name in ALONE:
            differs = next(differing)
            assert asked.differs(name, kind) >= differs, (name, kind)  # type: ignore[arg-type]
            assert kind != "nan" or asked.differs(name, "nan") == differs, name
    assert any(alone), "nothing is shown where nothing differs"


TYPES = "double precision", "rounding"
"""Questions about types, which OpenVINO leaves out whatever the numbers are."""


@pytest.mark.parametrize("library", ONNX)
def test_every_question_has_an_answer_from_the_installed_versions(library: str) -> None:
    asked = here(library)
    assert asked.found.keys() == OPERATORS
    assert not [name for name, kinds in asked.found.items() if kinds == set(KINDS) and name not in TYPES]
    assert asked.differs("argsort positions", "digits")


@needs_compiler
def test_inductor_is_asked_and_onednn_after_products() -> None:
    asked = here("torch.compile")
    assert not asked.differs("gt", "nan")
    assert asked.differs("rounding", "digits")
    assert not asked.differs("exp", "digits", "nan")
    weight = torch.eye(19)
    found = torch.ops.mkldnn._linear_pointwise(torch.full((17, 19), math.nan), weight, None, "relu", [], "")
    assert ("relu" in lost_after_products()) == (not found.isnan().all())


def _masked(z: Tensor) -> Tensor:
    m = z.masked_fill(z > 3, -math.inf)
    return torch.where(m - m.mean(-1, keepdim=True) > 0, z, -z)


def _chosen(z: Tensor) -> Tensor:
    return torch.where((z + 3).log() >= 0.5, 1, 2)


HEADS: dict[str, Callable[[Tensor], Any]] = {
    "a difference from an infinite mean": _masked,
    "a logarithm of what is negative": _chosen,
    "a root": lambda z: z.sqrt() > 1,
    "the other way round": lambda z: torch.where((z - 1).log() > 1, z, 0.0),
    "filled where it is more": lambda z: z.masked_fill(z.log() > 0, 0.0),
    "counted": lambda z: (z.log2() >= 2).sum(-1),
    "exponentials that are too large": lambda z: torch.where(z.exp() / z.exp().sum(-1, keepdim=True) > 0.5, 1, 2),
}


@pytest.mark.parametrize("name", HEADS)
def test_comparisons_that_say_true_of_nan_are_left_to_others(name: str) -> None:
    x = torch.rand(4, 8)
    probes = Probes(passed_on(HEADS[name], x), [None])
    assert "of which g" in str(probes.lost_by(AVX512["openvino"]))
    for backend in ("onnxruntime", "torch.compile"):
        reason = str(probes.lost_by(AVX2[backend], FUSED if backend == "torch.compile" else ()))
        assert "NaN" not in reason, backend


class _Net(nn.Module):
    def __init__(self, head: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 64),
        )  # fmt: skip
        self.head = head

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("head", [_masked, _chosen])
@pytest.mark.parametrize("processor", ["this", "with AVX-512"])
def test_a_network_with_such_a_head_answers_as_pytorch(
    head: Callable[[Tensor], Tensor], processor: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if processor != "this":
        monkeypatch.setenv("THREADCAST_ENGINE_CACHE", str(tmp_path))
        found = {name: set(kinds) for name, kinds in AVX512["openvino"].found.items()}
        LibraryFacts(tmp_path / "libraries")._store("openvino", found)
    module, x = _Net(head).eval(), torch.rand(4, 3, 48, 48)
    search = search_for(module, ((x,), {}), among=["openvino"], close=1e9)
    contenders = found_by(search)
    if processor != "this" or here("openvino").differs("gt", "nan"):
        assert not contenders
        assert "of which g" in search.left_out["openvino"]
    with torch.no_grad():
        for contender in contenders:
            torch.testing.assert_close(contender.run((x * 100,), {}), module(x * 100), rtol=1e-3, atol=1e-3)


def test_exponentials_of_what_is_bounded_are_not_too_large() -> None:
    x = torch.rand(4, 8)
    for function in (
        lambda z: (e := (z - z.amax(-1, keepdim=True)).exp()) / (e.sum(-1, keepdim=True) + 1) > 0.5,
        lambda z: (e := (-z.abs()).exp()) * e > 0.5,
        lambda z: z * (-0.5 * z.pow(2)).exp() > 0.5,
        lambda z: z * z.clamp(-5, 5).exp() > 0.5,
        lambda z: 1 / (1 + (-z).exp()) > 0.5,
    ):
        assert Probes(passed_on(function, x), [None]).lost_by(AVX512["openvino"]) is None


def test_operators_that_change_infinities_are_left_to_others() -> None:
    x = torch.rand(4, 8)

    def left_out(function: Callable[[Tensor], Tensor], **kinds: str) -> bool:
        return Probes(passed_on(function, x), [None]).lost_by(facts(**kinds)) is not None

    def masked(x: Tensor, value: float) -> Tensor:
        return x.masked_fill(x > 2, value)

    low, high = {"-inf": "amax"}, {"inf": "_softmax"}
    assert left_out(lambda x: masked(x, -math.inf).amax(1), **low)
    assert not left_out(lambda x: masked(x, -1e9).amax(1), **low)
    assert not left_out(lambda x: masked(x, -math.inf).softmax(1), **high)
    assert not left_out(lambda x: masked(x, -math.inf).softmax(1) + x.reciprocal().sigmoid(), **high)
    assert left_out(lambda x: masked(x, math.inf).softmax(1), **high)
    assert left_out(lambda x: (-masked(x, -math.inf)).softmax(1), **high)
    assert left_out(lambda x: x.reciprocal().softmax(1), **high)
    assert not left_out(lambda x: x.abs().log().softmax(1), **high)


def test_facts_of_another_version_or_processor_are_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def answered(library: str, questions: Sequence[Question]) -> dict[Question, set[str]]:
        asked.append(library)
        return {one: {"nan"} if len(asked) > 1 and one.names == "gt" else set() for one in questions}

    monkeypatch.setattr(library_facts, "_answered", answered)
    for processor, times in (("flags: avx2", 1), ("flags: avx2 avx512f", 2), ("flags: avx2", 2)):
        monkeypatch.setattr(library_facts, "_processor", lambda processor=processor: [processor])
        assert LibraryFacts(tmp_path).asked("openvino").differs("gt", "nan") == ("512" in processor)
        assert len(asked) == times
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    assert LibraryFacts(tmp_path).stored("openvino") is None
    monkeypatch.setattr(library_facts.importlib.metadata, "version", lambda _: "7")
    assert "openvino 7" in identity("openvino")


@pytest.mark.parametrize("content", ["", "{", "[]", '{"schema": "threadcast.library/1"}', '{"schema": "other/1"}'])
def test_a_file_that_cannot_be_read_is_no_fact(content: str, tmp_path: Path) -> None:
    found = LibraryFacts(tmp_path)
    found._path("openvino").write_text(content)
    assert found.stored("openvino") is None


def _library(folder: Path, monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    """Put a library in OpenVINO's place, in new processes."""
    (folder / "openvino").mkdir()
    (folder / "openvino" / "__init__.py").write_text(code)
    monkeypatch.setattr(sys, "path", [str(folder), *sys.path])


def test_a_library_that_crashes_counts_as_unlike_pytorch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _library(tmp_path, monkeypatch, "import os; os.abort()")
    monkeypatch.setattr(library_facts, "MOST_S", 0.0)
    monkeypatch.setattr(library_facts, "QUESTIONS", QUESTIONS[:2])
    asked = LibraryFacts(tmp_path / "facts").asked("openvino")
    assert not asked.found
    assert all(asked.differs(name, kind) for name in ("relu", "hardtanh", "gt") for kind in KINDS)
    assert not (tmp_path / "facts").exists()


def test_a_library_whose_process_is_killed_is_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _library(tmp_path, monkeypatch, f"import os; os.kill(os.getpid(), {int(signal.SIGKILL)})")
    monkeypatch.setattr(library_facts, "QUESTIONS", QUESTIONS[:2])
    asked = LibraryFacts(tmp_path / "facts")
    assert asked.asked("openvino").differs("relu", "nan")
    assert not (tmp_path / "facts").exists()
    monkeypatch.setattr(sys, "path", sys.path[1:])
    assert not LibraryFacts(tmp_path / "facts").asked("openvino").differs("relu", "digits")


def test_an_operator_that_a_library_cannot_run_differs_and_the_others_are_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(operator_questions._OF_TWO, "copysign", torch.copysign)  # type: ignore[arg-type]
    monkeypatch.setattr(library_facts, "QUESTIONS", (*QUESTIONS[:2], Question("two", "copysign")))
    asked = LibraryFacts(tmp_path).asked("onnxruntime")
    assert asked.found["copysign"] == set(KINDS)
    assert not asked.found["relu"]
    assert LibraryFacts(tmp_path).stored("onnxruntime") == asked


def test_where_nothing_can_be_stored_answers_count_and_no_part_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(library_facts, "_answered", lambda library, asked: {one: {"nan"} for one in asked})

    def full(*_: object) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(os, "fsync", full)
    assert LibraryFacts(tmp_path).asked("openvino").found["gt"] == {"nan"}
    assert list(tmp_path.iterdir()) == []
    assert "No space left on device" in caplog.text
    (tmp_path / "file").touch()
    assert LibraryFacts(tmp_path / "file" / "facts").asked("openvino").found["gt"] == {"nan"}


def test_stored_facts_are_json_by_operator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library_facts, "_answered", lambda library, asked: {one: {"nan"} for one in asked})
    LibraryFacts(tmp_path).asked("openvino")
    (path,) = tmp_path.iterdir()
    document = json.loads(path.read_text())
    assert document["library"] == identity("openvino")
    assert document["differs"]["gt"] == ["nan"]
