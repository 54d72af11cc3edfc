"""Makes contenders for inference from the whole-model backends that are installed."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from threadcast.core.errors import CaptureError, ExecutionError
from threadcast.runtime.backends.frozen import FlatModule
from threadcast.runtime.backends.generators import generators_restored
from threadcast.runtime.backends.screening import screened
from threadcast.runtime.backends.ways import ways
from threadcast.runtime.backends.weight_versions import WeightVersions
from threadcast.runtime.tuning.contender import Contender
from threadcast.runtime.tuning.contender_id import backend

BACKENDS = ("onnxruntime", "openvino", "torch.compile")

_logger = logging.getLogger("threadcast")


def contenders(
    module: nn.Module, arguments: tuple[tuple[Any, ...], dict[str, Any]], cores: int, *, among: Sequence[str] = BACKENDS
) -> Iterator[Contender]:
    """Yield the fastest backends for `module` and arguments of this kind as contenders, each made when it is asked for.

    `among` are the backends to try, with up to `cores` threads. They take the module's parameters and buffers as
    constants, so `holds` of a contender is true until `WeightVersions` finds a write to one of them. A module in
    training mode, or one that draws random numbers, has no contenders. Backends that cannot run the module are left
    out, with a log message. Whatever is run to make and to check them leaves the random generators as they are.
    """
    if any(part.training for part in module.modules()):
        return
    try:
        with generators_restored():
            flat = FlatModule(module, arguments)
        holds = WeightVersions(module).unchanged
    except (CaptureError, RuntimeError) as error:
        _logger.info("no backends: %s", error)
        return
    with tempfile.TemporaryDirectory(prefix="threadcast-") as folder:
        file = Path(folder, "model.onnx")
        try:
            with generators_restored():
                found = screened(flat, cores, file, among)
        except (ExecutionError, OSError) as error:
            _logger.warning("backends are left out: %s", error)
            return
        for what, reason in found.failed.items():
            _logger.info("%s does not run this model: %s", what, reason)
        makes = dict(ways(flat, cores, file if file.exists() else None))
        for way in found.ways:
            try:
                with generators_restored():
                    run = makes[way]()
                    flat.check(run)
            except Exception as error:  # noqa: BLE001 - whatever stops a foreign library, the others and the plan remain
                _logger.info("%s does not run this model: %s", way, str(error).splitlines()[:1])
                continue
            yield Contender(backend(str(way)), flat.call(run), holds)
