"""Measures one model of a judge: PyTorch, Inductor and threadcast in processes of their own, by turns."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from judge_cases import BUILD
from run_facts import RunFacts
from told import Told
from warmup_others import OtherWork

INDUCTOR_CACHE = BUILD / "judge" / "inductor"
"""One for all models: compiling PyTorch's headers anew for each would take 10 s."""
WAYS = {
    "inference": ("eager", "kept", "inductor", "frozen", "threadcast"),
    "training": ("eager", "kept", "inductor", "threadcast"),
}  # fmt: skip
"""By mode, the ways to run a model, in the order in which they settle (`judge_process.Way`)."""
_COMPILED = "inductor", "frozen"
"""Ways that compile at the same time: nobody is timed meanwhile."""
SLOW_S = 0.6
"""A graph whose step takes longer in eager PyTorch is left out."""


@dataclass(frozen=True, slots=True)
class Setting:
    """How long a model is measured."""

    settle_s: float = 60.0
    """Longest time in which threadcast learns before the turns."""
    limit_s: float = 300.0
    """Longest time of one answer, beside the seconds that were asked for: Inductor compiles in one."""
    turns: int = 7
    turn_s: float = 0.4
    """Seconds of each way in a turn."""


FAST = Setting(settle_s=15.0, limit_s=60.0, turns=3, turn_s=0.2)
"""About a minute a model, most of it Inductor's compiling. On 2 calm cores ResNet-18 and BERT had a plan after 5 s, and
ONNX Runtime and OpenVINO after 10 to 12 s; `torch.compile` came after 32 s, and is missing then, as the page says."""


class Process:
    """A process that runs a model in one way; it is stopped except while it answers, for `limit_s` at most.

    RuntimeError where it fails, or gives no answer in time.
    """

    def __init__(self, judge: str, name: str, mode: str, who: str, folder: Path, *, limit_s: float) -> None:
        own = Path(__file__).parents[1]  # the threadcast that is judged, whatever is installed
        fresh = {
            "THREADCAST_ENGINE_PLANS": str(folder / "plans"),
            "THREADCAST_STORE": f"sqlite:///{folder / 'threadcast.db'}",
            "TORCHINDUCTOR_CACHE_DIR": str(INDUCTOR_CACHE),
            "PYTHONPATH": str(own),
        }  # fmt: skip
        self._limit_s = limit_s
        self._told = Told("judge_process.py", judge, name, mode, who, environment=os.environ | fresh, limit_s=limit_s)
        self.session, self.close = self._told.session, self._told.kill

    def ask(self, what: str, value: Any, *, seconds: float = 0.0) -> Any:
        """The answer to one request."""
        self.begin(what, value)
        return self.answer(seconds)

    def begin(self, what: str, value: Any) -> None:
        """Send a request, and go on."""
        self._told.begin({"what": what, "value": value})

    def answer(self, seconds: float) -> Any:
        """The answer to a request that was sent, within the limit and so many seconds."""
        return self._told.answer(self._limit_s + seconds)["answer"]


def measured(judge: str, name: str, mode: str, *, setting: Setting, run: RunFacts) -> dict[str, Any]:
    """The record of one model, which belongs to `run`.

    It says "left_out", and why, of a graph of GraphNet that is slower than `SLOW_S`.
    """
    others = OtherWork(())
    record: dict[str, Any] = {
        "name": name, "mode": mode, "run": run.to_json(), "setting": asdict(setting), "ways": {},
    }  # fmt: skip
    began_s = time.monotonic()
    with ExitStack() as end, TemporaryDirectory() as folder:
        running: dict[str, Process] = {}
        result = f"{folder}/result.pt"
        for _, together in groupby(WAYS[mode], lambda who: _COMPILED if who in _COMPILED else who):
            begun = list(together)
            for who in begun:
                record["ways"][who] = {}
                with _noted(record, running, who):
                    process = running[who] = Process(judge, name, mode, who, Path(folder), limit_s=setting.limit_s)
                    end.callback(process.close)
                    others.is_own(process.session)
                    process.begin("settle", setting.settle_s)
            for who in [one for one in begun if one in running]:
                with _noted(record, running, who):
                    process, way = running[who], record["ways"][who]
                    way["settled"] = process.answer(setting.settle_s)
                    if judge == "graphnet" and who == "eager" and process.ask("turn", setting.turn_s) > SLOW_S:
                        return record | {"left_out": f"slower than {SLOW_S} s"}
                    way.update(process.ask("result" if who == "eager" else "compare", result) or {})
            if "eager" not in running:
                return record | {"seconds": time.monotonic() - began_s}
        turns: dict[str, list[float]] = {who: [] for who in running}
        for number in range(setting.turns):
            for who in list(running)[:: 1 if number % 2 else -1]:
                with _noted(record, running, who):
                    turns[who].append(running[who].ask("turn", setting.turn_s, seconds=setting.turn_s))
        if "threadcast" in running:  # it may have learned in the turns
            with _noted(record, running, "threadcast"):
                _see_again(running["threadcast"], record["ways"]["threadcast"], result)
        for who, seconds in turns.items():
            way = record["ways"][who]
            if "error" not in way and "eager" in running:
                ratios = [eager / own for eager, own in zip(turns["eager"], seconds, strict=True)]
                way |= {"turns_s": seconds, "step_s": median(seconds), "speedup": median(ratios)}
        record["others"] = others.share()  # before the processes end, whose work would be others' then
    return record | {"seconds": time.monotonic() - began_s}


@contextmanager
def _noted(record: dict[str, Any], running: dict[str, Process], who: str) -> Iterator[None]:
    """Note why a way fails within the context; it runs no more then."""
    try:
        yield
    except RuntimeError as error:
        record["ways"][who]["error"] = str(error)
        running.pop(who, None)


def _see_again(process: Process, way: dict[str, Any], result: str) -> None:
    """What runs the steps after the turns, and whether their results are still right."""
    way["ended"] = process.ask("state", None)
    again = process.ask("compare", result)
    levels = way["correct_from"], again["correct_from"]
    way["correct_from"] = None if None in levels else max(levels)
    way["right"] = False if False in (way["right"], again["right"]) else way["right"] and again["right"]
    way["difference"] = max(way["difference"], again["difference"])
