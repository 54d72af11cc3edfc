"""Models that `torch.compile(backend="threadcast")` runs, each beside a copy that eager PyTorch runs."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
import torch

from tests.whole_calls import by_the_graphs
from threadcast.runtime.calls.shared_learning import told
from threadcast.runtime.compiled.whole_calls import WholeCalls
from threadcast.runtime.doors import compile_backend
from threadcast.runtime.doors.compile_backend import backend, compiled_graphs
from threadcast.runtime.updates.fused_updates import fused_updates


@pytest.fixture(autouse=True)
def nothing_compiled() -> Iterator[None]:
    """Each test begins and ends without compiled code; `backend` is known by its name, also where not installed."""
    registered = torch._dynamo.backends.registry
    if "threadcast" not in registered.list_backends(exclude_tags=()):
        registered.register_backend(backend, name="threadcast")
    _forget()
    told.cache_clear()
    fused_updates().close()
    yield
    _forget()


@pytest.fixture(autouse=True)
def graphs_alone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole calls are not compared with eager PyTorch, which may be faster; tests marked `compared` do compare them."""
    if "compared" not in request.keywords:
        monkeypatch.setattr(WholeCalls, "next_turn", by_the_graphs)


def _forget() -> None:
    """Close all graphs, also those of tests elsewhere, and forget them."""
    for graph in compiled_graphs():
        graph.close()
    torch._dynamo.reset()
    gc.collect()  # graphs hold themselves in cycles
    gc.freeze()  # what is left are libraries, through which the next collections need not go
    compile_backend._graphs.clear()  # what tests elsewhere have left
    compile_backend._calls.clear()
