"""In a forked process, as a worker of a DataLoader, calls run as PyTorch does: threads of plans did not come along."""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Callable
from contextlib import closing
from threading import Event, Thread

import pytest
import torch
from torch.nn.functional import cross_entropy

import threadcast
from tests.runtime.small_training import batch, net, run_until_settled, same_state, sgd, train_eagerly
from threadcast.runtime.plans.variant import MemoryFormat
from threadcast.threads.forks import forks

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork"),
    pytest.mark.usefixtures("one_thread", "plans_win"),
    pytest.mark.filterwarnings("ignore:threadcast runs this as PyTorch does. it was called in another process"),
]

MOST_S = 60


def in_a_fork(check: Callable[[], bool]) -> bool:
    """Whether `check` returns True in a forked process, within `MOST_S` seconds."""
    child = os.fork()
    if child == 0:
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(MOST_S)
            os._exit(0 if check() else 1)
        except BaseException:  # noqa: BLE001 - the child must not go on with the tests
            traceback.print_exc()
            os._exit(2)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_forks_are_counted_in_the_new_process() -> None:
    before = forks.number
    assert in_a_fork(lambda: forks.number == before + 1)
    assert forks.number == before


def test_calls_run_as_pytorch_does_whatever_other_threads_were_doing() -> None:
    model, (x, _) = net().float().eval(), batch(0)
    x = x.float()
    with closing(threadcast.optimize(model, backends=False)) as call, torch.no_grad():
        wanted, held, over = model(x), Event(), Event()  # in the memory format as given
        run_until_settled(call, lambda _: call(x))

        def hold() -> None:
            with call._optimized._lock:
                held.set()
                over.wait()

        holder = Thread(target=hold)
        holder.start()
        held.wait()
        try:
            assert in_a_fork(lambda: torch.equal(call(x), wanted) and torch.equal(call.learn(x)(x), wanted))
        finally:
            over.set()
            holder.join()
        torch.testing.assert_close(call(x), wanted)


def test_what_was_never_called_before_a_fork_has_plans_in_it() -> None:
    model, (x, _) = net().eval(), batch(0)
    with closing(threadcast.optimize(model, backends=False)) as call, torch.no_grad():

        def has_plan() -> bool:
            with closing(call):
                run_until_settled(call, lambda _: call(x))
                return call.reports[0].runs == "plan" and not call._optimized.forked

        assert in_a_fork(has_plan)
        assert str(call.reports[0]) == "not called yet"


def test_a_model_in_channels_last_is_as_given_in_a_fork() -> None:
    model, (x, _) = net().eval(), batch(0)
    with closing(threadcast.optimize(model, backends=False)) as call, torch.no_grad():
        wanted = model(x)
        call(x)
        call._optimized._format.set(MemoryFormat.CHANNELS_LAST)
        strides = model.left.weight.stride()
        assert in_a_fork(lambda: torch.equal(call(x), wanted) and model.left.weight.is_contiguous())
        assert model.left.weight.stride() == strides


@pytest.mark.parametrize("options", [{}, {"keep_grads": True}], ids=["whole", "apart"])
def test_steps_run_as_pytorch_does(options: dict[str, float]) -> None:
    mine, eager = net(), net()
    my_optimizer, optimizer = sgd(mine), sgd(eager)
    with closing(threadcast.optimize_training(mine, cross_entropy, my_optimizer, **options)) as step:  # type: ignore[arg-type]
        for number in range(4):
            step(*batch(number))
            train_eagerly(eager, optimizer, *batch(number))

        def one_more() -> bool:
            step.prepare(*batch(4))
            torch.testing.assert_close(step(*batch(4)), train_eagerly(eager, optimizer, *batch(4)))
            same_state(mine, eager)
            return True

        assert in_a_fork(one_more)
