"""One way of one model of a judge: runs its calls or training steps, when it is told to.

python benchmarks/judge_process.py zoo|graphnet NAME inference|training eager|kept|inductor|frozen|threadcast
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from statistics import median
from typing import Any

import torch
import torch._inductor.config as inductor_config
from judge_cases import load
from judge_scores import correct_from
from judged import (
    ROUNDED,
    Judged,
    Named,
    Value,
    begin_again,
    differences,
    eager_training,
    is_right,
    loss,
    moved_from,
    other_threads,
    results_of,
    rounded,
    state_of,
)
from told import Answer, serve

import threadcast
from threadcast.threads.memory import keep_freed_memory

SEED = 5
STEPS = 3
"""Training steps of a result."""
FIRST_STEPS = 4
"""Steps before learning begins."""
WAIT_S = 1.0
"""Longest time for which a search for backends has the cores to itself before the next step,
as in `OptimizedCall.learn`."""


class Way:
    """The calls of one model in one way.

    "eager" is PyTorch as it is, and "kept" PyTorch in a process that keeps freed memory, as threadcast makes it do.
    "inductor" is `torch.compile(model)`, and "frozen" the same with `torch._inductor.config.freezing`, for inference;
    both keep freed memory. "threadcast" is `optimize` or `optimize_training`.
    """

    def __init__(self, case: Judged, mode: str, who: str) -> None:
        self._case, self._training, self._who = case, mode == "training", who
        self._step: Any
        self._first = {}
        if who in ("kept", "inductor", "frozen"):
            keep_freed_memory()
        if who == "frozen":
            inductor_config.freezing = True
        if self._training:
            target = case.target()
            self._model = case.model.train()
            self._first = state_of(case.model)
            self._optimizer = case.optimizer()
            if who == "threadcast":
                named = Named(case.model, case.named) if case.named else case.model
                self._step = threadcast.optimize_training(named, loss, self._optimizer)
                self.step: Callable[[], Any] = lambda: self._step(*case.inputs, target)
            else:
                run = torch.compile(case.model) if who == "inductor" else case.model
                self.step = eager_training(case, run, target, self._optimizer)
            return
        self._model = case.model.eval()
        if who == "threadcast":
            self._step = threadcast.optimize(self._model)
        else:
            self._step = torch.compile(self._model) if who in ("inductor", "frozen") else self._model
        self.step = self._call

    def _call(self) -> Any:
        with torch.no_grad():
            return self._step(*self._case.inputs, **self._case.named)

    def settle(self, seconds: float) -> dict[str, Any]:
        """Run steps until nothing is learned any more, for so many seconds at most.

        Learning may take any time meanwhile, and processes that search for backends have the cores to themselves
        between the steps, as in `OptimizedCall.learn`. Later steps learn as they do by default.
        """
        began_s, calls = time.perf_counter(), 0
        while calls < FIRST_STEPS or (time.perf_counter() - began_s < seconds and self._learning()):
            with self._hurry(calls):
                self.step()
                if calls >= FIRST_STEPS and self._learning() and self._step._optimized.tuning is not None:
                    self._step._optimized.tuning.wait(max(0.0, min(WAIT_S, began_s + seconds - time.perf_counter())))
            calls += 1
        return {"seconds": time.perf_counter() - began_s, "calls": calls, **self.state()}

    def state(self) -> dict[str, Any]:
        """What runs the steps now, and whether anything is being learned."""
        return {"runs": self.runs(), "learning": self._learning()}

    def _hurry(self, calls: int) -> AbstractContextManager[None]:
        """Within the context learning may take any time; not in the first calls, which fill caches of the model's."""
        hurries = self._who == "threadcast" and calls >= FIRST_STEPS
        return self._step._optimized.hurry() if hurries else nullcontext()

    def _learning(self) -> bool:
        if self._who != "threadcast":
            return False
        return bool(self._step.learning)

    def runs(self) -> list[list[str]]:
        """What runs the steps, and why; nothing but in threadcast."""
        if self._who != "threadcast":
            return []
        return [[report.runs, report.reason] for report in self._step.reports]

    def turn(self, seconds: float) -> float:
        """Median seconds of a step, after one that does not count."""
        self.step()
        taken, began_s = [], time.perf_counter()
        while not taken or time.perf_counter() - began_s < seconds:
            before_s = time.perf_counter()
            self.step()
            taken.append(time.perf_counter() - before_s)
        return median(taken)

    def result(self, *, nudged: bool = False) -> list[Value]:
        """What a call gives, or the losses of steps from the first state on, and how they move the model.

        With `nudged` the first state is changed by one rounding.
        """
        if not self._training:
            torch.manual_seed(SEED)
            return results_of(self.step())
        begin_again(self._case.model, self._optimizer, self._first)
        if nudged:
            rounded(self._case.model)
        before = state_of(self._case.model)
        torch.manual_seed(SEED)
        values = results_of([self.step() for _ in range(STEPS)])
        return [*values, *moved_from(before, self._case.model)]

    def results(self) -> list[list[Value]]:
        """`result`, then the same with another number of threads, and in training from changed first states."""
        wanted = self.result()
        with other_threads():
            again = [self.result()]
        return [wanted, *again, *(self.result(nudged=True) for _ in range(ROUNDED if self._training else 0))]


def way() -> tuple[dict[str, Any], Answer]:
    """The way that the arguments name (judge, model, mode, way), as `told.serve` runs it.

    It is told {"what": ..., "value": ...}: "settle" with seconds runs steps until nothing is learned any more, "turn"
    with seconds gives the median seconds of a step, "state" tells what runs steps, "result" with a path writes what
    three steps from the first state give, several times, and "compare" compares the same with what is there.
    """
    judge, name, mode, who = sys.argv[1:]
    warnings.simplefilter("ignore")
    own = Way(load(judge, name), mode, who)
    return {}, lambda asked: {"answer": _answer(own, asked["what"], asked["value"])}


def _answer(way: Way, what: str, value: Any) -> Any:
    if what == "settle":
        return way.settle(value)
    if what == "turn":
        return way.turn(value)
    if what == "state":
        return way.state()
    if what == "result":
        return torch.save(way.results(), value)
    (wanted, *again), found = torch.load(value), way.result()
    return {
        "correct_from": correct_from(*([one for one, *_ in values] for values in (found, wanted))),
        "right": is_right(found, wanted, again),
        "difference": max(differences(found, wanted), default=0.0),
    }


if __name__ == "__main__":
    serve(way)
