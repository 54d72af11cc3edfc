"""What `mode` and `options` of `torch.compile(..., backend="threadcast")` may be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from threadcast.core.arguments import check, did_you_mean, is_number, is_whole
from threadcast.core.errors import InvalidInput
from threadcast.core.settings import Settings

_MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
"""PyTorch's modes. With the last two, learning may take any time."""


@dataclass(frozen=True, slots=True)
class CompileOptions:
    """How graphs are run: `options` of `torch.compile`, with the settings `engine.*` for what they do not name."""

    fuse: bool
    tuning_share: float
    """Share of the time since a graph's first call that learning may lose; 1: any."""
    verify_every: int
    """Calls of a graph from one that is also run by PyTorch; 0: none."""
    cores: int | None = None
    """Number of cores to use; None: all that this process may use."""
    freeze: bool = False
    """Whether copies of the weights may be used in inference, by ONNX Runtime, OpenVINO and Inductor. Writes that
    PyTorch does not count, as by `.data`, may then be missed, as by `threadcast.optimize`."""

    @classmethod
    def of(cls, mode: str | None, options: Mapping[str, Any] | None) -> Self:
        """Read `mode` and `options`; InvalidInput for unknown names and values that are not allowed."""
        check(mode is None or mode in _MODES, "mode", mode, f"one of {', '.join(_MODES)}")
        check(options is None or isinstance(options, Mapping), "options", options, "a dictionary")
        for name in options or ():
            if name not in cls.__slots__:
                hint = did_you_mean(str(name), cls.__slots__)
                raise InvalidInput(f"unknown option {name!r}; {hint}options are {', '.join(cls.__slots__)}")
        settings = Settings.read()
        fuse, every = settings["engine.fuse"], settings["engine.verify_every"]
        share: Any = 1.0 if mode is not None and mode.startswith("max-autotune") else settings["engine.tuning_share"]
        return cls(**{"fuse": fuse, "tuning_share": share, "verify_every": every, **(options or {})})

    def __post_init__(self) -> None:
        check(self.cores is None or is_whole(self.cores), "cores", self.cores, "a number of cores")
        for name, value in (("fuse", self.fuse), ("freeze", self.freeze)):
            check(isinstance(value, bool), name, value, "True or False")
        share, every = self.tuning_share, self.verify_every
        check(is_number(share) and 0 <= share <= 1, "tuning_share", share, "a number from 0 to 1")
        check(is_whole(every, 0), "verify_every", every, "0 or a number of calls")
