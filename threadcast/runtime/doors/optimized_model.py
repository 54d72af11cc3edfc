"""What optimised calls and optimised training steps have in common: reports, the choice of cores, and `close`."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from os import PathLike
from pathlib import Path
from typing import Any, NoReturn, SupportsIndex

from torch import nn
from torch.nn.parameter import is_lazy

from threadcast.capture.guards.objects import attribute_of
from threadcast.capture.guards.past_operators import arguments_left_alone
from threadcast.core.arguments import check
from threadcast.core.atomic_file import replacing
from threadcast.core.errors import InvalidInput, NotCopyable
from threadcast.core.progress import ProgressBar
from threadcast.runtime.doors.optimized import Optimized
from threadcast.runtime.doors.own_calls import OwnCalls
from threadcast.runtime.doors.traced_step import timeline_page
from threadcast.runtime.plans.model_format import ModelFormat
from threadcast.runtime.tuner.report import COMPILING, NOT_CALLED, SHOWN, Report, Reports, in_brief

_WAIT_S = 1.0
"""Longest time in seconds between two calls of our own, which leaves the cores to a search for backends."""

_logger = logging.getLogger("threadcast")


class OptimizedModel:
    """What optimised calls and training steps have in common: reports, the choice of cores, and `close`."""

    _optimized: Optimized
    _title: str
    """What is run, for people: "training of Net by SGD"."""

    def __repr__(self) -> str:
        """Return what is run and how, one state for each kind of arguments, in ten lines at most."""
        said = ";\n".join(in_brief((report.state for report in self.reports), SHOWN, "kinds of calls"))
        return f"{type(self).__name__}({self._title}: {said})"

    @property
    def reports(self) -> Reports:
        """One report for each kind of arguments (shapes, types, modes): what runs it and why. In order of first use.

        Before the first call one that says so.
        """
        return Reports(self._optimized.reports or [Report(reason=NOT_CALLED)])

    @property
    def learning(self) -> bool:
        """Whether anything is left to learn about calls such as the last one, so that what runs them may change.

        Also while something runs that is faster already. True before the first call, False after `close`.
        """
        return self._optimized.learning

    def _learn(
        self, own: OwnCalls, call: Callable[[], Any], *, seconds: float, least_gain: float,
        begin: Callable[[], bool] = lambda: True,
    ) -> None:  # fmt: skip
        """Make calls of our own, if `begin` returns that they may, and set back all, whatever interrupts them.

        They go on while something is left to learn of which at least `least_gain` is expected, for some `seconds`; that
        the native engine is compiled, once on a machine, does not count.
        """

        def set_back() -> None:
            self._optimized.put_back()
            own.set_back()

        def goes_on() -> bool:
            tuning = self._optimized.tuning
            return self.learning and (tuning is None or tuning.gain_left >= least_gain)

        try:
            try:
                began_s, begun = time.monotonic(), begin()
                with self._optimized.hurry():
                    while begun and goes_on() and seconds > 0:
                        call()
                        own.after_call()
                        if self._optimized.tuning is not None:
                            self._optimized.tuning.wait(min(_WAIT_S, seconds))
                        compiles = any(report.reason == COMPILING for report in self.reports)
                        since_s, began_s = began_s, time.monotonic()
                        seconds -= 0.0 if compiles else began_s - since_s
                    if self._optimized.tuning is not None:
                        self._optimized.tuning.conclude()
            finally:
                set_back()
        finally:
            set_back()  # Ctrl-C may have interrupted it, too

    def resize(self, cores: int | Iterable[int] | None) -> tuple[tuple[int, ...], ...]:
        """Use this number of cores, or the cores of these CPU numbers; None: all that the process may use.

        May be called from any thread. A call or training step that is running goes on with the new cores from its next
        operator on; its result is the same. Returns the cores in use, each as the tuple of its CPU numbers.
        InvalidInput for no core, and for cores that this process may not use.
        """
        return tuple(core.cpus for core in self._optimized.cores.resize(cores))

    def _showing(self, wanted: bool, most_s: float) -> AbstractContextManager[object]:
        """Within the context it is shown what is learned, for how long and of how many seconds at most, if `wanted`."""
        if not (wanted and _logger.isEnabledFor(logging.WARNING)):
            return nullcontext()
        doing, began_s = f"threadcast learns {self._title}", time.monotonic()

        def look() -> tuple[int, str]:
            state = self.reports[-1].state.replace(NOT_CALLED, "capturing")
            return int(min(time.monotonic() - began_s, most_s)), f"{doing}: {state}"

        return ProgressBar(doing, total=None if math.isinf(most_s) else math.ceil(most_s), unit=" s", look=look)

    def timeline(self, path: PathLike[str] | str) -> None:
        """Write an HTML page without links to other files: the plan that ran the last call, and when its operators ran.

        For that, three more steps run on the arguments with which the call was captured; model, optimizer, gradients
        and random state are then restored. ExecutionError while no plan runs, and where memory is too small to
        restore. InvalidInput for a path that is no such file.
        """
        is_file = isinstance(path, str | PathLike) and Path(path).parent.is_dir() and not Path(path).is_dir()
        check(is_file, "path", path, "a file to write, in a folder that there is")
        step = self._optimized.traced_step()
        with replacing(Path(path)) as draft:
            draft.write_text(timeline_page(f"threadcast: {self._title}", step), encoding="utf-8")

    def close(self) -> None:
        """End the threads that run the model; a later call measures anew."""
        self._optimized.close()

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        """Raise NotCopyable: plans and threads belong to one model in one process."""
        raise NotCopyable(
            f"{type(self).__name__} cannot be copied or pickled: its plans and threads belong to one model in this "
            "process. Copy the model (copy.deepcopy) or save its state_dict(), and optimise that model where it is used"
        )


def short_name(function: Callable[..., Any]) -> str:
    """Return the name of a function, or of a model's class."""
    if isinstance(function, nn.Module):
        return type(function).__name__
    name: str = attribute_of(function, "__name__", repr(function))
    return name


def described(function: Callable[..., Any]) -> str:
    """Return a text that identifies the model or function, the same in every process."""
    if not isinstance(function, nn.Module):
        name = attribute_of(function, "__qualname__", type(function).__name__)
        return f"{attribute_of(function, '__module__', '')}.{name}"
    if any(map(is_lazy, function.parameters())):
        raise InvalidInput("the model has parameters that have no shape yet: call it once before it is optimised")
    parameters = [(name, tuple(tensor.shape), tensor.dtype) for name, tensor in function.named_parameters()]
    return f"{type(function).__qualname__} {parameters} {function.training}"


class Formatted(nn.Module):
    """Calls a module with a tuple of positional and a dictionary of keyword arguments, in its current memory format."""

    def __init__(self, module: nn.Module, model_format: ModelFormat) -> None:
        super().__init__()
        self.module = module
        self._format = model_format

    def forward(self, args: Any, kwargs: Any) -> Any:
        args, kwargs = self._format.arguments((args, kwargs))
        with arguments_left_alone((args, kwargs)):  # in channels last they are not what the caller has given
            return self.module(*args, **kwargs)
