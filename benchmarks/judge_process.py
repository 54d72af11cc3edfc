"""One way of one model of a judge: runs its calls or training steps, when it is told to.

    python benchmarks/judge_process.py zoo|graphnet NAME inference|training eager|inductor|threadcast

It writes a line of JSON when it is ready, and one for each line that it reads: `["settle", seconds]` runs steps until
nothing is learned any more, `["turn", seconds]` gives the median seconds of a step, `["result", path]` writes what
three steps from the first state give, and `["compare", path]` compares the same with what is there.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
from judge_cases import load
from judge_scores import correct_from
from judged import Judged, Named, difference, eager_training, loss, tensors_of

import threadcast

SEED = 5
STEPS = 3
"""Training steps of a result."""


class Way:
    """The calls of one model in one way."""

    def __init__(self, case: Judged, mode: str, who: str) -> None:
        self._case, self._training, self._who = case, mode == "training", who
        self._step: Any
        self._first = {}
        if self._training:
            target = case.target()
            self._model = case.model.train()
            self._first = {name: value.clone() for name, value in case.model.state_dict().items()}
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
            self._step = torch.compile(self._model) if who == "inductor" else self._model
        self.step = self._call

    def _call(self) -> Any:
        with torch.no_grad():
            return self._step(*self._case.inputs, **self._case.named)

    def settle(self, seconds: float) -> dict[str, Any]:
        """Run steps until nothing is learned any more, for so many seconds at most."""
        began_s, calls = time.perf_counter(), 0
        if self._who == "threadcast" and not self._training:
            self._step.learn(*self._case.inputs, at_most_s=seconds, **self._case.named)
        while calls < 3 or (time.perf_counter() - began_s < seconds and self._learning()):
            self.step()
            calls += 1
        return {"seconds": time.perf_counter() - began_s, "calls": calls, "runs": self.runs()}

    def _learning(self) -> bool:
        if self._who != "threadcast":
            return False
        return bool(self._step._optimized.learning) or not self._step.reports

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

    def result(self) -> list[torch.Tensor]:
        """What a call gives, or the losses and parameters of steps from the first state on."""
        if not self._training:
            torch.manual_seed(SEED)
            return [tensor.clone() for tensor in tensors_of(self.step())]
        with torch.no_grad():
            for name, value in self._case.model.state_dict().items():
                value.copy_(self._first[name])
            for state in self._optimizer.state.values():
                for value in filter(torch.is_tensor, state.values()):
                    value.zero_()
        torch.manual_seed(SEED)
        values = [self.step().clone() for _ in range(STEPS)]
        return [*values, *(parameter.detach().clone() for parameter in self._case.model.parameters())]


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")  # whatever a library prints must not get in between
    os.dup2(2, 1)
    judge, name, mode, who = sys.argv[1:]
    way = None

    def answer(told: list[Any]) -> Any:
        if way is None or told[0] == "settle":
            return way.settle(told[1]) if way is not None else None
        if told[0] == "turn":
            return way.turn(told[1])
        if told[0] == "result":
            return torch.save(way.result(), told[1])
        wanted, found = torch.load(told[1]), way.result()
        return {"correct_from": correct_from(found, wanted), "difference": difference(found, wanted)}

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            way = Way(load(judge, name), mode, who)
            print(json.dumps({"ready": True}), file=answers, flush=True)
            for line in sys.stdin:
                print(json.dumps({"answer": answer(json.loads(line))}), file=answers, flush=True)
        except Exception as error:  # noqa: BLE001 - an error is a finding, too
            said = f"{type(error).__name__}: {error}"[:600]
            print(json.dumps({"error": said, "traceback": traceback.format_exc()[-2000:]}), file=answers, flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
