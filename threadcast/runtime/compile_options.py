"""What `mode` and `options` of `torch.compile(..., backend="threadcast")` may be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Self

from threadcast.core.errors import InvalidInput
from threadcast.core.settings import Settings

_MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
"""PyTorch's modes. With the last two, learning may take any time."""


@dataclass(frozen=True, slots=True)
class CompileOptions:
    """How graphs are run: `options` of `torch.compile`, with the settings `engine.*` for what they do not name."""

    cores: int | None
    """Number of cores to use; None: all that this process may use."""
    fuse: bool
    freeze: bool
    """Whether copies of the weights may be used in inference: in channels last, and by ONNX Runtime, OpenVINO and
    Inductor. Writes that PyTorch does not count, as by `.data`, may then be missed, as by `threadcast.optimize`."""
    tuning_share: float
    """Share of the time since a graph's first call that learning may lose; 1: any."""
    verify_every: int
    """Calls of a graph from one that is also run by PyTorch; 0: none."""
    short_way: bool = True
    """Whether settled training calls go around AOTAutograd's wrappers (`ShortWay`)."""

    @classmethod
    def of(cls, mode: str | None, options: Mapping[str, Any] | None) -> Self:
        """Read `mode` and `options`; InvalidInput for unknown names and values that are not allowed."""
        settings, given = Settings.read(), dict(options or {})
        if mode is not None and mode not in _MODES:
            raise InvalidInput(f"mode={mode!r}: allowed are {', '.join(_MODES)}")
        share: Any = 1.0 if mode is not None and mode.startswith("max-autotune") else settings["engine.tuning_share"]
        found = cls(
            given.pop("cores", None),
            given.pop("fuse", settings["engine.fuse"]),
            given.pop("freeze", False),
            given.pop("tuning_share", share),
            given.pop("verify_every", settings["engine.verify_every"]),
            given.pop("short_way", True),
        )
        if given:
            name = next(iter(given))
            near = get_close_matches(name, cls.__slots__, n=1)
            advice = f", did you mean {near[0]!r}?" if near else ""
            raise InvalidInput(f"unknown option {name!r}{advice} Options are {', '.join(cls.__slots__)}")
        return found

    def __post_init__(self) -> None:
        if self.cores is not None and (isinstance(self.cores, bool) or not isinstance(self.cores, int)):
            raise InvalidInput(f"cores={self.cores!r} must be a number of cores")
        for name, value in (("fuse", self.fuse), ("freeze", self.freeze), ("short_way", self.short_way)):
            if not isinstance(value, bool):
                raise InvalidInput(f"{name}={value!r} must be True or False")
        if isinstance(self.tuning_share, bool) or not isinstance(self.tuning_share, int | float):
            raise InvalidInput(f"tuning_share={self.tuning_share!r} must be a number from 0 to 1")
        if not 0 <= self.tuning_share <= 1:
            raise InvalidInput(f"tuning_share={self.tuning_share!r} must be from 0 to 1")
        if isinstance(self.verify_every, bool) or not isinstance(self.verify_every, int) or self.verify_every < 0:
            raise InvalidInput(f"verify_every={self.verify_every!r} must be 0 or a number of calls")
