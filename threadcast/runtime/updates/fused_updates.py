"""Lets optimizers' steps use PyTorch's fused kernels, where these are right and faster.

An optimizer that was made without `fused=True` updates each parameter by several operators, called from Python: 0.1 to
2.4 ms of a training step of 1 to 10 ms (decision 40). By the fused kernels it is 0.2 to 0.8 of that. Results are the
same but for rounding. On many cores small tensors may cost more by them, so both ways are compared in the steps.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch.nn import Parameter
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.weak import WeakIdKeyDictionary

from threadcast.capture.graph.optimizers import NUMBERS
from threadcast.capture.guards.unsupported import may_exchange
from threadcast.core.errors import in_one_line
from threadcast.runtime.tuner import events as to
from threadcast.runtime.tuner.budget import Budget
from threadcast.runtime.tuner.rounds import Rounds
from threadcast.runtime.tuner.tournament import Tournament
from threadcast.runtime.updates.fused_fit import FusedFit
from threadcast.runtime.updates.fused_step import FusedStep
from threadcast.runtime.watching.hooks import OwnSteps
from threadcast.threads.forks import forks

LOOP = 0
"""The optimizer's own loop, in place of a number of threads for the fused kernels."""
LEAST_S = 50e-6
"""Seconds of a step by the loop below which it stays: looking at a step takes some of them."""
_LOOKED = 50
"""Steps between two looks at whether the rest of the step is known. A convention."""
_PATIENCE = 5_000
"""Most steps that wait for what runs the rest of the step: graphs that are seldom called may never settle. A
convention."""
_logger = logging.getLogger("threadcast")

Given = tuple[tuple[Any, ...], dict[str, Any]]
"""Positional and named arguments of a step."""


@dataclass(frozen=True, slots=True)
class Steps:
    """What is known of the steps in which parameters are updated. It must keep none of these alive."""

    disturbed: Callable[[], bool] = lambda: False
    """Returns whether an update tells little of its speed now."""
    learn: Callable[[], bool] = lambda: False
    """Returns whether what runs the rest of the step may still change: updates are compared once more after that."""
    budget: Budget = field(default_factory=Budget)
    """What comparing updates may cost."""


class FusedUpdates:
    """Decides for each optimizer of `adopt`ed parameters which kernels its steps use, in these steps themselves.

    The optimizer makes its steps itself; while one runs, the groups' setting `fused` is changed. Left as they are:
    optimizers other than SGD, Adam and AdamW; those with hooks, replaced methods, or `fused`, `foreach`, `capturable`
    or `differentiable` set; and all in processes that exchange data, whose updates must be equal.
    May be used from several threads, each with optimizers of its own.
    """

    def __init__(self, *, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock, self._lock = clock, Lock()
        self._parameters: Any = WeakIdKeyDictionary()
        """For each adopted parameter, the steps that update it."""
        self._updates: WeakKeyDictionary[Optimizer, OptimizerUpdate | None] = WeakKeyDictionary()
        """None of optimizers that have no adopted parameter."""
        self._hooks: list[Any] = []
        self._own = OwnSteps()
        self._forks = forks.number

    def adopt(self, tensors: Iterable[Any], steps: Steps) -> None:
        """Take those of `tensors` that are trained parameters, by such steps."""
        found = [one for one in tensors if type(one) is Parameter and one.requires_grad]
        if not found or self._forks != forks.number:  # another thread of the parent may hold the lock for ever
            return
        with self._lock:
            for one in found:
                self._parameters[one] = steps
            for optimizer in [known for known, update in self._updates.items() if update is None]:
                del self._updates[optimizer]
            if not self._hooks:
                self._hooks = [
                    register_optimizer_step_pre_hook(_Hook(self._before)),
                    register_optimizer_step_post_hook(_Hook(self._after)),
                ]

    def close(self) -> None:
        """Leave all optimizers as they are from now on. No step may be running."""
        with self._lock:
            for hook in self._hooks:
                hook.remove()
            self._hooks.clear()
            self._parameters.clear()
            self._updates.clear()

    def of(self, optimizer: Optimizer) -> OptimizerUpdate | None:
        """Return what decides for this optimizer; None for one of whose parameters none is adopted."""
        if type(optimizer) not in NUMBERS or self._forks != forks.number:
            return None
        try:
            return self._updates[optimizer]
        except KeyError:
            pass
        with self._lock:
            parameters = (one for group in optimizer.param_groups for one in group["params"])
            steps = next((self._parameters[one] for one in parameters if one in self._parameters), None)
            found = None if steps is None else OptimizerUpdate(type(optimizer), steps, self._clock)
            self._updates[optimizer] = found
        return found

    def _before(self, optimizer: Optimizer, given: tuple[Any, ...], named: dict[str, Any]) -> Given | None:
        """Choose how the step that begins is made. Return other arguments for it, or None where they may stay."""
        update = self.of(optimizer)
        if update is None or update.over:
            return None
        if len(given) > 2 or (named and (len(given) > 1 or named.keys() != {"closure"})):
            return None  # the step will raise
        closure = given[1] if len(given) > 1 else named.get("closure")
        update.restore(optimizer)
        if closure is None:
            self._choose(update, optimizer)
            return None
        if not self._own.are_own(optimizer):
            return None

        def then_choose() -> Any:  # the closure makes the gradients
            found = closure()
            if self._hooks and not update.over:
                self._choose(update, optimizer)
            return found

        return ((optimizer, then_choose), {}) if len(given) > 1 else ((optimizer,), {"closure": then_choose})

    def _choose(self, update: OptimizerUpdate, optimizer: Optimizer) -> None:
        try:
            if not may_exchange() and self._own.are_own(optimizer):
                update.begin(optimizer)
        except Exception as error:  # noqa: BLE001 - whatever is strange about an optimizer, its step is its own
            _logger.info("steps of %s stay as they are: %s", type(optimizer).__name__, in_one_line(error))
            update.leave(optimizer)

    def _after(self, optimizer: Optimizer, *_: object) -> None:
        update = self.of(optimizer)
        if update is not None and not update.over:
            update.end(optimizer)


class OptimizerUpdate(Rounds):
    """How the steps of one optimizer are made: by its own loop, or by fused kernels on so many threads at most.

    Kernels divide each parameter among all of their threads, and many parameters are small. So these are compared: the
    loop, kernels on all threads that the process uses, and on half as many each.
    """

    def __init__(self, kind: type[Optimizer], steps: Steps, clock: Callable[[], float]) -> None:
        super().__init__(Tournament(LOOP), steps.budget)
        self._kind, self._steps, self._clock, self._fit = kind, steps, clock, FusedFit(kind)
        self.kept: int | None = None
        """Number of threads of the fused kernels that make all further steps for which they are right; `LOOP` where the
        optimizer's own loop does, None while that is not known."""
        self._again: bool | None = None
        """Whether all is to be compared once more, once what runs the rest of the step is known for good; None before
        the first time."""
        self._made = 0
        """Steps so far that waited for what runs the rest of the step."""
        self._step: FusedStep | None = None
        """The step by fused kernels that runs now, or that was interrupted and left something to set back."""
        self._guards_state = False
        """Whether `state_dict` is hooked, so that it has the setting as it was."""
        self._started_s: float | None = None
        self._what: to.Run | to.RunStage = to.Run(LOOP)
        self._offer()

    @property
    def over(self) -> bool:
        """Whether all further steps are made by the optimizer's own loop, and nothing is left to be set back."""
        return self.kept == LOOP and self._step is None and not self._again

    def _offer(self) -> None:
        threads = torch.get_num_threads()
        while threads >= 1:
            self.tell(to.Offered(threads, cost_s=0.0, ready=True))
            threads //= 2

    def prepare(self, key: to.Key) -> None:
        """Fused kernels need nothing."""
        self.tell(to.Ready(key))

    def carry_out(self, instruction: to.Instruction) -> None:
        """Nothing follows from a decision but how the next steps are made."""

    def _keep(self, best: to.Key) -> None:
        assert isinstance(best, int)
        self.kept = best
        self.budget.learns(False)

    def begin(self, optimizer: Optimizer) -> None:
        """Choose the kernels of the step that begins."""
        if self.kept is not None and self._again:
            self._made += 1
            if self._made % _LOOKED == 0 and (self._made >= _PATIENCE or not self._steps.learn()):
                self.tournament, self.kept, self._again, self._made = Tournament(LOOP), None, False, 0
                self._offer()
        if self.kept == LOOP:
            return
        if self._fit.waits():
            self.break_off()
            return
        if self.kept is None and self._made < _PATIENCE and self._steps.disturbed():
            self._made += 1
            self.break_off()
            return
        if self._again is None:
            self._again, self._made = self._steps.learn(), 0
        began_s = self._clock()
        tensors = self._fit.next_step(optimizer)
        threads = self._next_way() if self.kept is None else self.kept
        if tensors is None:
            self.break_off()
            return
        if self.kept is None:
            self._started_s = self._clock() if threads == LOOP else began_s  # the looks count for the fused kernels
        if threads == LOOP:
            return
        if not self._guards_state:  # a step that was interrupted leaves the setting changed, until the next one
            optimizer.register_state_dict_pre_hook(self.restore)
            self._guards_state = True
        self._step = FusedStep(tensors)
        self._step.begin(optimizer, threads)

    def _next_way(self) -> int:
        self._what = self.next()
        if self.tournament.settled and self.tournament.idle:
            self._keep(self.tournament.best)
        assert isinstance(self._what.key, int)
        return self._what.key

    def end(self, optimizer: Optimizer) -> None:
        """Take note that the step has ended."""
        started_s = self._started_s
        seconds = None if started_s is None else self._clock() - started_s
        self.restore(optimizer)
        if started_s is None or seconds is None:
            return
        self.observe(to.Ran(started_s, seconds, seconds))
        if self.kept is not None:
            how = "its own loop" if self.kept == LOOP else f"PyTorch's fused kernels, {self.kept} threads"
            gain = self.tournament.entrants[self.kept].gain
            _logger.info("%s updates by %s (gain %.2f)", self._kind.__name__, how, gain or 1.0)

    def observe(self, event: to.Ran) -> None:
        """Take note of the step for which `next` was asked."""
        if self.kept is not None:
            return
        self.count(event, self._what)
        self.tell(event)
        loop_s = self.tournament.baseline_s
        if loop_s is not None and loop_s < LEAST_S:
            self._keep(LOOP)

    def restore(self, optimizer: Optimizer) -> None:
        """Set back what was changed for the last step, also after one that has raised."""
        self._started_s = None
        if self._step is not None and self._step.set_back(optimizer):
            self._step = None

    def leave(self, optimizer: Optimizer) -> None:
        """Make all further steps, and the one that begins, by the optimizer's own loop."""
        self._again = False
        self._keep(LOOP)
        self.restore(optimizer)


class _Hook:
    """A hook before or after all optimizers' steps, which Dynamo leaves out of what it traces."""

    only_counts = True
    """Tells `runtime.watching` that an optimised step need not call this hook."""

    def __init__(self, does: Callable[..., Any]) -> None:
        self._does = does

    def __call__(self, optimizer: Optimizer, given: tuple[Any, ...], named: dict[str, Any]) -> Any:
        return None if torch.compiler.is_compiling() else self._does(optimizer, given, named)


@lru_cache(maxsize=1)
def fused_updates() -> FusedUpdates:
    """What decides for the optimizers of this process."""
    return FusedUpdates()
