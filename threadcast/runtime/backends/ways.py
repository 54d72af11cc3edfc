"""The ways to run a whole module: each backend and its setting; what a search is asked for, and what it has built."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

from threadcast.runtime.backends.number_guard import Range
from threadcast.runtime.plans.backend_history import NetworkKind

NEEDED = {"onnxruntime": ("onnx", "onnxscript", "onnxruntime"), "openvino": ("onnx", "onnxscript", "openvino")}
"""Libraries that each backend needs. The package's extra `backends` installs all of them."""

CHOOSES_CPUS = frozenset(("openvino",))
"""Backends that choose the CPUs of their threads themselves, whichever the thread has that opens them."""


class Way(NamedTuple):
    """A backend and the name of its setting, "" where it has only one."""

    backend: str
    setting: str

    def __str__(self) -> str:
        return f"{self.backend}, {self.setting}" if self.setting else self.backend


@dataclass(frozen=True, slots=True)
class Options:
    """What is searched: backends among `among`, for `cores` cores and a network of this kind. `history` is a path.

    A way is reported if its call takes up to `close` times the seconds of the fastest that is known, or of PyTorch's.
    The search keeps to `cpus` (None: to those of its caller), stores the fastest way by `key`, and keeps freed memory
    if its caller does: PyTorch, to which backends are compared, may take two and a half times as long without (Depth
    Anything). What was found for the same network tells what to try first (`shape`).
    """

    among: list[str]
    cores: int
    kind: NetworkKind
    close: float
    history: str | None
    cpus: list[int] | None = None
    keeps_memory: bool = False
    key: str = ""
    shape: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Built:
    """A way to run the program from a file, with the seconds of a call and of opening it.

    `gain` is the ratio of PyTorch's seconds to its own; None where other work disturbed the comparison. `integers` are
    the ranges in which the integers of the program's arguments must be; None for others.
    """

    way: Way
    file: str
    call_s: float
    open_s: float
    integers: Sequence[Range | None] = ()
    gain: float | None = None

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Self:
        """Return what `asdict` has made JSON of."""
        integers = [one and Range(*one) for one in document["integers"]]
        return cls(**{**document, "way": Way(*document["way"]), "integers": integers})


def installed(cpus: Sequence[int] | None = None) -> str:
    """Names and versions of the installed backends that can keep to `cpus` (None: that run anywhere), as one text.

    `torch.compile` is not listed.
    """
    names = [name for name in NEEDED if has(name) and (cpus is None or name not in CHOOSES_CPUS)]
    return " ".join(f"{name} {importlib.metadata.version(name)}" for name in names)


def has(name: str) -> bool:
    """Return whether the libraries that the backend `name` needs are installed."""
    return all(importlib.util.find_spec(library) is not None for library in NEEDED[name])
