"""Generates the C++ loop over elements for a group of operators, and describes what the loop reads and writes."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from threadcast.capture.graph.values import Ref, find_refs
from threadcast.core.tensor import TensorSpec
from threadcast.runtime.operators.clusters import Clusters, Group
from threadcast.runtime.operators.pointwise import HELPERS

PRELUDE = f"""#include <ATen/cpu/vec/vec.h>
#include <cstdint>
#include <limits>
namespace {{
using V = at::vec::Vectorized<float>;
constexpr int64_t W = V::size();
{HELPERS.strip()}
// `dense`: whether all operands are next to each other or all the same.
template <bool dense> inline V load(const char* operand, int64_t stride, int64_t i, int64_t count) {{
  const float* p = reinterpret_cast<const float*>(operand);
  if (stride == 0) return V(*p);
  if (dense || stride == 1) return count == W ? V::loadu(p + i) : V::loadu(p + i, count);
  alignas(64) float values[W] = {{}};
  for (int64_t k = 0; k < count; ++k) values[k] = p[(i + k) * stride];
  return V::loadu(values);
}}
template <bool dense> inline void store(V value, char* operand, int64_t stride, int64_t i, int64_t count) {{
  float* p = reinterpret_cast<float*>(operand);
  if (dense || stride == 1) return count == W ? value.store(p + i) : value.store(p + i, count);
  alignas(64) float values[W];
  value.store(values);
  for (int64_t k = 0; k < count; ++k) p[(i + k) * stride] = values[k];
}}
}}  // namespace
"""


@dataclass(frozen=True, slots=True, eq=False)
class Kernel:
    """A loop and its operands. Two groups with the same `source` share the loop, whatever their shapes."""

    source: str
    """C++ source of the loop's function, whose name is `symbol`."""
    symbol: str
    shape: tuple[int, ...]
    inputs: tuple[Ref, ...]
    outputs: tuple[TensorSpec, ...]
    nodes: tuple[int, ...]
    """The nodes whose results are the outputs, in the same order."""

    @property
    def name(self) -> str:
        """The operator's name; it differs from those of operators with the same loop and other shapes."""
        return f"fused_{_digest(repr((self.symbol, self.shape, self.outputs)))}"

    @property
    def schema(self) -> str:
        """The operator's schema in PyTorch's notation."""
        given = ", ".join(f"Tensor a{i}" for i in range(len(self.inputs)))
        returned = ", ".join("Tensor" for _ in self.outputs)
        return f"threadcast::{self.name}({given}) -> " + (returned if len(self.outputs) == 1 else f"({returned})")


def kernel_of(clusters: Clusters, group: Group) -> Kernel:
    """Return the kernel that computes `group`."""
    program, graph = clusters.program, clusters.graph
    mine = {program.slot_of(i): f"v{n}" for n, i in enumerate(group)}
    inputs = tuple(dict.fromkeys(r for i in group for r in clusters.terms[i].refs if r.slot not in mine))
    names: dict[Ref, str] = {Ref(slot): name for slot, name in mine.items()}
    names.update({ref: f"x{n}" for n, ref in enumerate(inputs)})
    nodes = tuple(i for i in group if _leaves(clusters, i, group))
    outputs = tuple(graph.ops[i].outputs[0] for i in nodes)
    lines = [f"    const V x{n} = load<dense>(p[{n}], s[{n}], i, count);" for n in range(len(inputs))]
    for i in group:
        term = clusters.terms[i]
        operands = {name: names[value] if isinstance(value, Ref) else value for name, value in term.operands.items()}
        lines.append(f"    const V {mine[program.slot_of(i)]} = {term.formula.format_map(operands)};")
    for n, i in enumerate(nodes, len(inputs)):
        lines.append(f"    store<dense>({mine[program.slot_of(i)]}, p[{n}], s[{n}], i, count);")
    source, symbol = _function("\n".join(lines), len(inputs), len(nodes))
    shape = graph.ops[group[0]].outputs[0].shape
    return Kernel(source, symbol, shape, inputs, outputs, nodes)


def _leaves(clusters: Clusters, i: int, group: Group) -> bool:
    """Whether anything outside of the group reads the node's result."""
    slot = clusters.program.slot_of(i)
    if any(ref.slot == slot for ref in find_refs(clusters.program.outputs)):
        return True
    return bool(clusters.readers[slot] - set(group))


def _function(body: str, inputs: int, stores: int) -> tuple[str, str]:
    symbol = f"fused_{_digest(body)}"
    operands = inputs + stores
    dense = " && ".join(
        [f"(s[{n}] == 0 || s[{n}] == 1)" for n in range(inputs)] + [f"s[{n}] == 1" for n in range(inputs, operands)]
    )
    source = f"""
template <bool dense> static inline void {symbol}_step(char* const* p, const int64_t* s, int64_t i, int64_t count) {{
{body}
}}
template <bool dense> static void {symbol}_loop(char* const* p, const int64_t* s, int64_t count) {{
  int64_t i = 0;
  for (; i + W <= count; i += W) {symbol}_step<dense>(p, s, i, W);
  if (i < count) {symbol}_step<dense>(p, s, i, count - i);
}}
extern "C" void {symbol}(char* const* p, const int64_t* s, int64_t count) {{
  if ({dense}) return {symbol}_loop<true>(p, s, count);
  {symbol}_loop<false>(p, s, count);
}}
"""
    return source, symbol


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
