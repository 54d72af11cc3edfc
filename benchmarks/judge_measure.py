"""Measures one model of a judge: PyTorch, Inductor and threadcast in processes of their own, by turns."""

from __future__ import annotations

import multiprocessing
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
from judge_process import serve
from run_facts import RunFacts
from sessions import Session
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


class WayFailed(Exception):
    """A way of running a model raised, or gave no answer in time."""


class Process:
    """A process that runs a model in one way; it is stopped except while it answers, for `limit_s` at most."""

    def __init__(self, judge: str, name: str, mode: str, who: str, folder: Path, *, limit_s: float) -> None:
        fresh = {
            "THREADCAST_ENGINE_PLANS": str(folder / "plans"),
            "THREADCAST_STORE": f"sqlite:///{folder / 'threadcast.db'}",
            "TORCHINDUCTOR_CACHE_DIR": str(INDUCTOR_CACHE),
        }  # fmt: skip
        context = multiprocessing.get_context("forkserver")
        os.environ["PYTHONWARNINGS"] = "ignore::UserWarning:multiprocessing.resource_tracker"  # its children are killed
        own = Path(__file__).parent  # with `judge_process`; below the threadcast that is judged, whatever is installed
        os.environ["PYTHONPATH"] = os.pathsep.join(map(str, (own, own.parent)))
        context.set_forkserver_preload(["judge_process"])
        self._limit_s = limit_s
        self._connection, others = context.Pipe()
        self._process = context.Process(target=serve, args=(others, fresh, judge, name, mode, who))
        self._process.start()
        others.close()
        assert self._process.pid is not None
        self._session = Session(self._process.pid)
        try:
            self._read(limit_s)
        except BaseException:
            self.close()
            raise

    @property
    def session(self) -> int:
        """The session of the process and all that it starts."""
        return self._session.leader

    def ask(self, what: str, value: Any, *, seconds: float = 0.0) -> Any:
        """The answer to one request; WayFailed where there is none."""
        self.begin(what, value)
        return self.answer(seconds)

    def begin(self, what: str, value: Any) -> None:
        """Send a request, and go on; WayFailed where the process has ended."""
        self._session.go_on()
        try:
            self._connection.send((what, value))
        except OSError as error:
            raise WayFailed(f"the process has ended ({error})") from error

    def answer(self, seconds: float) -> Any:
        """The answer to a request that was sent, and the process stops; WayFailed where none comes within its limit and
        so many seconds."""
        return self._read(self._limit_s + seconds).get("answer")

    def close(self) -> None:
        """End the process and all that it started."""
        self._session.kill()
        self._process.join()

    def _read(self, seconds: float) -> dict[str, Any]:
        try:
            found = self._connection.poll(seconds)
            answer: dict[str, Any] = (
                self._connection.recv() if found else {"error": f"no answer within {seconds:.0f} s"}
            )
        except (EOFError, OSError):
            self._process.join(1)
            answer = {"error": f"the process ended with {self._process.exitcode}"}
        self._session.stop()
        if "error" in answer:
            raise WayFailed(answer["error"])
        return answer


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
    except WayFailed as error:
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
