"""The two judges: models of five libraries, and graphs of GraphNet (`make bench-zoo`)."""

from __future__ import annotations

import os
from pathlib import Path

from graphnet_graphs import GraphNet, load_graph
from judged import Judged
from run_facts import ROOT
from zoo_models import ZOO, load_zoo

BUILD = ROOT / "build"
GRAPHS = BUILD / "graphnet"


def graphnet() -> GraphNet:
    """The repository at the environment's GRAPHNET, by default where `make bench-zoo` clones it."""
    return GraphNet(Path(os.environ.get("GRAPHNET") or GRAPHS / "repository"), GRAPHS / "graphs")


def names(judge: str) -> list[str]:
    """The models or graphs of a judge, in the order in which they are tried."""
    return list(ZOO) if judge == "zoo" else graphnet().names()


def load(judge: str, name: str) -> Judged:
    """Build a model or an unpacked graph."""
    return load_zoo(name) if judge == "zoo" else load_graph(GRAPHS / "graphs", name)
