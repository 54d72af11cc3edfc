"""Data-parallel training of a compiled model on gloo: gradients meet the reducer, and are eager's."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from tests.plans_at_once import plans_at_once
from threadcast.runtime.compiled.graph_calls import GraphCalls
from threadcast.runtime.doors.compile_backend import backend, compiled_graphs

pytestmark = pytest.mark.system

STEPS = 40


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
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
    with plans_at_once():
        torch.save(trained(rank), f"{results}/{rank}")
    dist.destroy_process_group()


def trained(rank: int) -> dict[str, Any]:
    """The states of the models; "graphs" of each compiled one, by title, with why PyTorch runs it and what does; and
    "events" of its second step: what it did in which order."""
    models = {name: Net() for name in ("eager", "whole", "inner")}
    inner = torch.compile(models["inner"], backend=backend)
    parallel = {
        name: DistributedDataParallel(inner if name == "inner" else model, bucket_cap_mb=1)
        for name, model in models.items()
    }
    called: dict[str, Any] = {**parallel, "whole": torch.compile(parallel["whole"], backend=backend)}
    events: list[str] = []
    plain = GraphCalls.__call__

    def noted(self: GraphCalls, *arguments: Any) -> Any:
        events.append(self.role)
        return plain(self, *arguments)

    def exchanged(group: dist.ProcessGroup, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        events.append("exchange")
        return allreduce_hook(group, bucket)

    for model in parallel.values():
        # A lambda: DistributedDataParallel compares annotations with classes, and they are text here.
        model.register_comm_hook(dist.group.WORLD, lambda group, bucket: exchanged(group, bucket))
    second: dict[str, list[str]] = {}
    graphs: dict[str, dict[str, list[tuple[str, str]]]] = {}
    for name, call in called.items():
        torch._dynamo.reset()  # models of one class share graphs
        before = set(compiled_graphs())
        optimizer = torch.optim.SGD(models[name].parameters(), lr=0.05, momentum=0.9)
        for step in range(STEPS):
            made = torch.Generator().manual_seed(2 * step + rank)
            x, y = torch.randn(3, 3, 8, 8, generator=made).double(), torch.randint(0, 4, (3,), generator=made)
            optimizer.zero_grad()
            if step == 1:  # after the first step the buckets are made
                events.clear()
            with patch.object(GraphCalls, "__call__", noted if step == 1 else plain):
                cross_entropy(call(x), y).backward()
            if step == 1:
                second[name] = list(events)
            optimizer.step()
        own = [graph for graph in compiled_graphs() if graph not in before]
        graphs[name] = {graph.title: [(report.reason, report.runs) for report in graph.reports] for graph in own}
    states = {name: model.state_dict() for name, model in models.items()}
    return {"graphs": graphs, "events": second, **states}


def test_two_processes_train_as_they_do_in_eager_pytorch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    mp.spawn(train, (str(tmp_path / "meeting"), str(tmp_path)), nprocs=2)
    found = [torch.load(os.path.join(tmp_path, str(rank))) for rank in range(2)]
    for name, wanted in found[0]["eager"].items():
        for one in found:
            torch.testing.assert_close(one["whole"][name], wanted, rtol=1e-8, atol=1e-10)
            torch.testing.assert_close(one["inner"][name], wanted, rtol=1e-8, atol=1e-10)
    for one in found:
        for name in ("inner", "whole"):
            assert len(one["graphs"][name]) > 2, "graphs end where buckets do"
            assert set(map(tuple, one["graphs"][name].values())) == {(("", "plan"),)}
            events = one["events"][name]
            last = len(events) - 1 - events[::-1].index("backward")
            assert events.index("exchange") < last, "a bucket is exchanged before the last backward graph runs"
