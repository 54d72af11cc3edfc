"""One operation on given shapes: what is measured, predicted and scheduled."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Hashable, Mapping
from dataclasses import InitVar, dataclass, field
from types import MappingProxyType
from typing import Any

from threadcast.core.cost import VIEW_KINDS, analytic_cost
from threadcast.core.errors import FormatError, InvalidInput
from threadcast.core.json_reading import member, number
from threadcast.core.tensor import TensorSpec

MAX_KIND = 200
"""Most characters of a kind in documents of other programs."""

MAX_KEY = MAX_KIND + 17
"""Most characters of the key of such an op: kind, "-", 16 digits."""

KEY_VERSION = 1  # part of every key: raise it only when equal keys would stop meaning equal work
_KEY_TEXT = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=True).encode


@dataclass(frozen=True, slots=True, eq=False)
class Op:
    """An operation with its input shapes and attributes; equal ops do equal work.

    `kind` is the field's name for it ("convolution", "convolution_backward_weight", "mm", "relu"). `attributes` is
    JSON: whatever else its work depends on (strides and padding, the operator to call and its non-tensor arguments).
    `outputs`, `flops` and `bytes_moved` follow from these and do not count for equality; flops and bytes are analytic
    (`core.cost`) unless `cost` = (flops, bytes) gives them, as a graph file may.
    """

    kind: str
    inputs: tuple[TensorSpec, ...] = ()
    attributes: Mapping[str, Any] = field(default_factory=dict)
    outputs: tuple[TensorSpec, ...] = ()
    cost: InitVar[tuple[float | None, float | None] | None] = None
    flops: float = field(init=False)
    bytes_moved: float = field(init=False)
    key: str = field(init=False)
    """Identity as text, stable across processes and versions: kind, "-", 16 hexadecimal digits."""

    def __post_init__(self, cost: tuple[float | None, float | None] | None) -> None:
        if not self.kind or not isinstance(self.kind, str):
            raise InvalidInput(f"kind={self.kind!r}: an op needs a non-empty name")
        flops, moved = cost or (None, None)
        if flops is None or moved is None:
            analytic = analytic_cost(self.kind, self.inputs, self.outputs)
            flops, moved = (analytic[0] if flops is None else flops, analytic[1] if moved is None else moved)
        for name, given in (("flops", flops), ("bytes_moved", moved)):
            value = float(given)
            if not 0 <= value < float("inf"):
                raise InvalidInput(f"{name}={value!r} of op kind {self.kind!r} must be finite and at least 0")
            object.__setattr__(self, name, value)
        object.__setattr__(self, "attributes", MappingProxyType(dict(self.attributes)))
        object.__setattr__(self, "key", self._make_key())

    def _make_key(self) -> str:
        try:
            text = _KEY_TEXT([KEY_VERSION, self.kind, [i.to_json() for i in self.inputs], dict(self.attributes)])
        except (TypeError, RecursionError) as error:
            raise InvalidInput(f"attributes of op kind {self.kind!r} must be JSON: {error}") from error
        return f"{self.kind}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"

    @property
    def is_view(self) -> bool:
        """Whether the op only describes existing memory in another way."""
        return self.kind in VIEW_KINDS

    @property
    def intensity(self) -> float:
        """Arithmetic intensity in flops per byte; 0 where nothing is moved."""
        return self.flops / self.bytes_moved if self.bytes_moved else 0.0

    @property
    def forecast_key(self) -> tuple[Hashable, ...]:
        """Identity for forecasts: `key`, and what they read of an op that its key leaves out.

        Other programs may describe ops by kind and counts alone; all of one kind have the same key (decision 1).
        """
        return self.key, self.flops, self.bytes_moved, self.outputs

    def __eq__(self, other: object) -> bool:
        return self.key == other.key if isinstance(other, Op) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.key)

    def __reduce__(self) -> tuple[Any, ...]:
        return (Op, (self.kind, self.inputs, dict(self.attributes), self.outputs, (self.flops, self.bytes_moved)))

    def to_json(self) -> dict[str, Any]:
        """The JSON object of the op in a graph file, without its id."""
        document: dict[str, Any] = {
            "kind": self.kind,
            "inputs": [spec.to_json() for spec in self.inputs],
            "flops": self.flops,
            "bytes": self.bytes_moved,
        }
        if self.attributes:
            document["attributes"] = dict(self.attributes)
        if self.outputs:
            document["outputs"] = [spec.to_json() for spec in self.outputs]
        return document

    @classmethod
    def from_json(cls, document: Any, *, pointer: str = "") -> Op:
        """Read what `to_json` writes; `flops`, `bytes`, `attributes` and `outputs` may be missing.

        Raises FormatError with a JSON pointer below `pointer` to the wrong member.
        """
        kind = member(document, "kind", str, pointer=pointer)
        specs = {}
        for name in ("inputs", "outputs"):
            listed = member(document, name, list, pointer=pointer, default=[])
            specs[name] = tuple(
                TensorSpec.from_json(spec, pointer=f"{pointer}/{name}/{i}") for i, spec in enumerate(listed)
            )
        attributes = member(document, "attributes", dict, pointer=pointer, default={})
        flops = number(document, "flops", pointer=pointer, minimum=0.0) if "flops" in document else None
        moved = number(document, "bytes", pointer=pointer, minimum=0.0) if "bytes" in document else None
        if not kind:
            raise FormatError("kind must not be empty", pointer=f"{pointer}/kind")
        return cls(kind, specs["inputs"], attributes, specs["outputs"], (flops, moved))
