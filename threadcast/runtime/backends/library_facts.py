"""How a library's operators differ from PyTorch's on this machine, as the library itself answers.

What is known of another library holds for the version and the processor where it was seen: of NaN, OpenVINO's `>`
says True on processors with AVX-512, and False elsewhere. So a library is asked `operator_questions` once for its
version and this processor, and its answers are stored. ONNX Runtime and OpenVINO answer in a process of their own.
Inductor, which takes seconds to compile so much code, is asked where it has code of its own, not PyTorch's.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from threadcast.core.atomic_file import replacing
from threadcast.runtime.backends import operator_questions
from threadcast.runtime.backends.compiled import compiled_here
from threadcast.runtime.backends.exported import write_onnx
from threadcast.runtime.backends.operator_questions import (
    COMPILED,
    KINDS,
    OPERATORS,
    QUESTIONS,
    TURNS,
    Asked,
    Kind,
    Question,
    differences,
    given,
)
from threadcast.runtime.backends.ways import NEEDED

SCHEMA = "threadcast.library/1"
MOST_S = 60.0
"""Seconds for which questions are halved to find those at which a library fails; of the versions that were tried none
does."""
_ANSWER_S = 120.0
"""Longest wait in seconds for answers, which take one where nothing else runs."""
_ENDED = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""Signals by which others end a process: a library that was asked then has not failed."""
_OF_PROCESSOR = "vendor_id", "cpu family", "model", "stepping", "flags", "CPU ", "Features"
_CHOOSE_CODE = "ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "ONEDNN_DEFAULT_FPMATH_MODE", "ATEN_CPU_CAPABILITY"
"""Settings by which libraries choose another code than the processor's best."""

_logger = logging.getLogger("threadcast")


@dataclass(frozen=True, slots=True)
class Facts:
    """The kinds of numbers of which a library's operators make others than PyTorch's, by operator.

    An operator that it was to be asked about and that is not among these differs in all.
    """

    found: Mapping[str, frozenset[str]]

    def differs(self, operator: str, *kinds: Kind) -> bool:
        """Return whether the operator differs at one of these kinds; False for those that nobody asks about."""
        return not self.found.get(operator, _ALL if operator in OPERATORS else _NONE).isdisjoint(kinds)


_ALL, _NONE = frozenset[str](KINDS), frozenset[str]()


class LibraryFacts:
    """The facts of libraries, stored in a folder, which need not exist.

    A library is a backend's name.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known: dict[str, Facts] = {}

    def stored(self, library: str) -> Facts | None:
        """Return what is known of a library in this version on this processor; None where it was not asked."""
        if library not in self._known:
            with suppress(OSError, ValueError, LookupError, TypeError, AttributeError):
                document = json.loads(self._path(library).read_text())
                if document["schema"] == SCHEMA and document["library"] == identity(library):
                    differs = {str(name): frozenset(kinds) for name, kinds in document["differs"].items()}
                    self._known[library] = Facts(differs)
        return self._known.get(library)

    def asked(self, library: str) -> Facts:
        """Return the same; ask the library where it is not known, and store its answers.

        Where none come, as because something ended its process, nothing is stored, and nothing is among the facts.
        """
        if (known := self.stored(library)) is not None:
            return known
        questions, found = COMPILED if library == "torch.compile" else QUESTIONS, defaultdict[str, set[str]](set)
        try:
            answered = _asked(library, questions)
        except (OSError, subprocess.SubprocessError) as error:
            _logger.warning("%s gives no answer about its operators: %s", library, error)
        else:
            for question in QUESTIONS:
                for name in question.operators:
                    found[name] |= answered.get(question, _NONE)
            self._store(library, found)
        self._known[library] = Facts({name: frozenset(kinds) for name, kinds in found.items()})
        return self._known[library]

    def _path(self, library: str) -> Path:
        return self._folder / f"{library}-{hashlib.sha256(identity(library).encode()).hexdigest()[:16]}.json"

    def _store(self, library: str, found: Mapping[str, set[str]]) -> None:
        differs = {name: sorted(kinds) for name, kinds in sorted(found.items())}
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with replacing(self._path(library)) as draft:
                draft.write_text(json.dumps({"schema": SCHEMA, "library": identity(library), "differs": differs}))
        except OSError as error:
            _logger.warning("what %s answered is not stored: %s", library, error)


def identity(library: str) -> str:
    """The library with the versions, the processor, the settings and the questions for which its answers hold."""
    needed = NEEDED.get(library, ())
    versions = [f"{name} {importlib.metadata.version(name)}" for name in ("torch", *needed)]
    settings = [f"{name}={os.environ[name]}" for name in _CHOOSE_CODE if name in os.environ]
    questions = hashlib.sha256(Path(str(operator_questions.__file__)).read_bytes()).hexdigest()
    return "\n".join([library, *versions, *settings, questions, *_processor()])


@lru_cache(maxsize=1)
def _processor() -> list[str]:
    """What Linux says of the first core, but for what changes: its frequency, and the like."""
    try:
        first = Path("/proc/cpuinfo").read_text(encoding="utf-8").split("\n\n")[0]
    except OSError:
        return [torch.backends.cpu.get_cpu_capability()]
    return [line for line in first.splitlines() if line.startswith(_OF_PROCESSOR)]


def _asked(library: str, questions: Sequence[Question]) -> Mapping[Question, frozenset[str]]:
    """The kinds of numbers at which the answers to each question differ, all where it has none."""
    end_s, found = time.monotonic() + MOST_S, dict.fromkeys(questions, _ALL)
    pending = [questions]
    while pending:
        together = pending.pop()
        try:
            found |= {one: frozenset(kinds) for one, kinds in _answered(library, together).items()}
        except Exception as error:
            if isinstance(error, subprocess.SubprocessError | OSError) and not _failed(error):
                raise
            if time.monotonic() > end_s:
                raise TimeoutError(f"too many of its answers fail, as with {error}") from error
            if len(together) > 1:
                pending += [together[: len(together) // 2], together[len(together) // 2 :]]
    return found


def _failed(error: Exception) -> bool:
    """Whether a library's process ended by itself."""
    return isinstance(error, subprocess.CalledProcessError) and -error.returncode not in _ENDED


def _answered(library: str, questions: Sequence[Question]) -> Mapping[Question, set[str]]:
    kinds: dict[Question, set[str]] = defaultdict(set)
    if library == "torch.compile":
        compiled = compiled_here(torch.export.export(Asked(questions), given(0)))
        for turn in TURNS:
            answers = iter(compiled(*given(turn)))
            for one in questions:
                kinds[one] |= differences(one, turn, answers)
        return kinds
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for name_of_file, content in _model(tuple(questions)).items():
            (folder / name_of_file).write_bytes(content)
        for turn in TURNS:
            np.savez(folder / f"given-{turn}.npz", *(one.numpy() for one in given(turn)))
        command = [sys.executable, "-P", "-m", "threadcast.runtime.backends.asked_library", library, name]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        subprocess.run(command, check=True, capture_output=True, timeout=_ANSWER_S, env=environment)
        for turn in TURNS:
            with np.load(folder / f"answers-{turn}.npz") as arrays:
                answers = map(torch.from_numpy, list(arrays.values()))
            for one in questions:
                kinds[one] |= differences(one, turn, answers)
    return kinds


@lru_cache(maxsize=1)
def _model(questions: tuple[Question, ...]) -> Mapping[str, bytes]:
    """The files of a model in ONNX with these questions, for both libraries that take one."""
    with tempfile.TemporaryDirectory() as folder:
        write_onnx(torch.export.export(Asked(questions), given(0)), Path(folder, "model.onnx"))
        return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


@lru_cache(maxsize=1)
def lost_after_products() -> frozenset[str]:
    """The operators at which oneDNN makes a number of a product's NaN, where Inductor has it compute both."""
    fused: Any = getattr(torch.ops.mkldnn, "_linear_pointwise", None)
    rows, matrix = operator_questions.ROWS, operator_questions.MATRIX.T.contiguous()
    lost = []
    for attribute, (scalars, algorithm, operators) in _IN_ONEDNN.items() if fused is not None else ():
        found = fused(rows, matrix, None, attribute, scalars, algorithm)
        if bool((torch.mm(rows, matrix.T).isnan() & ~found.isnan()).any()):
            lost += operators.split()
    return frozenset(lost)


_IN_ONEDNN: Mapping[str, tuple[list[float], str, str]] = {
    "relu": ([], "", "relu clamp_min"), "hardtanh": ([-1.0, 1.0], "", "hardtanh relu6 clamp clamp_min clamp_max"),
    "hardsigmoid": ([], "", "hardsigmoid"), "hardswish": ([], "", "hardswish"), "gelu": ([], "none", "gelu"),
    "swish": ([], "", "silu"), "leaky_relu": ([0.01], "", "leaky_relu"), "sigmoid": ([], "", "sigmoid"),
    "tanh": ([], "", "tanh"),
}  # fmt: skip
