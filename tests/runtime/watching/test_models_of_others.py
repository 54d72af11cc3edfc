"""Models of other libraries can be watched: the walk stays among what their code names."""

from __future__ import annotations

import ctypes
import importlib
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from tests.runtime.watching.test_called_by_pytorch import is_noticed
from tests.runtime.watching.test_unnoticed_changes import follows

pytestmark = pytest.mark.usefixtures("one_thread")

TABLE = ctypes.c_double(1.0)


def test_a_model_of_transformers_is_watched() -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed; `make setup` installs it")
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "vocab_size": 64, "num_hidden_layers": 2}
    config = transformers.LlamaConfig(**sizes, num_attention_heads=2, num_key_value_heads=2)
    model = transformers.LlamaForCausalLM(config).eval()
    assert is_noticed(model, lambda: setattr(model.model.layers[0].self_attn, "scaling", 2.0))


class Index(Tensor):
    """Edges of a graph, as torch_geometric's: only code of PyTorch names its last method, which leads far."""

    def sources(self) -> Any:
        return self[0]

    def numpy(self) -> Any:  # type: ignore[override]
        return TABLE.value


class Parameter(NamedTuple):
    """One of a function."""

    name: str
    type: Any
    default: Any = None


class Signature(NamedTuple):
    """What a function takes and gives."""

    parameters: dict[str, Parameter]
    returns: Any


class Inspector:
    """Knows what the methods of a class take, as torch_geometric's."""

    def __init__(self, inspected: type[Any]) -> None:
        self._inspected = inspected
        self._signatures: dict[str, Signature] = {}

    def inspect(self, name: str, *parameters: Parameter) -> None:
        self._signatures[name] = Signature({one.name: one for one in parameters}, Tensor)

    def collect(self, name: str, **given: Any) -> dict[str, Any]:
        signature = self._signatures[name]
        return {one.name: given.get(one.name, one.default) for one in signature.parameters.values()}


class Passing(nn.Module):
    """Sends messages along the edges of a graph, and calls a method by a computed name."""

    def __init__(self) -> None:
        super().__init__()
        self.kind, self.factor = "sum", 1.0
        self.inspector = Inspector(type(self))
        self.inspector.inspect("message", Parameter("x", Tensor), Parameter("edges", Index, None))

    def message(self, x: Tensor, edges: Any) -> Any:
        sources = edges.sources() if isinstance(edges, Index) else edges[0]
        return x[sources] * self.factor

    def to_sum(self, x: Tensor) -> Tensor:
        return x.sum(0)

    def forward(self, x: Tensor, edges: Tensor) -> Any:
        given = self.inspector.collect("message", x=x, edges=edges)
        return getattr(self, f"to_{self.kind}")(self.message(**given))


def test_a_model_that_inspects_its_own_methods_is_watched() -> None:
    model = Passing()
    assert is_noticed(model, lambda: setattr(model, "factor", 2.0))
    signatures = model.inspector._signatures
    taken = {"x": Parameter("x", Tensor), "edges": Parameter("edges", Tensor, 3)}
    assert is_noticed(model, lambda: signatures.update(message=Signature(taken, Tensor)))
    arguments = torch.linspace(0, 1, 12).reshape(4, 3), torch.tensor([[0, 1, 2], [1, 2, 3]])
    follows(model, lambda: setattr(model, "factor", 3.0), *arguments)


def test_what_an_installed_package_puts_in_place_of_a_librarys_function_is_not_looked_into(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "site-packages"
    folder.mkdir()
    code = "import ctypes\nTABLE = ctypes.c_double(1.0)\ndef selected(x, *others):\n    return x * TABLE.value\n"
    (folder / "replacing_functions.py").write_text(code)
    monkeypatch.syspath_prepend(folder)
    module = importlib.import_module("replacing_functions")
    monkeypatch.setattr(torch, "index_select", module.selected)
    assert is_noticed(lambda x: torch.index_select(x, 0, x), lambda: monkeypatch.setattr(torch, "index_select", max))
