"""The whole-model backends that are installed, each at its best setting, as contenders for inference."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import logging
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

from torch import nn

from threadcast.core.errors import CaptureError
from threadcast.scheduler.runtime.backends.frozen import FlatModule, TensorCall
from threadcast.scheduler.runtime.tuning import Contender

NEEDED = {"onnxruntime": ("onnx", "onnxscript", "onnxruntime"), "openvino": ("onnx", "onnxscript", "openvino")}
"""Libraries that a backend needs; the extra `backends` brings all of them."""

TURNS, TURN_S = 3, 0.1
"""How often each of a backend's settings has its turn when they are compared with each other, and for how long."""

_logger = logging.getLogger("threadcast")


def installed() -> str:
    """The backends that are installed, with their versions."""
    found = [name for name, needed in NEEDED.items() if all(importlib.util.find_spec(library) for library in needed)]
    return " ".join(f"{name} {importlib.metadata.version(name)}" for name in found)


def contenders(module: nn.Module, arguments: tuple[tuple[Any, ...], dict[str, Any]], cores: int) -> Iterator[Contender]:
    """Backends for `module` on such arguments, made one by one; those that cannot serve are left out, with a message.

    They take its parameters and buffers as constants: a contender `holds` until one of them is changed in a way that
    torch notices (`.data` and NumPy views it does not). A module in training mode has none.
    """
    if any(part.training for part in module.modules()):
        return
    try:
        flat = FlatModule(module, arguments)
        holds = _unchanged(module)
    except (CaptureError, RuntimeError) as error:
        _logger.info("no backends: %s", error)
        return
    for name, make in (("onnxruntime", _onnx_runtime), ("openvino", _openvino), ("torch.compile", _compiled)):
        if all(importlib.util.find_spec(library) for library in NEEDED.get(name, ())):
            try:
                setting, run = _fastest(flat, make(flat, cores))
                yield Contender(f"{name}{setting and ', '}{setting}", flat.call(run), holds)
            except Exception as error:  # noqa: BLE001 - whatever stops a foreign library, the others and the plan remain
                _logger.info("%s does not run this model: %s", name, str(error).splitlines()[:1])


def _unchanged(module: nn.Module) -> Callable[[], bool]:
    """Whether parameters and buffers still have the values that they have now; RuntimeError where torch cannot tell."""
    tensors = [*module.parameters(), *module.buffers()]
    before = [tensor._version for tensor in tensors]
    return lambda: [tensor._version for tensor in tensors] == before


def _fastest(flat: FlatModule, settings: Iterator[tuple[str, TensorCall]]) -> tuple[str, TensorCall]:
    """The setting that took least, of turns of several calls each: a busy moment then meets all of them."""
    inputs = flat.tensors(flat.example)
    made = list(settings)
    taken: list[list[float]] = [[] for _ in made]
    for _ in range(TURNS):
        for (_, run), own in zip(made, taken, strict=True):
            run(inputs)  # finds its threads asleep and its caches cold
            began_s = now_s = time.perf_counter()
            while now_s - began_s < TURN_S:
                run(inputs)
                before_s, now_s = now_s, time.perf_counter()
                own.append(now_s - before_s)
    _, best = min((median(own[len(own) // TURNS :]), i) for i, own in enumerate(taken))  # the first turn warms up
    return made[best]


def _onnx_runtime(flat: FlatModule, cores: int) -> Iterator[tuple[str, TensorCall]]:
    from threadcast.scheduler.runtime.backends.onnx_file import write_onnx
    from threadcast.scheduler.runtime.backends.onnx_runtime import sessions

    with tempfile.TemporaryDirectory(prefix="threadcast-") as folder:
        write_onnx(flat, Path(folder, "model.onnx"))
        yield from sessions(Path(folder, "model.onnx"), cores)


def _openvino(flat: FlatModule, cores: int) -> Iterator[tuple[str, TensorCall]]:
    from threadcast.scheduler.runtime.backends.onnx_file import write_onnx
    from threadcast.scheduler.runtime.backends.open_vino import requests

    with tempfile.TemporaryDirectory(prefix="threadcast-") as folder:
        write_onnx(flat, Path(folder, "model.onnx"))
        yield from requests(Path(folder, "model.onnx"), cores)


def _compiled(flat: FlatModule, cores: int) -> Iterator[tuple[str, TensorCall]]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Inductor's modules warn of each other when they are imported
        from threadcast.scheduler.runtime.backends.compiled import compiled_call

        call = compiled_call(flat)
    yield "", call
