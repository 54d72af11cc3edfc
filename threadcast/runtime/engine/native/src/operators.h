// Operators of our own.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace threadcast {

// Operators made of a compiled loop over elements: several point-wise operators in one pass over memory.
struct FusedSpec {
  std::vector<int64_t> sizes;  // of the loop
  size_t inputs;
  std::vector<std::pair<std::vector<int64_t>, std::vector<int64_t>>> outputs;  // sizes and strides of each
};

// Defines `threadcast::name` with this schema, which runs `symbol` of the shared object at `path` on tensors of
// float32 that are broadcast to the loop's sizes. Throws std::runtime_error where the object cannot be loaded.
void define_fused(const std::string& schema, const std::string& name, const std::string& path,
                  const std::string& symbol, FusedSpec spec);

// Sums of edges' messages by the row that each edge leads to, as graph networks make them.
//
// Defines these operators, once in a process:
//
// `threadcast::edge_order(to, rows)`: `to` (edges) int64 are rows below `rows`. Returns `offsets` (rows + 2) and `order`
// (edges), both int32: the edges that lead to row r are order[offsets[r]] to order[offsets[r + 1] - 1], in their own
// order. `order` is empty where a row is outside of the range.
//
// `threadcast::gather_add(source, origin?, scale?, to, offsets, order, rows)`: zeros (rows, ...) float32, to row to[e] of
// which row origin[e] of `source` is added for each edge e in turn, row e without `origin`, times `scale` where there is
// one: (edges, 1), or (edges, heads, 1) for rows of (heads, ...). Bit by bit what `index_select`, `mul` and
// `scatter_add_` give, which also run in its place, and raise their errors, where an index is outside of its range.
void define_aggregation();

// Products of matrices by oneDNN's kernels for blocks, which use all vector instructions that a CPU has. MKL, which
// PyTorch's own operators call, uses AVX-512 on Intel's CPUs only.
//
// Defines these operators, once in a process, for float32. Returns whether they are there: versions of PyTorch without
// such kernels have none.
//
// `threadcast::product(added?, a, b)`: a (rows, depth) times b (depth, columns), or `batches` of both, plus `added`,
// which is broadcast to the result's sizes.
//
// `threadcast::product_(total, a, b)`: the same, added to `total`.
//
// Matrices may lie in memory in any way; those whose rows or columns are contiguous are not copied as wholes.
bool define_products();

}  // namespace threadcast
