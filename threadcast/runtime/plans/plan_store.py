"""Stores plans that were faster than the default on this machine, for later processes that run the same call."""

from __future__ import annotations

import base64
import hashlib
import json
import logging
import os
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, TypeVar, get_args

import torch

from threadcast.core import CurveTable, Machine, OpGraph, Plan
from threadcast.core.atomic_file import replacing
from threadcast.core.curve_codec import from_codes, to_codes
from threadcast.core.errors import FormatError
from threadcast.core.json_reading import member, number, parse
from threadcast.core.printable import printable
from threadcast.runtime.plans.backend_history import NAME as HISTORY
from threadcast.runtime.plans.backend_history import BackendHistory, Forecast, network_kind, shape_of
from threadcast.runtime.plans.variant import MemoryFormat

T = TypeVar("T")

Extra = Literal["formats", "fused", "backends"]
"""What is tried for a call: plans in all memory formats, with fused operators, and backends."""

BELIEVED = 10
"""Processes of which the last one tries again what was found to be slower: the machine may have been busy. A
convention."""

MOST_FILES = 4_000
"""Most files in the folder of plans, two for each kind of call: beyond, a write deletes those that were not used for
longest. A convention."""

_NAMED = ("onnxruntime", "openvino")
_OPENING_S = 0.1
"""Seconds of opening a backend that an earlier process has built."""

_MOST_BYTES = 2**26
"""Most bytes of a plan for fewer cores once it is unpacked: one of 5,000 ops has a megabyte."""
_NAME = re.compile(r"[0-9a-f]{32}\.(json|layout|backend|program|tried)")

_logger = logging.getLogger("threadcast")


@dataclass(frozen=True, slots=True, eq=False)
class StoredPlan:
    """A plan that was faster than the default, its memory format, and the seconds that one of its steps took.

    `step_s` is None for a plan that was made, and not compared with the default: the process ended before.
    `fused`: whether the plan is for the graph with fused operators. `fewer` holds plans for fewer cores, by number of
    cores; in the file they are compressed. While some of these are missing, `curves` are the curves of the
    plan's graph, to make them from. A step of PyTorch's default took `eager_s` seconds (None: not known).
    """

    plan: Plan
    memory_format: MemoryFormat
    step_s: float | None
    fused: bool = False
    fewer: Mapping[int, Plan] = field(default_factory=dict)
    curves: CurveTable | None = None
    eager_s: float | None = None


class FasterGraphs(NamedTuple):
    """The seconds of calls by a program's graphs, which are faster than the program, and those of the program."""

    step_s: float
    eager_s: float


class PlanStore:
    """Plans in a folder, found by their graph, only for this machine and this version of PyTorch.

    `among` is a text of the candidates that the plans were compared with. A plan is found only with the same text.

    A file that cannot be read or written counts as missing, with a log message: plans can always be made anew. The
    folder keeps those that were used last (`MOST_FILES`).
    """

    def __init__(self, folder: Path, machine: Machine, *, among: str = "") -> None:
        self._folder, self._machine, self._among = folder, machine, among

    def formats_first(self, call: object, formats: Sequence[MemoryFormat]) -> tuple[MemoryFormat, ...]:
        """Return `formats` with the one stored for this call, if any, first. The `repr` of `call` identifies it."""
        best = self._read(repr(call), "layout", MemoryFormat)
        return tuple(sorted(formats, key=lambda one: best is not None and one is not best))

    def knows(self, call: object) -> bool:
        """Return whether a plan was stored for this call. The `repr` of `call` identifies it."""
        return self._path(repr(call), "layout").is_file()

    def backends(self, graph: OpGraph, shares: Mapping[str, float] = MappingProxyType({})) -> Forecast:
        """Return what is expected of the best of the backends among the candidates: `torch.compile` and those named.

        With `shares`, seconds of some backends' calls over PyTorch's, it is what is expected of the others.
        """
        if not shares and (noted := self._read(_text(graph), "backend", read_backend)) is not None:
            gain, step_s = noted
            return Forecast(gain, gain, _OPENING_S, step_s)
        names = [*(name for name in _NAMED if name in self._among), "torch.compile"]
        history = BackendHistory(self._folder / HISTORY)
        return history.of_search(names, network_kind(graph), shape_of(graph), shares)

    def read(self, graph: OpGraph) -> StoredPlan | None:
        """Return the plan stored for this graph; None where there is none that can be read."""
        return self._read(_text(graph), "json", lambda text: stored_plan(json.loads(text)))

    def write(self, call: object, graph: OpGraph, stored: StoredPlan) -> None:
        """Store a plan for this graph, and its memory format for this call."""
        document: dict[str, Any] = {
            "layout": stored.memory_format, "fused": stored.fused, "step_s": stored.step_s,
            "eager_s": stored.eager_s, "plan": stored.plan.to_json(),
            "fewer": {str(cores): packed(plan) for cores, plan in stored.fewer.items()},
            "curves": {} if stored.curves is None else to_codes(stored.curves),
        }  # fmt: skip
        contents = {
            self._path(repr(call), "layout"): stored.memory_format,
            self._path(_text(graph), "json"): json.dumps(document)
        }  # fmt: skip
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            for path, content in contents.items():
                with replacing(path) as draft:
                    draft.write_text(content)
            _delete_oldest(self._folder, MOST_FILES)
        except OSError as error:
            _logger.warning("the plan is not stored: %s", error)

    def note_backend(self, graph: OpGraph, gain: float, step_s: float) -> None:
        """Note that a backend was the fastest for this graph: ratio of the default's seconds to its own, and these."""
        self._note(_text(graph), "backend", f"{gain!r} {step_s!r}")

    def tried(self, graph: OpGraph, *, planned: bool) -> frozenset[Extra]:
        """Return what was found to be slower than what runs the graph, a plan if it is `planned`, or than PyTorch.

        Of `BELIEVED` processes that ask the last one learns of nothing.
        """
        if (noted := self._read(_text(graph), "tried", read_tried)) is None:
            return frozenset()
        found, was_planned, asked = noted
        if was_planned != planned or asked + 1 >= BELIEVED:
            return frozenset()
        self._note_tried(graph, found, planned=planned, asked=asked + 1)
        return found

    def note_tried(self, graph: OpGraph, tried: frozenset[Extra], *, planned: bool) -> None:
        """Note what `tried` is to return."""
        self._note_tried(graph, tried, planned=planned, asked=0)

    def _note_tried(self, graph: OpGraph, tried: frozenset[Extra], *, planned: bool, asked: int) -> None:
        self._note(_text(graph), "tried", json.dumps({"tried": sorted(tried), "planned": planned, "asked": asked}))

    def _note(self, text: str, suffix: str, content: str) -> None:
        with suppress(OSError):
            self._folder.mkdir(parents=True, exist_ok=True)
            with replacing(self._path(text, suffix)) as draft:
                draft.write_text(content)

    def program(self, text: str) -> FasterGraphs | None:
        """Return what was found of the graphs of a program, which this text identifies; None where nothing was."""
        found = self._read(text, "program", read_program)
        return found if isinstance(found, FasterGraphs) else None

    def note_program(self, text: str, found: FasterGraphs | None) -> None:
        """Note what `program` is to return for this text of a program; None: its graphs are not faster."""
        self._note(text, "program", json.dumps(0 if found is None else found))

    def is_program_left(self, text: str) -> bool:
        """Return whether the graphs of a program were found not to be faster.

        Of `BELIEVED` processes that ask the last one learns of nothing.
        """
        asked = self._read(text, "program", read_program)
        if isinstance(asked, int) and asked + 1 < BELIEVED:
            self._note(text, "program", json.dumps(asked + 1))
            return True
        return False

    def drop(self, graph: OpGraph, *, backend: bool = True) -> None:
        """Delete the plan stored for this graph, and with `backend` what is noted of one."""
        try:
            for suffix in ("json", "backend") if backend else ("json",):
                self._path(_text(graph), suffix).unlink(missing_ok=True)
        except OSError as error:
            _logger.warning("an old plan stays: %s", error)

    def _read(self, text: str, suffix: str, read: Callable[[str], T]) -> T | None:
        """What `read` makes of a file's text; None where there is no file, or none that is of use."""
        path = self._path(text, suffix)
        try:
            found = read(path.read_text())
        except FileNotFoundError:
            return None
        except (OSError, ValueError, LookupError, TypeError) as error:
            _logger.warning("%s is of no use and is made anew: %s", printable(str(path)), error)
            return None
        _note_use(path)
        return found

    def _path(self, text: str, suffix: str) -> Path:
        whole = f"{self._machine.fingerprint} {torch.__version__} {self._among} {text}"
        return self._folder / f"{hashlib.sha256(whole.encode()).hexdigest()[:32]}.{suffix}"


def _text(graph: OpGraph) -> str:
    """What identifies a graph."""
    ops = [(op_id, op.key) for op_id, op in zip(graph.ids, graph.ops, strict=True)]
    return repr((ops, [(edge.source, edge.target) for edge in graph.edges]))


def _note_use(path: Path) -> None:
    """Let the file count as used now; it stays older where it may not be written."""
    with suppress(OSError):
        os.utime(path)


def _delete_oldest(folder: Path, most: int) -> None:
    """Where the folder has more files of plans than `most`, delete those that were not used for longest, and some."""
    with os.scandir(folder) as entries:
        files = [entry for entry in entries if _NAME.fullmatch(entry.name)]
    if len(files) <= most:
        return
    used: list[tuple[float, str]] = []
    for entry in files:
        with suppress(FileNotFoundError):  # another process deletes, too
            used.append((entry.stat().st_mtime, entry.path))
    for _, path in sorted(used)[: len(used) - most * 9 // 10]:
        with suppress(FileNotFoundError):
            os.unlink(path)


def stored_plan(document: Any) -> StoredPlan:
    """Return the plan in the JSON document of a plan's file; ValueError, LookupError or TypeError where it is none."""
    layout = member(document, "layout", str)
    if layout not in list(MemoryFormat):
        raise FormatError(f"unknown layout {layout!r}", pointer="/layout")
    step_s = None if document.get("step_s") is None else number(document, "step_s", minimum=0.0)
    plan, fused = Plan.from_json(member(document, "plan", dict)), member(document, "fused", bool)
    written = member(document, "fewer", dict, default={})
    fewer = _FewerPlans({int(cores): text for cores, text in written.items()})
    curves = member(document, "curves", dict, default={})
    known = from_codes(curves) if curves else None
    eager_s = None if document.get("eager_s") is None else number(document, "eager_s", minimum=0.0)
    return StoredPlan(plan, MemoryFormat(layout), step_s, fused, fewer, known, eager_s)


def read_backend(text: str) -> tuple[float, float]:
    """Return the gain of a backend, and the seconds of its calls, from the text of a file; ValueError without them."""
    gain, step_s = map(float, text.split())
    return gain, step_s


def read_tried(text: str) -> tuple[frozenset[Extra], bool, int]:
    """Return what the text of a file says was tried, whether beside a plan, and how often that was asked after.

    ValueError, LookupError or TypeError where it says nothing.
    """
    document = parse(text, what="it")
    tried = frozenset(extra for extra in get_args(Extra) if extra in member(document, "tried", list))
    return tried, member(document, "planned", bool), member(document, "asked", int)


def read_program(text: str) -> FasterGraphs | int:
    """Return what the text of a file says of a program's graphs; how often that was asked after where they are slower.

    ValueError or TypeError where it says nothing.
    """
    found = parse(text, what="it")
    if isinstance(found, int):
        return found
    step_s, eager_s = found
    return FasterGraphs(float(step_s), float(eager_s))


class _FewerPlans(Mapping[int, Plan]):
    """Plans for fewer cores by number of cores, each read when it is asked for; one that cannot be read is missing."""

    def __init__(self, texts: dict[int, Any]) -> None:
        self._texts = texts

    def __getitem__(self, cores: int) -> Plan:
        text = self._texts[cores]
        try:
            return _unpacked(text)
        except (ValueError, TypeError, zlib.error) as error:
            _logger.warning("a stored plan for %d cores is of no use and is made anew: %s", cores, error)
            del self._texts[cores]
            raise KeyError(cores) from error

    def __iter__(self) -> Iterator[int]:
        return iter(list(self._texts))

    def __len__(self) -> int:
        return len(self._texts)


def packed(plan: Plan) -> str:
    """Return a plan as the text that is stored of one for fewer cores, a fifth of its JSON form."""
    return base64.b85encode(zlib.compress(json.dumps(plan.to_json()).encode())).decode()


def _unpacked(text: str) -> Plan:
    """The plan that `packed` wrote; ValueError, TypeError or zlib.error where it is none."""
    content = zlib.decompressobj().decompress(base64.b85decode(text), _MOST_BYTES)
    return Plan.from_json(parse(content, what="it"))
