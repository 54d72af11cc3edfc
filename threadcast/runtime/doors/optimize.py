"""`optimize` and `optimize_training`: make a PyTorch model's inference or training step on CPU cores faster."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from threadcast.capture.graph.fake_tensors import load_fake_tensors
from threadcast.core import Machine
from threadcast.core.arguments import check, check_switch, is_number
from threadcast.core.errors import InvalidInput
from threadcast.runtime.doors.given import check_inference, check_training
from threadcast.runtime.doors.optimized_call import OptimizedCall
from threadcast.runtime.doors.optimized_step import OptimizedStep
from threadcast.runtime.plans.model_cores import Cores, core_choice
from threadcast.runtime.tuner.standings import WORTH
from threadcast.runtime.updates.batch_loss import BatchLoss
from threadcast.runtime.updates.parameter_update import ParameterUpdate
from threadcast.threads.memory import keep_freed_memory


def optimize(
    function: Callable[..., Any], *example: Any, cores: Cores = None, backends: bool = True,
    progress: bool = True, seconds: float = 30.0,
) -> OptimizedCall:  # fmt: skip
    """Return a callable that does what `function` (a module or a plain function) does, faster where a way is found.

    It is for inference: calls run as under `torch.no_grad()`. The calls themselves measure and plan, and lose no more
    time by it than the setting `engine.tuning_share` allows. With `example` arguments this begins at once, on all
    cores, in calls with them that leave model, example and random generators as they were. It returns when going on is
    expected to gain less than 2 %, or after some `seconds`, without those in which the engine is compiled, once on a
    machine; the caller's calls go on, or `learn` until nothing is left to learn. With `progress` stderr shows what is
    learned meanwhile (without a terminal after 5 s), unless warnings of the logger "threadcast" are off.

    `cores` is the number of cores to use, or their CPU numbers (None: all that this process may use). A number takes
    those that the fewest other models of the process use; calls of models on different cores run at the same time.
    Calls that are left to PyTorch run on its own threads.

    A module in eval mode is also tried with ONNX Runtime and OpenVINO (where installed) and `torch.compile`. What is
    fastest is kept; `repr` and `reports` of what is returned say what runs, and why. `backends=False` leaves the three
    out, and a choice of only some cores OpenVINO, which does not keep to them. They work on copies of the weights, and
    are left for good once the weights were written to. Write under `torch.no_grad()`: a write by way of `.data` or
    NumPy that changes few elements may be missed.

    From the first call of `optimize` or `optimize_training` on, malloc keeps freed memory for the whole process.

    A call that cannot be captured as a whole (control flow that depends on data, hooks, unknown operators) runs in
    PyTorch as before, with a warning that says why. For who wants graph breaks, and the semantics that `torch.compile`
    gives them, there is `torch.compile(model, backend="threadcast")`.

    Results have the numbers of the given model's types. For bfloat16 call within `torch.autocast("cpu",
    torch.bfloat16)`, or give `model.bfloat16()`: both are learned as any other call. InvalidInput for arguments that
    make no sense.
    """
    check_inference(function, example)
    check_switch("backends", backends)
    check_switch("progress", progress)
    check(is_number(seconds) and seconds > 0, "seconds", seconds, "seconds above 0")
    machine = _machine(cores)
    most = None if cores is None else len(machine)
    call = OptimizedCall(function, machine, backends=backends, most=most)
    if example:
        call.learn_from(example, {}, seconds=seconds, least_gain=WORTH, progress=progress)
    return call


def optimize_training(
    model: nn.Module, loss: Callable[[Any, Any], Tensor] | None, optimizer: Optimizer, *example: Any,
    cores: Cores = None, clip_grad_norm: float | None = None, accumulate: int = 1, keep_grads: bool = False,
    scaler: GradScaler | None = None, progress: bool = True, seconds: float = 30.0,
) -> OptimizedStep:  # fmt: skip
    """Return `step(*inputs, target) -> loss`: computes `loss(model(*inputs), target)`, its gradients and the update.

    Named arguments go to the model: `step(x, target, mask=mask)`. Without `loss` all arguments do, and the model
    returns the loss: `step(**batch)` with `model(**batch).loss`. Any optimizer may be used. Updates by SGD, Adam and
    AdamW are planned with the rest of the step, clipping included; others, and those with one of the other options, run
    as in PyTorch after a plan of the gradients.

    `clip_grad_norm` is the largest norm of all gradients together. With `accumulate` above 1 parameters change only
    after so many steps, by the mean of their gradients; `step.update()` changes them before, by the sum so far divided
    by `accumulate`. `keep_grads` leaves the gradients in `.grad` until the next step. `scaler` is a
    `torch.amp.GradScaler("cpu")`.

    The first steps measure, and train as all others do. With an `example` (inputs, then the target, or both in one
    tuple) this begins at once, in steps that are all set back: model, optimizer, scaler and random generators are as
    they were. Where they cannot be, as of optimizers that are not PyTorch's and of hooks, a warning says why, and the
    step is only captured. `cores`, `progress` and `seconds` are as for `optimize`. InvalidInput for arguments that make
    no sense, as an example that lacks inputs or target; a warning for an optimizer of another model's parameters.
    """
    check_training(model, loss, optimizer)
    if loss is not None and len(example) == 1 and isinstance(example[0], tuple | list):
        example = tuple(example[0])
    if example and loss is not None and len(example) < 2:
        raise InvalidInput("the example must be the inputs and then the target")
    check_switch("progress", progress)
    check(is_number(seconds) and seconds > 0, "seconds", seconds, "seconds above 0")
    update = ParameterUpdate(
        model=model, optimizer=optimizer, clip_grad_norm=clip_grad_norm, accumulate=accumulate,
        keep_grads=keep_grads, scaler=scaler,
    )  # fmt: skip
    machine = _machine(cores)
    most = None if cores is None else len(machine)
    step = OptimizedStep(model, BatchLoss(loss, accumulate), update, machine, most=most)
    if example:
        step.learn_from(*example, seconds=seconds, progress=progress)
    return step


def _machine(cores: Cores) -> Machine:
    keep_freed_memory()
    load_fake_tensors()
    return core_choice().machine(cores)
