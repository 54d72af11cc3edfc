"""Wrapped modules run as PyTorch does, with a warning that says why, and train as they do without threadcast."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.nn.functional import mse_loss

import threadcast
from threadcast.capture.graph.capture import capture_forward, capture_training
from threadcast.core.errors import CaptureError


@pytest.fixture(scope="module", autouse=True)
def one_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A process group of this process alone."""
    file: Path = tmp_path_factory.mktemp("group") / "store"
    distributed.init_process_group("gloo", init_method=f"file://{file}", rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


def plain() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 4))


def fully_sharded(model: nn.Module) -> nn.Module:
    fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
    return model


WRAPPED: dict[str, tuple[Callable[[nn.Module], nn.Module], str]] = {
    "DistributedDataParallel": (nn.parallel.DistributedDataParallel, "exchanges gradients between processes"),
    "within another module": (lambda m: nn.Sequential(nn.parallel.DistributedDataParallel(m)), "exchanges gradients"),
    "DataParallel": (nn.DataParallel, "divides its batch"),
    "fully_shard": (fully_sharded, "gathers its parameters"),
    "FSDP": (lambda m: FullyShardedDataParallel(m, device_id=torch.device("cpu")), "gathers its parameters"),
    "torch.compile": (lambda m: torch.compile(m, backend="eager"), "was compiled by torch.compile"),
    "TorchScript": (torch.jit.script, "is a TorchScript program"),
}


def test_a_model_that_is_sharded_after_its_first_step_trains_on() -> None:
    model, x, y = plain(), torch.ones(4, 8), torch.zeros(4, 4)
    alike = copy.deepcopy(model)
    with closing(threadcast.optimize_training(model, mse_loss, torch.optim.SGD(model.parameters(), lr=0.1))) as step:
        float(step(x, y))
        first: Any = torch.optim.SGD(alike.parameters(), lr=0.1)
        torch.autograd.backward(mse_loss(alike(x), y))
        first.step()
        fully_sharded(model)
        with pytest.warns(UserWarning, match="hooks on module FSDPSequential"):
            torch.testing.assert_close(step(x, y), mse_loss(alike(x), y).detach())


@pytest.mark.filterwarnings("ignore")  # of one process only, and of what is deprecated
@pytest.mark.parametrize(("wrap", "reason"), WRAPPED.values(), ids=list(WRAPPED))
def test_a_wrapped_model_is_refused(wrap: Callable[[nn.Module], nn.Module], reason: str) -> None:
    model, x = wrap(plain()), torch.ones(4, 8)
    with pytest.raises(CaptureError, match=f"cannot capture: .* {reason}"):
        capture_training(model, mse_loss, torch.optim.SGD(model.parameters(), lr=0.1), (x,), torch.ones(4, 4))
    with pytest.raises(CaptureError, match=reason):
        capture_forward(model.eval(), x)


@pytest.mark.filterwarnings("ignore")
def test_quantised_models_and_those_elsewhere_are_refused() -> None:
    with pytest.raises(CaptureError, match="quantised"):
        capture_forward(torch.ao.quantization.quantize_dynamic(plain().eval(), {nn.Linear}), torch.ones(4, 8))
    with pytest.raises(CaptureError, match="weight is on meta"):
        capture_forward(nn.Linear(2, 2, device="meta"), torch.ones(2))


def test_wrapped_functions_are_refused() -> None:
    doubled: Any = torch.compile(lambda x: x * 2, backend="eager")
    with pytest.raises(CaptureError, match=r"compiled by torch\.compile"):
        capture_forward(doubled, torch.ones(2))
    model = plain()
    loss: Any = torch.compile(mse_loss, backend="eager")
    with pytest.raises(CaptureError, match=r"compiled by torch\.compile"):
        capture_training(model, loss, torch.optim.SGD(model.parameters()), (torch.ones(2, 8),), torch.ones(2, 4))
