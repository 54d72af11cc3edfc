"""GraphNet's graphs: which of them may be used, and how they are loaded (github.com/PaddlePaddle/GraphNet, MIT).

A graph is a folder of a git repository. Only those are ever read whose path has an even first byte of SHA-256, however
the path is written (from "samples/" on, without it, or with its file "model.py"); the others are held out.
"""

from __future__ import annotations

import ast
import hashlib
import io
import re
import subprocess
import sys
import tarfile
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from judged import Judged
from torch import Tensor, nn

SEED = 123
"""Of the numbers in weights and inputs; GraphNet's own."""
_CUDA = re.compile(r"""device\(type=(["'])cuda\1(, index=\d+)?\)""")


def may_be_used(path: str) -> bool:
    """Whether a graph is not held out; `path` begins with "samples/"."""
    spellings = (path, path.removeprefix("samples/"), f"{path}/model.py")
    return all(hashlib.sha256(text.encode()).digest()[0] % 2 == 0 for text in spellings)


class GraphNet:
    """The graphs of a git repository at `repository`; those that are used are unpacked into `folder`."""

    def __init__(self, repository: Path, folder: Path) -> None:
        self._repository, self.folder = repository, folder

    def names(self) -> list[str]:
        """The graphs that may be used, in the order of their hashes, which mixes families."""
        listed = self._git("ls-tree", "-r", "--name-only", "HEAD", "samples").decode().split("\n")
        paths = [line.removesuffix("/model.py") for line in listed if line.endswith("/model.py")]
        return sorted(filter(may_be_used, paths), key=lambda path: hashlib.sha256(path.encode()).digest())

    @property
    def commit(self) -> str:
        """Abbreviated hash of the commit whose graphs are used."""
        return self._git("rev-parse", "--short", "HEAD").decode().strip()

    def unpack(self, name: str) -> None:
        """Write the files of a graph, and those of GraphNet that build its tensors, into `folder`."""
        wanted = [path for path in (name, "graph_net_bench/torch/utils.py") if not (self.folder / path).exists()]
        if wanted:
            with tarfile.open(fileobj=io.BytesIO(self._git("archive", "HEAD", "--", *wanted))) as archive:
                archive.extractall(self.folder, filter="data")

    def _git(self, *arguments: str) -> bytes:
        return subprocess.run(["git", "-C", str(self._repository), *arguments], capture_output=True, check=True).stdout


class Graph(nn.Module):
    """A graph with its weights as parameters and buffers, as the model had them from which it was extracted."""

    def __init__(self, graph: nn.Module, held: dict[str, Tensor], given: list[str]) -> None:
        super().__init__()
        self._given = given
        self.graph = graph
        for name, tensor in held.items():
            if tensor.is_floating_point() and "_parameters_" in name:
                self.register_parameter(name, nn.Parameter(tensor))
            else:
                self.register_buffer(name, tensor)
        self._held = list(held)

    def forward(self, *inputs: Any) -> Any:
        held = {name: getattr(self, name) for name in self._held}
        return self.graph(**dict(zip(self._given, inputs, strict=True)), **held)


def size_bytes(folder: Path) -> int:
    """The bytes of a graph's tensors, read from their descriptions."""
    shapes = re.findall(r"^    shape = (\[.*?\])", (folder / "weight_meta.py").read_text(), re.MULTILINE | re.DOTALL)
    return sum(4 * int(np.prod(ast.literal_eval(shape))) for shape in shapes)


def on_cpu(source: str) -> str:
    """The program of a graph with the CPU in place of a GPU: not of its number, with which `torch.compile` raises."""
    return _CUDA.sub('device(type="cpu")', source)


def load_graph(folder: Path, name: str) -> Judged:
    """Build an unpacked graph with its tensors by GraphNet's own code; the same in every process."""
    sys.path.insert(0, str(folder))
    utils = import_module("graph_net_bench.torch.utils")
    path = folder / name
    np.random.seed(SEED)
    torch.manual_seed(SEED)
    tensors = {}
    for described in utils.convert_meta_classes_to_tensors(str(path / "weight_meta.py")):
        described["info"]["device"] = "cpu"
        tensors[described["name"]] = utils.replay_tensor(described)
    source = utils.modify_code_by_device(on_cpu((path / "model.py").read_text()), "cpu")
    module = sys.modules["graphnet_model"] = type(sys)("graphnet_model")
    exec(compile(source, str(path / "model.py"), "exec"), module.__dict__)
    graph = module.GraphModule()
    held = {key: tensor for key, tensor in tensors.items() if "_parameters_" in key or "_buffers_" in key}
    given = [key for key in tensors if key not in held]
    return Judged(name, Graph(graph, held, given).eval(), tuple(tensors[key] for key in given), {})
