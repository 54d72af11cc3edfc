"""What backends are expected to gain and to cost: by the kind of network, and by what was found, here and elsewhere."""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import exp, log
from pathlib import Path
from statistics import NormalDist, median
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import numpy as np

from threadcast.core.atomic_file import replacing
from threadcast.core.graph import OpGraph
from threadcast.core.printable import printable

NetworkKind = Literal["convolutions", "products", "pointwise"]
"""What most of a network's arithmetic is: convolutions, matrix products, or anything else."""

NAME = "backends"
"""Name of the history in the folder of plans."""
SCHEMA = "threadcast.backends/1"
PRIOR = Path(__file__).with_name("backend_prior.json")
"""What other machines found, in the same form; `benchmarks/backend_prior.py` makes it."""
_KEPT = 64
"""Number of searches that are stored, the last ones."""
_ENOUGH = 5
"""Networks of this machine from which on those of others are not asked. A convention."""
_NEAREST = 9
"""Networks from which it is forecast what a backend takes where another is known: one that is an exception among them
counts little, two have it tried. Chosen on the prior: of 10 to 20 % of them in which another backend was kept, most are
such."""
_FEW, _GUESS = 3, (0.7, 0.3)
"""Networks below which shares of PyTorch's time are guessed, and the guess: typical, and in one of ten."""
_OTHER_SIZES, _SAME_SIZES = 1.1, 1.05
"""Times as much as expected that a backend gains at most where it is known of the same network with other sizes: over
PyTorch, and over another backend that is known with these sizes. Conventions."""
_DAYS = 30
"""Days after which it is not believed any more that what was slow with other sizes still is."""
WORTH = 1.02
"""Expected ratio (`Forecast.beyond`) below which a backend is not built."""
_ONE_OF_TEN, _LEAST_SPREAD = 1.2816, 1e-6
"""Standard deviations that one of ten exceeds; and the least standard deviation that is one."""
_UNKNOWN_S = 20.0
"""CPU seconds of building a backend that nobody has built."""
PROGRAM = "program"
"""Stands for what has to be done once for all backends of a program: reading, exporting and writing it."""

_logger = logging.getLogger("threadcast")


@dataclass(frozen=True, slots=True)
class Forecast:
    """What is expected of a backend for a network."""

    gain: float
    """Median ratio of PyTorch's seconds of a call to its own."""
    most: float
    """The ratio that one network of ten exceeds."""
    cost_s: float
    """CPU seconds of building, checking and timing it."""
    step_s: float | None = None
    """Seconds of a call by it, where it was built and was the fastest; None: not known."""

    @property
    def value(self) -> float:
        """What it is expected to gain for each second that it costs."""
        return (self.beyond(1.0) - 1) / self.cost_s

    def beyond(self, known: float) -> float:
        """Return the expected ratio of the better of this gain and a `known` one to the known one, at least 1.

        Logarithms of gains are taken to be normal (expected improvement: Jones, Schonlau and Welch 1998).
        """
        spread, ahead = log(max(self.most, 1e-9) / max(self.gain, 1e-9)) / _ONE_OF_TEN, max(self.gain, 1e-9) / known
        if spread < _LEAST_SPREAD:
            return max(1.0, ahead)
        normal, by = NormalDist(), log(ahead) / spread
        return normal.cdf(-by) + ahead * exp(spread**2 / 2) * normal.cdf(by + spread)


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


class Shape(NamedTuple):
    """What tells a network, and its sizes, from others: two hashes, empty where they are not known."""

    structure: str = ""
    """Of its operators' kinds and their edges."""
    sizes: str = ""
    """Of these, and of all sizes and strides."""


_UNKNOWN_SHAPE = Shape()


def shape_of(graph: OpGraph) -> Shape:
    """Return what tells the network of a graph from others."""
    edges = [(edge.source, edge.target) for edge in graph.edges]
    kinds, keys = [op.kind for op in graph.ops], [op.key for op in graph.ops]
    return Shape(*(hashlib.sha256(repr((ops, edges)).encode()).hexdigest()[:16] for ops in (kinds, keys)))


class BackendHistory:
    """The times that searches found on one machine, in a file, beside those of the prior; `path` None: no file.

    A file that cannot be read or written counts as empty, with a log message: it decides only what is tried.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._own: Sequence[dict[str, Any]] = () if path is None else _read(path)

    def forecast(
        self, backend: str, kind: NetworkKind, shares: Mapping[str, float] | None = None, shape: Shape = _UNKNOWN_SHAPE
    ) -> Forecast:
        """Return what is expected of a backend for a network of this kind and shape.

        `shares` are the seconds of other backends' calls over PyTorch's, as far as they are known of this network: then
        it is forecast from networks for which the fastest of these took about as much. What was found for the same
        network with other sizes tells most.
        """
        for one in self._like(shape):
            if (like := self._with_other_sizes(one, backend, shares or {})) is not None:
                return like
        found = [log(row[backend]) for row in self._rows(kind, backend)]
        if shares:
            fastest = min(shares, key=shares.__getitem__)
            known = log(shares[fastest])
            both = sorted(self._rows(kind, backend, fastest), key=lambda row: abs(log(row[fastest]) - known))
            found = [log(row[backend] / row[fastest]) + known for row in both[:_NEAREST]]
        typical, least = np.exp(np.quantile(found, (0.5, 0.1))).tolist() if len(found) >= _FEW else _GUESS
        return Forecast(1 / typical, 1 / least, self._cost_s(backend))

    def _like(self, shape: Shape) -> Iterator[Mapping[str, Any]]:
        """What was found for the same network with other sizes, the last first; `PlanStore` knows the same sizes."""
        for one in reversed(self._own):
            structure, sizes, day = one.get("shape", ("", "", 0))
            if structure and structure == shape.structure and sizes != shape.sizes and _today() - day <= _DAYS:
                yield one

    def _with_other_sizes(self, row: Mapping[str, Any], backend: str, shares: Mapping[str, float]) -> Forecast | None:
        """What is expected of a backend where the row is of the same network; None where that does not tell."""
        cost_s, known = self._cost_s(backend), row["shares"]
        if backend in row["failed"]:
            return Forecast(0.0, 0.0, cost_s)
        if backend not in known:
            return None
        fastest = min(shares.keys() & known.keys(), key=shares.__getitem__, default=None)
        share = known[backend] if fastest is None else known[backend] / known[fastest] * shares[fastest]
        return Forecast(1 / share, (_OTHER_SIZES if fastest is None else _SAME_SIZES) / share, cost_s)

    def ordered(self, backends: Iterable[str], kind: NetworkKind, shape: Shape = _UNKNOWN_SHAPE) -> list[str]:
        """Return `backends` with the one first that is expected to gain most for what it costs.

        Where one has won with other sizes, that is the first: others are not expected to be built.
        """
        known = any(self._like(shape))
        of = {name: self.forecast(name, kind, shape=shape) for name in backends}
        return sorted(of, key=lambda name: -(of[name].gain if known else of[name].value))

    def of_search(
        self, backends: Iterable[str], kind: NetworkKind, shape: Shape = _UNKNOWN_SHAPE,
        shares: Mapping[str, float] = MappingProxyType({}),
    ) -> Forecast:  # fmt: skip
        """Return what is expected of the best of `backends`, at least one, whose `shares` are not known.

        The cost is what the first one takes.
        """
        left = [name for name in self.ordered(backends, kind, shape) if name not in shares]
        found = [self.forecast(name, kind, shares, shape) for name in left] or [Forecast(0.0, 0.0, 0.0)]
        cost_s = found[0].cost_s + (0.0 if shares else self._cost_s(PROGRAM))
        return Forecast(max(one.gain for one in found), max(one.most for one in found), cost_s)

    def _rows(self, kind: NetworkKind, *backends: str) -> list[Mapping[str, float]]:
        """Shares of networks of a kind for which those of all these backends are known."""

        def of(found: Sequence[dict[str, Any]]) -> list[Mapping[str, float]]:
            return [one["shares"] for one in found if one["kind"] == kind and one["shares"].keys() >= {*backends}]

        own = of(self._own)
        return own if len(own) >= _ENOUGH else [*own, *of(_prior())]

    def _cost_s(self, what: str) -> float:
        for found in (self._own, _prior()):
            costs = [one["cost_s"][what] for one in found if what in one.get("cost_s", {})]
            if costs:
                return float(median(costs))
        return _UNKNOWN_S

    def add(
        self, kind: NetworkKind, shares: Mapping[str, float], cost_s: Mapping[str, float], *,
        shape: Shape = _UNKNOWN_SHAPE, failed: Iterable[str] = (),
    ) -> None:  # fmt: skip
        """Store the seconds of each backend's call over PyTorch's, of one network, and what building each took.

        `failed` are the backends that cannot run it.
        """
        failed = [*failed] if shape.structure else []
        if self._path is None or not (shares or failed):
            return
        new: dict[str, Any] = {"kind": kind, "shares": dict(shares), "cost_s": dict(cost_s)}
        if shape.structure:
            new |= {"shape": [*shape, _today()], "failed": failed}
        found = [*_read(self._path), new][-_KEPT:]
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with replacing(self._path) as draft:
                draft.write_text(json.dumps({"schema": SCHEMA, "found": found}))
        except OSError as error:
            _logger.warning("what backends were found to take is not stored: %s", error)


def _today() -> int:
    return int(time.time() // 86_400)


@cache
def _prior() -> Sequence[dict[str, Any]]:
    return _read(PRIOR)


def _read(path: Path) -> list[dict[str, Any]]:
    try:
        document = json.loads(path.read_text())
        found: Sequence[dict[str, Any]] = document["found"] if document["schema"] == SCHEMA else ()
        return [one for one in found if _is_usable(one)]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        _logger.warning("%s is of no use: %s", printable(str(path)), error)
        return []


def _is_usable(one: dict[str, Any]) -> bool:
    numbers = [*one["shares"].values(), *one.get("cost_s", {}).values()]
    structure, sizes, day = one.get("shape", ("", "", 0))
    shaped = not structure or (isinstance(sizes, str) and isinstance(day, int) and isinstance(one["failed"], list))
    return "kind" in one and shaped and all(number > 0 for number in numbers)
