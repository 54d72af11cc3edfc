"""The order in which backends are tried: by the kind of network, and by what earlier searches on this machine found."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from math import log
from pathlib import Path
from typing import Any, Literal

from threadcast.core.atomic_file import replacing
from threadcast.core.graph import OpGraph
from threadcast.core.printable import printable

NetworkKind = Literal["convolutions", "products", "pointwise"]
"""What most of a network's arithmetic is: convolutions, matrix products, or anything else."""

SCHEMA = "threadcast.backends/1"
_KEPT = 64
"""Number of searches that are stored, the last ones."""
_FIRST: Mapping[NetworkKind, tuple[str, ...]] = {
    "convolutions": ("openvino", "onnxruntime", "torch.compile"),
    "products": ("openvino", "onnxruntime", "torch.compile"),
    "pointwise": ("torch.compile", "onnxruntime", "openvino"),
}
"""The order where nothing was found on this machine. Building ONNX Runtime's and OpenVINO's form takes 3 to 8 s of CPU
time, `torch.compile` 12 to 35 s (transformer `small` to Inception `large`). OpenVINO reads the file's weights once; for
ONNX Runtime they are first written to a second file. Inductor alone fuses all point-wise operators."""
_GUESS = 0.7
"""Seconds of a call over PyTorch's of a backend before anything was found; it counts as one search. A convention."""

_logger = logging.getLogger("threadcast")


def network_kind(graph: OpGraph) -> NetworkKind:
    """Return what most of the arithmetic of `graph` is; "pointwise" where that is neither of the others."""
    flops: dict[str, float] = {"convolutions": 0.0, "products": 0.0, "all": 1.0}
    for op in graph.ops:
        flops["all"] += op.flops
        if "convolution" in op.kind:
            flops["convolutions"] += op.flops
        elif any(name in op.kind for name in ("mm", "linear", "attention", "encoder_layer")):
            flops["products"] += op.flops
    if flops["convolutions"] > flops["all"] / 2:
        return "convolutions"
    return "products" if flops["products"] > flops["all"] / 2 else "pointwise"


class BackendHistory:
    """The times that searches found on one machine, in a file; `path` None: nothing is stored.

    A file that cannot be read or written counts as empty, with a log message: it decides only what is tried first.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._found: list[dict[str, Any]] = [] if path is None else _read(path)

    def ordered(self, backends: Iterable[str], kind: NetworkKind) -> list[str]:
        """Return `backends` with the one first that took the smallest share of PyTorch's time for this kind."""
        shares = {name: [log(_GUESS)] for name in sorted(backends, key=lambda name: (*_FIRST[kind], name).index(name))}
        for one in self._found:
            for name in set(shares) & set(one["shares"]) if one["kind"] == kind else ():
                shares[name].append(log(one["shares"][name]))
        return sorted(shares, key=lambda name: sum(shares[name]) / len(shares[name]))

    def add(self, kind: NetworkKind, shares: Mapping[str, float]) -> None:
        """Store the seconds of each backend's call over PyTorch's, of one network."""
        if self._path is None or not shares:
            return
        found = [*_read(self._path), {"kind": kind, "shares": dict(shares)}][-_KEPT:]
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with replacing(self._path) as draft:
                draft.write_text(json.dumps({"schema": SCHEMA, "found": found}))
        except OSError as error:
            _logger.warning("what backends were found to take is not stored: %s", error)


def _read(path: Path) -> list[dict[str, Any]]:
    try:
        document = json.loads(path.read_text())
        found: Sequence[dict[str, Any]] = document["found"] if document["schema"] == SCHEMA else ()
        return [one for one in found if all(share > 0 for share in one["shares"].values()) and "kind" in one]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        _logger.warning("%s is of no use: %s", printable(str(path)), error)
        return []
