"""Data-parallel training of a compiled model on gloo: gradients meet the reducer, and are eager's."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from tests.whole_calls import by_the_graphs
from threadcast.runtime.compile_backend import backend, compiled_graphs
from threadcast.runtime.whole_calls import WholeCalls

STEPS = 12


class Net(nn.Module):
    """A network whose gradients take several buckets of 1 MB, between which PyTorch divides the graph."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.convolution, self.first = nn.Conv2d(3, 6, 3), nn.Linear(216, 700)
        self.second, self.third = nn.Linear(700, 300), nn.Linear(300, 4)
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(self.convolution(x).relu().flatten(1)).tanh()
        result: Tensor = self.third(self.second(hidden).tanh())
        return result


def train(rank: int, meeting: str, results: str) -> None:
    """Train copies on this process's part of the data: eager, compiled as a whole, and compiled before the wrapping."""
    torch.set_num_threads(1)
    WholeCalls.next_turn = by_the_graphs  # type: ignore[method-assign]  # graphs run in all calls
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
    models = {name: Net() for name in ("eager", "whole", "inner")}
    called: dict[str, Any] = {
        "eager": DistributedDataParallel(models["eager"], bucket_cap_mb=1),
        "whole": torch.compile(DistributedDataParallel(models["whole"], bucket_cap_mb=1), backend=backend),
        "inner": DistributedDataParallel(torch.compile(models["inner"], backend=backend), bucket_cap_mb=1),
    }
    for name, call in called.items():
        optimizer = torch.optim.SGD(models[name].parameters(), lr=0.05, momentum=0.9)
        for step in range(STEPS):
            made = torch.Generator().manual_seed(2 * step + rank)
            x, y = torch.randn(3, 3, 8, 8, generator=made).double(), torch.randint(0, 4, (3,), generator=made)
            optimizer.zero_grad()
            cross_entropy(call(x), y).backward()
            optimizer.step()
    graphs = {graph.title: [(r.reason, r.warm_up.calls) for r in graph.reports] for graph in compiled_graphs()}
    states = {name: model.state_dict() for name, model in models.items()}
    torch.save({"graphs": graphs, **states}, f"{results}/{rank}")
    dist.destroy_process_group()


def test_two_processes_train_as_they_do_in_eager_pytorch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    mp.spawn(train, (str(tmp_path / "meeting"), str(tmp_path)), nprocs=2)
    found = [torch.load(os.path.join(tmp_path, str(rank))) for rank in range(2)]
    for name, wanted in found[0]["eager"].items():
        for one in found:
            torch.testing.assert_close(one["whole"][name], wanted, rtol=1e-8, atol=1e-10)
            torch.testing.assert_close(one["inner"][name], wanted, rtol=1e-8, atol=1e-10)
    for one in found:
        assert len(one["graphs"]) >= 4
        for reports in one["graphs"].values():
            assert [reason for reason, _ in reports] == [""]
            assert all(calls > 0 for _, calls in reports)
